#pragma once

#include <heed/detail/storage.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

HEED_NAMESPACE_BEGIN
namespace detail {

/// Keys or values of a contiguous cache: [batch, heads, capacity, dim], in as many elements a row
/// as hold dim numbers, and their scales. The capacity is the cache's.
template <typename Stored>
struct cache_rows {
  static constexpr bool scales_grow = storage_traits<Stored>::scales == scale_of::row;
  size_type batch, heads, dim, width;
  std::vector<Stored> elements;
  std::vector<float> scales;

  cache_rows(size_type batch_size, size_type num_heads, size_type row_dim)
      : batch(batch_size), heads(num_heads), dim(row_dim), width(elements_of<Stored>(row_dim)) {}

  size_type bytes() const {
    return static_cast<size_type>(elements.size() * sizeof(Stored) + scales.size() * sizeof(float));
  }
  tensor_view<Stored> rows(size_type capacity) {
    return bhnd(elements.data(), batch, heads, capacity, width);
  }
  tensor_view<const Stored> rows(size_type capacity) const {
    return bhnd(elements.data(), batch, heads, capacity, width);
  }
  tensor_view<float> row_scales(size_type capacity) {
    return view_scales<Stored>(scales.data(), batch, heads, capacity);
  }
  tensor_view<const float> row_scales(size_type capacity) const {
    return view_scales<Stored>(scales.data(), batch, heads, capacity);
  }

  cache_rows grown(size_type from, size_type to) const {
    cache_rows larger(batch, heads, dim);
    larger.elements = grown_rows(elements, from, to, width);
    if (scales_grow)
      larger.scales = grown_rows(scales, from, to, 1);
    else
      larger.scales = scales;
    return larger;
  }

 private:
  template <typename Element>
  std::vector<Element> grown_rows(const std::vector<Element>& old, size_type from, size_type to,
                                  size_type row) const {
    std::vector<Element> grown(static_cast<std::size_t>(batch * heads * to * row));
    for (size_type head = 0; head < batch * heads; ++head)
      std::copy(old.data() + head * from * row, old.data() + (head + 1) * from * row,
                grown.data() + head * to * row);
    return grown;
  }
};

}  // namespace detail
HEED_NAMESPACE_END
