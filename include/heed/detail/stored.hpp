#pragma once

#include <heed/detail/params.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>

#include <vector>

HEED_NAMESPACE_BEGIN
namespace detail {

/// One sequence of a paged cache: how many tokens it has, and the pages that hold them.
struct paged_sequence {
  bool live;
  size_type length;
  std::vector<size_type> pages;
};

/// Keys or values of all heads: a plain tensor, or the pages of a cache and some of its sequences.
template <typename Stored>
struct stored_tensor {
  stored_tensor(const tensor_view<const Stored>& rows_of_entries,
                const tensor_view<const float>& their_scales, size_type entries, size_type longest)
      : batch(entries),
        heads(rows_of_entries.heads),
        rows(longest),
        cols(rows_of_entries.cols),
        capacity(rows_of_entries.rows),
        elements(rows_of_entries),
        scales(their_scales) {}
  stored_tensor(const tensor_view<const Stored>& plain)
      : batch(plain.batch),
        heads(plain.heads),
        rows(plain.rows),
        cols(plain.cols),
        capacity(plain.rows),
        elements(plain) {}

  size_type batch, heads, rows, cols;  // rows: of the longest sequence
  size_type capacity;                  // what it may grow to in the memory that it has
  tensor_view<const Stored> elements;  // in pages, `batch` counts pages and `rows` the rows of one
  tensor_view<const float> scales;     // [.., .., .., 1] beside elements; no data: none
  const size_type* first_rows =
      nullptr;                         // where sequence b begins in its batch entry; null: at row 0
  const size_type* lengths = nullptr;  // rows of each sequence; null: the same for all
  const size_type* dropped =
      nullptr;  // tokens of each sequence that a rolling cache has dropped; null: none
  const paged_sequence* sequences = nullptr;  // of a paged cache; null: no pages
  index_list names;  // batch entry b is sequence names[b]; no data: sequence b

  size_type name(size_type b) const { return names.data ? names[b] : b; }
  size_type length(size_type b) const {
    return sequences ? sequences[name(b)].length : lengths ? lengths[name(b)] : rows;
  }
  size_type dropped_from(size_type b) const { return dropped ? dropped[name(b)] : 0; }

  stored_rows<Stored> head(size_type b, size_type h, size_type first, size_type count) const {
    if (first_rows) first += first_rows[name(b)];
    stored_rows<Stored> one;
    one.rows = count;
    one.cols = cols;
    one.row = elements.row_stride;
    one.col = elements.col_stride;
    const size_type entry = sequences ? 0 : name(b), begin = sequences ? 0 : first;
    one.data = elements.head(entry, h, begin, count).data;
    if (scales.data) {
      one.scales = scales.head(entry, h, begin, count).data;
      one.scale_row = scales.row_stride;
    }
    if (sequences) {
      one.pages = sequences[name(b)].pages.data();
      one.first = first;
      one.page_rows = elements.rows;
      one.page_stride = elements.batch_stride;
      one.scale_page_stride = scales.batch_stride;
    }
    return one;
  }
};

}  // namespace detail
HEED_NAMESPACE_END
