#pragma once

// Tokens of one sequence on their way into a cache, and queries against it.

#include <heed/kv_cache.hpp>

#include "example.hpp"

namespace testing {

/// Queries, keys and values of n tokens, [1, H, n, d] and [1, H_kv, n, d].
template <typename Scalar>
struct tokens {
  heed::size_type n, heads, kv_heads, d_k, d_v;
  heed::rows<Scalar> query, key, value;  // a token a row: [n, H, d]

  tokens(heed::size_type count, heed::size_type num_heads, heed::size_type num_kv_heads,
         heed::size_type key_dim, heed::size_type value_dim, unsigned seed)
      : n(count),
        heads(num_heads),
        kv_heads(num_kv_heads),
        d_k(key_dim),
        d_v(value_dim),
        query(random_rows<Scalar>(count, num_heads * key_dim, 3 * seed)),
        key(random_rows<Scalar>(count, num_kv_heads * key_dim, 3 * seed + 1)),
        value(random_rows<Scalar>(count, num_kv_heads * value_dim, 3 * seed + 2)) {}

  heed::tensor_view<const Scalar> query_view(heed::size_type first, heed::size_type end) const {
    return heed::bnhd(query.data() + first * query.cols(), 1, end - first, heads, d_k);
  }
  heed::tensor_view<const Scalar> key_view(heed::size_type first, heed::size_type end) const {
    return heed::bnhd(key.data() + first * key.cols(), 1, end - first, kv_heads, d_k);
  }
  heed::tensor_view<const Scalar> value_view(heed::size_type first, heed::size_type end) const {
    return heed::bnhd(value.data() + first * value.cols(), 1, end - first, kv_heads, d_v);
  }
  /// Appends tokens [first, end) to sequence s.
  template <typename Cache>
  void append(Cache& cache, heed::size_type s, heed::size_type first, heed::size_type end) const {
    cache.append(s, key_view(first, end), value_view(first, end));
  }
};

/// Attention of queries [first, end) of the tokens to a cache of one sequence, by the reference:
/// [n, H, d_v].
template <typename Scalar, typename Cache, typename... Terms>
heed::rows<Scalar> reference_from(const Cache& cache, const tokens<Scalar>& t,
                                  heed::size_type first, heed::size_type end,
                                  const heed::attention_options& options, const Terms&... terms) {
  heed::rows<Scalar> out(end - first, t.heads * t.d_v);
  heed::reference_cached_attention_into(t.query_view(first, end), cache,
                                        heed::bnhd(out.data(), 1, end - first, t.heads, t.d_v), {},
                                        options, terms...);
  return out;
}
/// The same by the kernels.
template <typename Scalar, typename Cache, typename... Terms>
heed::rows<Scalar> attention_from(const Cache& cache, const tokens<Scalar>& t,
                                  heed::size_type first, heed::size_type end,
                                  const heed::attention_options& options, const Terms&... terms) {
  heed::rows<Scalar> out(end - first, t.heads * t.d_v);
  heed::workspace memory;
  heed::cached_attention_into(t.query_view(first, end), cache,
                              heed::bnhd(out.data(), 1, end - first, t.heads, t.d_v), {}, options,
                              memory, terms...);
  return out;
}

}  // namespace testing
