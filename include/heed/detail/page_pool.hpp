#pragma once

#include <heed/detail/storage.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

HEED_NAMESPACE_BEGIN
namespace detail {

/// Keys or values of every page: [num_pages, heads, page_rows, dim], in as many elements a row as
/// hold dim numbers, and their scales.
template <typename Stored>
struct page_pool {
  static constexpr bool has_row_scales = storage_traits<Stored>::scales == scale_of::row,
                        has_head_scales = storage_traits<Stored>::scales == scale_of::head;
  size_type num_pages, page_rows, heads, dim;
  std::vector<Stored> elements;
  std::vector<float> scales;

  page_pool without_pages() const { return {0, page_rows, heads, dim, {}, {}}; }
  size_type width() const { return elements_of<Stored>(dim); }
  void allocate(std::vector<float> scales_of_heads) {
    elements.resize(static_cast<std::size_t>(num_pages * heads * page_rows * width()));
    scales = std::move(scales_of_heads);
    if (has_row_scales) scales.resize(static_cast<std::size_t>(num_pages * heads * page_rows));
  }
  size_type bytes() const {
    return static_cast<size_type>(elements.size() * sizeof(Stored) + scales.size() * sizeof(float));
  }
  tensor_view<const Stored> all_rows() const {
    return bhnd(elements.data(), num_pages, heads, page_rows, width());
  }
  tensor_view<const float> all_scales() const {
    return view_scales<Stored>(scales.data(), num_pages, heads, page_rows);
  }
  void copy_page(size_type from, size_type to) {
    const size_type page = heads * page_rows, whole = page * width();
    std::copy(elements.begin() + from * whole, elements.begin() + (from + 1) * whole,
              elements.begin() + to * whole);
    if (has_row_scales)
      std::copy(scales.begin() + from * page, scales.begin() + (from + 1) * page,
                scales.begin() + to * page);
  }
  /// Scales that belong to no page. (A pool that was moved from has none.)
  size_type head_scales() const {
    return has_head_scales ? static_cast<size_type>(scales.size()) : 0;
  }
  /// Of one token.
  size_type row_bytes() const {
    return heads *
           (width() * size_type{sizeof(Stored)} + (has_row_scales ? size_type{sizeof(float)} : 0));
  }
  /// The first `rows` rows of all heads of a page, to bytes or from them.
  template <typename Pool, typename Bytes>
  static void move_rows(Pool& pool, size_type page, size_type rows, Bytes& bytes) {
    for (size_type h = 0; h < pool.heads; ++h) {
      const size_type first = (page * pool.heads + h) * pool.page_rows;
      bytes.move(pool.elements.data() + first * pool.width(), rows * pool.width());
      if (has_row_scales) bytes.move(pool.scales.data() + first, rows);
    }
  }
  template <typename Scalar>
  void store(const tensor_view<Scalar>& tokens, size_type i, size_type page, size_type row) {
    using Element = std::remove_const_t<Scalar>;
    for (size_type h = 0; h < heads; ++h) {
      const matrix_view<Stored> to =
          bhnd(elements.data(), num_pages, heads, page_rows, width()).head(page, h, row, 1);
      const tensor_view<float> all =
          view_scales<Stored>(scales.data(), num_pages, heads, page_rows);
      float* const scale = all.data ? &all(page, h, row, 0) : nullptr;
      storage_traits<Stored>::store_row(tensor_view<const Element>(tokens).head(0, h, i, 1), to,
                                        scale, 0);
    }
  }
};

}  // namespace detail
HEED_NAMESPACE_END
