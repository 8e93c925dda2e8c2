#pragma once

#include <heed/detail/check.hpp>
#include <heed/detail/number.hpp>
#include <heed/detail/params.hpp>
#include <heed/detail/storage.hpp>
#include <heed/float8.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <vector>

// What caches ask of their sizes and of tokens that are appended.

HEED_NAMESPACE_BEGIN
namespace detail {
/// Scales of heads must be positive and finite.
inline void check_scales(const char* function, const char* what, const std::vector<float>& scales) {
  for (const float scale : scales)
    if (!is_finite(scale) || scale < (std::numeric_limits<float>::min)())
      fail_with("heed::", function, ": ", what,
                ": a scale must be a positive normal number, but is ", scale);
}
/// Given scales are one for each head; returns them, or 1 for each.
template <typename Stored>
std::vector<float> scales_of(const char* function, const char* what,
                             const std::vector<float>& given, size_type heads) {
  constexpr bool takes_scales = storage_traits<Stored>::scales == scale_of::head;
  if (given.empty())
    return std::vector<float>(static_cast<std::size_t>(takes_scales ? heads : 0), 1.0f);
  if (!takes_scales)
    fail_with("heed::", function, ": ", what, ": only caches of 8-bit floats have a scale a head");
  check_equal(function, what, static_cast<size_type>(given.size()), "num_kv_heads", heads);
  check_scales(function, what, given);
  return given;
}
/// A cache of these extents must have a countable size; its largest list takes 8 bytes an element.
inline void check_storage(const char* function, const std::array<size_type, 4>& extents) {
  const auto some = [&](std::size_t axis) { return (std::max)(extents[axis], size_type{1}); };
  product(function, "size in bytes", {some(0), some(1), some(2), some(3), 8});
}
/// Tokens to append must be those of a cache of num_kv_heads heads.
template <typename Key, typename Value>
void check_tokens(const char* function, const tensor_view<Key>& key,
                  const tensor_view<Value>& value, size_type num_kv_heads, size_type key_dim,
                  size_type value_dim) {
  check_view(function, "key", key);
  check_view(function, "value", value);
  check_equal(function, "value: batch", value.batch, "key's batch", key.batch);
  check_equal(function, "key: num_kv_heads", key.heads, "the cache's num_kv_heads", num_kv_heads);
  check_equal(function, "value: num_kv_heads", value.heads, "the cache's num_kv_heads",
              num_kv_heads);
  check_equal(function, "value: tokens", value.rows, "key's tokens", key.rows);
  check_equal(function, "key: head_dim", key.cols, "the cache's key_dim", key_dim);
  check_equal(function, "value: head_dim", value.cols, "the cache's value_dim", value_dim);
  if (key.rows > unbounded)
    fail_with("heed::", function, ": key: ", key.rows, " tokens are more than a cache can count, ",
              unbounded);
}
}  // namespace detail
HEED_NAMESPACE_END
