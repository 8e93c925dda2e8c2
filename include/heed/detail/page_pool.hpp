#pragma once

#include <heed/detail/storage.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <vector>

HEED_NAMESPACE_BEGIN
namespace detail {

/// Keys or values of every page: [num_pages, heads, page_rows, dim], and the scales of int8.
template <typename Stored>
struct page_pool {
  size_type num_pages, page_rows, heads, dim;
  std::vector<Stored> elements;
  std::vector<float> scales;

  page_pool without_pages() const { return {0, page_rows, heads, dim, {}, {}}; }
  void allocate() {
    elements.resize(static_cast<std::size_t>(num_pages * heads * page_rows * dim));
    if (storage_traits<Stored>::has_scales)
      scales.resize(static_cast<std::size_t>(num_pages * heads * page_rows));
  }
  size_type bytes() const {
    return static_cast<size_type>(elements.size() * sizeof(Stored) + scales.size() * sizeof(float));
  }
  tensor_view<const Stored> all_rows() const {
    return bhnd(elements.data(), num_pages, heads, page_rows, dim);
  }
  tensor_view<const float> all_scales() const {
    if (scales.empty()) return {};
    return bhnd(scales.data(), num_pages, heads, page_rows, 1);
  }
  void copy_page(size_type from, size_type to) {
    const size_type page = heads * page_rows;
    std::copy(elements.begin() + from * page * dim, elements.begin() + (from + 1) * page * dim,
              elements.begin() + to * page * dim);
    if (!scales.empty())
      std::copy(scales.begin() + from * page, scales.begin() + (from + 1) * page,
                scales.begin() + to * page);
  }
  /// Of one token.
  size_type row_bytes() const {
    return heads * (dim * size_type{sizeof(Stored)} +
                    (storage_traits<Stored>::has_scales ? size_type{sizeof(float)} : 0));
  }
  /// The first `rows` rows of all heads of a page, to bytes or from them.
  template <typename Pool, typename Bytes>
  static void move_rows(Pool& pool, size_type page, size_type rows, Bytes& bytes) {
    for (size_type h = 0; h < pool.heads; ++h) {
      const size_type first = (page * pool.heads + h) * pool.page_rows;
      bytes.move(pool.elements.data() + first * pool.dim, rows * pool.dim);
      if (!pool.scales.empty()) bytes.move(pool.scales.data() + first, rows);
    }
  }
  template <typename Scalar>
  void store(const tensor_view<Scalar>& tokens, size_type i, size_type page, size_type row) {
    using Element = std::remove_const_t<Scalar>;
    for (size_type h = 0; h < heads; ++h) {
      const matrix_view<Stored> to =
          bhnd(elements.data(), num_pages, heads, page_rows, dim).head(page, h, row, 1);
      float* scale = scales.empty()
                         ? nullptr
                         : &scales[static_cast<std::size_t>((page * heads + h) * page_rows + row)];
      storage_traits<Stored>::store_row(tensor_view<const Element>(tokens).head(0, h, i, 1), to,
                                        scale, 0);
    }
  }
};

}  // namespace detail
HEED_NAMESPACE_END
