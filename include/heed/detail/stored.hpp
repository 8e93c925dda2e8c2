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
  index_list names;                           // batch entry b is sequences[names[b]]

  const paged_sequence& paged(size_type b) const { return sequences[names[b]]; }
  size_type length(size_type b) const {
    return sequences ? paged(b).length : lengths ? lengths[b] : rows;
  }

  stored_rows<Stored> head(size_type b, size_type h, size_type first, size_type count) const {
    if (first_rows) first += first_rows[b];
    stored_rows<Stored> one;
    one.rows = count;
    one.cols = cols;
    one.row = elements.row_stride;
    one.col = elements.col_stride;
    const size_type entry = sequences ? 0 : b;
    one.data = elements.head(entry, h, first, count).data;
    if (scales.data) {
      one.scales = scales.head(entry, h, first, count).data;
      one.scale_row = scales.row_stride;
    }
    if (sequences) {
      one.pages = paged(b).pages.data();
      one.page_rows = elements.rows;
      one.page_stride = elements.batch_stride;
      one.scale_page_stride = scales.batch_stride;
    }
    return one;
  }
};

}  // namespace detail
HEED_NAMESPACE_END
