#pragma once

#include <heed/detail/params.hpp>
#include <heed/page_table.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>

HEED_NAMESPACE_BEGIN
namespace detail {

/// Keys or values of all heads: a plain tensor, or pages and the table of those of each sequence.
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
      nullptr;         // where sequence b begins in its batch entry; null: at row 0
  index_list lengths;  // rows of each sequence; no data: the same for all
  const size_type* dropped =
      nullptr;  // tokens of each sequence that a rolling cache has dropped; null: none
  bool paged = false;
  page_table table;      // of the pages
  index_list sequences;  // batch entry b has row sequences[b] of the table and of lengths; no data:
                         // row b

  size_type sequence(size_type b) const { return sequences.data ? sequences[b] : b; }
  size_type length(size_type b) const { return lengths.data ? lengths[sequence(b)] : rows; }
  /// How many pages the first `end` rows of a sequence take.
  size_type pages_for(size_type end) const {
    return end / elements.rows + (end % elements.rows != 0);
  }
  size_type dropped_from(size_type b) const { return dropped ? dropped[sequence(b)] : 0; }

  stored_rows<Stored> head(size_type b, size_type h, size_type first, size_type count) const {
    if (first_rows) first += first_rows[sequence(b)];
    stored_rows<Stored> one;
    one.rows = count;
    one.cols = cols;
    one.row = elements.row_stride;
    one.col = elements.col_stride;
    const size_type entry = paged ? 0 : sequence(b), begin = paged ? 0 : first;
    one.data = elements.head(entry, h, begin, count).data;
    if (scales.data) {
      one.scales = scales.head(entry, h, begin, count).data;
      one.scale_row = scales.row_stride;
    }
    if (paged) {
      const index_list pages = table.pages(sequence(b));
      one.pages = {pages.data, pages.width};
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
