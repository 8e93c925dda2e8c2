#pragma once

#include <heed/detail/check.hpp>
#include <heed/types.hpp>

HEED_NAMESPACE_BEGIN

/// The bytes that the keys and values of one sequence take: 2 * layers * num_kv_heads * head_dim *
/// length * bytes_per_element. Throws std::invalid_argument for negative numbers and for a product
/// that an index cannot hold.
///
/// @code
/// static_assert(heed::kv_cache_bytes(32, 8, 128, 8192, 2) == heed::size_type{1} << 30,
///               "Llama 3.1 8B, 8K tokens, bfloat16");
/// @endcode
constexpr size_type kv_cache_bytes(size_type layers, size_type num_kv_heads, size_type head_dim,
                                   size_type length, size_type bytes_per_element) {
  if (layers < 0 || num_kv_heads < 0 || head_dim < 0 || length < 0 || bytes_per_element < 0)
    detail::fail_with("heed::kv_cache_bytes: numbers must not be negative, but are layers ", layers,
                      ", num_kv_heads ", num_kv_heads, ", head_dim ", head_dim, ", length ", length,
                      ", bytes_per_element ", bytes_per_element);
  return detail::product("kv_cache_bytes",
                         "2 * layers * num_kv_heads * head_dim * length * bytes_per_element",
                         {2, layers, num_kv_heads, head_dim, length, bytes_per_element});
}

HEED_NAMESPACE_END
