#pragma once

#include <heed/attention.hpp>
#include <heed/reference.hpp>

HEED_NAMESPACE_BEGIN

/// Attention of every head of every batch entry, through strided views: [B,H,N,D], [B,N,H,D], slices of a packed tensor, strides of 0.
///
/// query [B, H, n_q, Dk], key [B, H_kv, n_kv, Dk], value [B, H_kv, n_kv, Dv] -> out [B, H, n_q, Dv], lse [B, H, n_q, 1] or {} to
/// leave it out. Query head h reads key/value head h / (H / H_kv): H_kv = H is multi-head, 1 multi-query, between them grouped-query
/// attention (Ainslie et al. 2023). A row that sees no key is 0, its lse -infinity. Throws std::invalid_argument for sizes that do not
/// fit together, H not a multiple of H_kv among them, and where out or lse overlaps itself, the other or anything that the call reads,
/// before anything is written; out may be the columns of one matrix that query, key and value leave. Allocates nothing once `memory`
/// has grown.
///
/// @code
/// // 2 sequences of 16 queries and 32 keys; 8 heads on 2 key/value heads of 64
/// std::vector<float> query(2 * 8 * 16 * 64, 1.0f), key(2 * 2 * 32 * 64, 1.0f), value(key), out(query.size());
/// heed::workspace memory;
/// heed::multi_head_attention_into(heed::bhnd(query.data(), 2, 8, 16, 64), heed::bhnd(key.data(), 2, 2, 32, 64),
///                                 heed::bhnd(value.data(), 2, 2, 32, 64), heed::bhnd(out.data(), 2, 8, 16, 64),
///                                 {}, heed::attention_options(), memory);
/// assert(std::abs(out.back() - 1) < 1e-6f);
/// @endcode
template <typename Query, typename Key, typename Value, typename Scalar, typename Lse = accumulator_t<Scalar>, typename... Terms>
void multi_head_attention_into(const tensor_view<Query>& query, const tensor_view<Key>& key, const tensor_view<Value>& value,
                               const tensor_view<Scalar>& out, const tensor_view<Lse>& lse, const attention_options& options,
                               workspace& memory, const Terms&... terms) {
  detail::forward(detail::make_problem<Scalar>("multi_head_attention_into", query, key, value, out, lse, options, terms...), memory);
}

/// The bytes of the workspace that this call of multi_head_attention_into takes: out and lse do not matter. With key_lengths, those of
/// its largest need at any lengths.
template <typename Query, typename Key, typename Value, typename... Terms>
index multi_head_attention_workspace_bytes(const tensor_view<Query>& query, const tensor_view<Key>& key,
                                           const tensor_view<Value>& value, const attention_options& options, const Terms&... terms) {
  return detail::bytes_of(detail::make_shape_problem<std::remove_const_t<Query>>("multi_head_attention_workspace_bytes", query, key,
                                                                                 value, options, terms...));
}

/// The same computed directly, head by head: the oracle of multi_head_attention_into.
template <typename Query, typename Key, typename Value, typename Scalar, typename Lse = accumulator_t<Scalar>, typename... Terms>
void reference_multi_head_attention_into(const tensor_view<Query>& query, const tensor_view<Key>& key, const tensor_view<Value>& value,
                                         const tensor_view<Scalar>& out, const tensor_view<Lse>& lse, const attention_options& options,
                                         const Terms&... terms) {
  detail::reference(
      detail::make_problem<Scalar>("reference_multi_head_attention_into", query, key, value, out, lse, options, terms...));
}

namespace detail {
/// multi_head_attention under the name of the function that was called.
template <typename Query, typename Key, typename Value, typename... Terms>
auto packed_attention(const char* name, const Query& query, const Key& key, const Value& value, index num_heads, index num_kv_heads,
                      const attention_options& options, index batch, const Terms&... terms) {
  static_assert(is_eigen<Query> && is_eigen<Key> && is_eigen<Value>,
                "query, key and value must be Eigen matrices, Maps, blocks or expressions");
  using Scalar = typename scalar_of<Query>::type;
  static_assert(scalars_fit<Scalar, typename scalar_of<Key>::type, typename scalar_of<Value>::type>::value);
  const input<Scalar, Query> q(query);
  const input<Scalar, Key> k(key);
  const input<Scalar, Value> v(value);
  check_multiple(name, "query", q.view.cols, "columns", "num_heads", num_heads);
  check_multiple(name, "key", k.view.cols, "columns", "num_kv_heads", num_kv_heads);
  check_multiple(name, "value", v.view.cols, "columns", "num_kv_heads", num_kv_heads);
  check_multiple(name, "query", q.view.rows, "rows", "batch", batch);
  check_multiple(name, "key", k.view.rows, "rows", "batch", batch);
  check_equal(name, "value: kv_length", v.view.rows, "key's kv_length", k.view.rows);

  rows<Scalar> out(q.view.rows, num_heads * (v.view.cols / num_kv_heads));
  workspace memory;
  forward(make_problem<Scalar>(name, split_heads(q.view, num_heads, batch), split_heads(k.view, num_kv_heads, batch),
                               split_heads(v.view, num_kv_heads, batch), split_heads(writable_view(out), num_heads, batch), {},
                               options, terms...),
          memory);
  return out;
}
}  // namespace detail

/// Multi-head attention of one sequence (or of `batch` sequences of one length, one below the other) in the packed layout that
/// projections leave: columns [h * d, (h + 1) * d) are head h.
///
/// query [batch * n_q, num_heads * Dk], key [batch * n_kv, num_kv_heads * Dk], value [batch * n_kv, num_kv_heads * Dv]
/// -> [batch * n_q, num_heads * Dv]. Throws std::invalid_argument where sizes do not fit together.
///
/// @code
/// using rows = heed::rows<float>;  // 16 tokens, 8 heads on 2 key/value heads of 64
/// const rows query = rows::Random(16, 8 * 64), key = rows::Random(16, 2 * 64), value = rows::Random(16, 2 * 64);
/// const rows out = heed::multi_head_attention(query, key, value, 8, 2);  // 16 x 512
/// @endcode
template <typename Query, typename Key, typename Value, typename... Terms>
auto multi_head_attention(const Query& query, const Key& key, const Value& value, index num_heads, index num_kv_heads,
                          const attention_options& options = {}, index batch = 1, const Terms&... terms) {
  return detail::packed_attention("multi_head_attention", query, key, value, num_heads, num_kv_heads, options, batch, terms...);
}

HEED_NAMESPACE_END
