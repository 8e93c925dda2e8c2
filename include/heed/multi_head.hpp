#pragma once

#include <heed/attention.hpp>
#include <heed/reference.hpp>

#include <type_traits>

HEED_NAMESPACE_BEGIN

/// Attention of every head of every batch entry, through strided views: [B,H,N,D], [B,N,H,D],
/// slices of a packed tensor, strides of 0.
///
/// query [B, H, n_q, Dk], key [B, H_kv, n_kv, Dk], value [B, H_kv, n_kv, Dv] -> out [B, H, n_q,
/// Dv], lse [B, H, n_q, 1] or {} to leave it out. Query head h reads key/value head h / (H / H_kv):
/// H_kv = H is multi-head, 1 multi-query, between them grouped-query attention (Ainslie et al.
/// 2023). A row that sees no key is 0, its lse -infinity. Throws std::invalid_argument for sizes
/// that do not fit together, H not a multiple of H_kv among them, and where out or lse overlaps
/// itself, the other or anything that the call reads, before anything is written; out may be the
/// columns of one matrix that query, key and value leave free. Allocates nothing once `memory` has
/// grown.
///
/// @code
/// // 2 sequences of 16 queries and 32 keys; 8 heads on 2 key/value heads of 64
/// std::vector<float> query(2 * 8 * 16 * 64, 1.0f), key(2 * 2 * 32 * 64, 1.0f), value(key),
///     out(query.size());
/// heed::workspace memory;
/// heed::multi_head_attention_into(heed::bhnd(query.data(), 2, 8, 16, 64),
///                                 heed::bhnd(key.data(), 2, 2, 32, 64),
///                                 heed::bhnd(value.data(), 2, 2, 32, 64),
///                                 heed::bhnd(out.data(), 2, 8, 16, 64), {},
///                                 heed::attention_options(), memory);
/// assert(std::abs(out.back() - 1) < 1e-6f);
/// @endcode
template <typename Query, typename Key, typename Value, typename Scalar,
          typename Lse = detail::absent, typename... Terms>
void multi_head_attention_into(const tensor_view<Query>& query, const tensor_view<Key>& key,
                               const tensor_view<Value>& value, const tensor_view<Scalar>& out,
                               const Lse& lse, const attention_options& options, workspace& memory,
                               const Terms&... terms) {
  detail::forward(detail::make_problem<Scalar>("multi_head_attention_into", query, key, value, out,
                                               detail::lse_of<Scalar>(lse), options, terms...),
                  memory);
}

/// The bytes of the workspace that this call of multi_head_attention_into takes: out and lse do not
/// matter. With key_lengths, those of its largest need at any lengths.
template <typename Query, typename Key, typename Value, typename... Terms>
size_type multi_head_attention_workspace_bytes(const tensor_view<Query>& query,
                                               const tensor_view<Key>& key,
                                               const tensor_view<Value>& value,
                                               const attention_options& options,
                                               const Terms&... terms) {
  return detail::bytes_of(detail::make_shape_problem<std::remove_const_t<Query>>(
      "multi_head_attention_workspace_bytes", query, key, value, options, terms...));
}

/// The same computed directly, head by head: the oracle of multi_head_attention_into.
template <typename Query, typename Key, typename Value, typename Scalar,
          typename Lse = detail::absent, typename... Terms>
void reference_multi_head_attention_into(const tensor_view<Query>& query,
                                         const tensor_view<Key>& key,
                                         const tensor_view<Value>& value,
                                         const tensor_view<Scalar>& out, const Lse& lse,
                                         const attention_options& options, const Terms&... terms) {
  detail::reference(detail::make_problem<Scalar>("reference_multi_head_attention_into", query, key,
                                                 value, out, detail::lse_of<Scalar>(lse), options,
                                                 terms...));
}

/// The same into a matrix of its own, for which no memory has to be ready: batch entry b, token i
/// and head h are columns [h * Dv, (h + 1) * Dv) of row b * n_q + i, [B * n_q, H * Dv] in all.
///
/// @code
/// const std::vector<float> query(2 * 8 * 16 * 64, 1.0f),
///     key(2 * 2 * 32 * 64, 1.0f);  // 8 heads on 2 key/value heads
/// const auto keys = heed::bhnd(key.data(), 2, 2, 32, 64);
/// const heed::rows<float> out =
///     heed::multi_head_attention(heed::bhnd(query.data(), 2, 8, 16, 64), keys, keys);  // 32 x 512
/// @endcode
template <typename Query, typename Key, typename Value, typename... Terms>
auto multi_head_attention(const tensor_view<Query>& query, const tensor_view<Key>& key,
                          const tensor_view<Value>& value, const attention_options& options = {},
                          const Terms&... terms) {
  using Scalar = std::remove_const_t<Query>;
  constexpr const char* name = "multi_head_attention";
  const detail::problem<Scalar> shape =
      detail::make_shape_problem<Scalar>(name, query, key, value, options, terms...);
  rows<Scalar> out(detail::product(name, "batch * n_q", {query.batch, query.rows}),
                   detail::product(name, "num_heads * Dv", {query.heads, value.cols}));
  if (out.size() == 0) return out;
  workspace memory;
  detail::forward(
      detail::make_problem<Scalar>(name, query, key, value,
                                   split_heads(writable_view(out), query.heads, query.batch),
                                   tensor_view<accumulator_t<Scalar>>(), options, terms...),
      memory);
  return out;
}

/// How heads are packed in the columns of a matrix, as a projection leaves them: columns [h * d, (h
/// + 1) * d) are head h, and the rows of `batch` sequences of one length are one below the other.
struct packed_heads {
  size_type num_heads;     ///< of the queries and the output
  size_type num_kv_heads;  ///< of keys and values; num_heads is a multiple of it
  size_type batch = 1;     ///< how many sequences
};

namespace detail {
/// query, key and value with packed heads, as views of their heads.
template <typename Query, typename Key, typename Value>
class packed_inputs {
  static_assert(is_eigen<Query> && is_eigen<Key> && is_eigen<Value>,
                "query, key and value must be Eigen matrices, Maps, blocks or expressions");
  using query_scalar = typename scalar_of<Query>::type;
  static_assert(scalars_fit<query_scalar, typename scalar_of<Key>::type,
                            typename scalar_of<Value>::type>::value);

  input<query_scalar, Query> query_;
  input<query_scalar, Key> key_;
  input<query_scalar, Value> value_;

 public:
  using scalar = query_scalar;

  packed_inputs(const char* name, const Query& q, const Key& k, const Value& v,
                const packed_heads& heads)
      : query_(q),
        key_(k),
        value_(v),
        query(split(name, "query", query_.view, "num_heads", heads.num_heads, heads.batch)),
        key(split(name, "key", key_.view, "num_kv_heads", heads.num_kv_heads, heads.batch)),
        value(split(name, "value", value_.view, "num_kv_heads", heads.num_kv_heads, heads.batch)) {}
  packed_inputs(const packed_inputs&) = delete;

  template <typename Scalar>
  static tensor_view<Scalar> split(const char* name, const char* what,
                                   const tensor_view<Scalar>& packed, const char* parts_name,
                                   size_type parts, size_type batch) {
    check_multiple(name, what, packed.cols, "columns", parts_name, parts);
    check_multiple(name, what, packed.rows, "rows", "batch", batch);
    return split_heads(packed, parts, batch);
  }

  tensor_view<const scalar> query, key, value;
};

/// packed_multi_head_attention under the name of the function that was called.
template <typename Query, typename Key, typename Value, typename... Terms>
auto packed_attention(const char* name, const Query& query, const Key& key, const Value& value,
                      const packed_heads& heads, const attention_options& options,
                      const Terms&... terms) {
  const packed_inputs<Query, Key, Value> in(name, query, key, value, heads);
  rows<typename decltype(in)::scalar> out(query.rows(), heads.num_heads * in.value.cols);
  workspace memory;
  forward(make_problem(name, in.query, in.key, in.value,
                       split_heads(writable_view(out), heads.num_heads, heads.batch), {}, options,
                       terms...),
          memory);
  return out;
}
}  // namespace detail

/// multi_head_attention of matrices whose heads are packed in their columns.
///
/// query [batch * n_q, num_heads * Dk], key [batch * n_kv, num_kv_heads * Dk], value [batch * n_kv,
/// num_kv_heads * Dv]
/// -> [batch * n_q, num_heads * Dv]. Throws std::invalid_argument where sizes do not fit together.
///
/// @code
/// using rows = heed::rows<float>;  // 16 tokens, 8 heads on 2 key/value heads of 64
/// const rows query = rows::Random(16, 8 * 64), key = rows::Random(16, 2 * 64),
///            value = rows::Random(16, 2 * 64);
/// const rows out = heed::packed_multi_head_attention(query, key, value, {8, 2});  // 16 x 512
/// @endcode
template <typename Query, typename Key, typename Value, typename... Terms>
auto packed_multi_head_attention(const Query& query, const Key& key, const Value& value,
                                 const packed_heads& heads, const attention_options& options = {},
                                 const Terms&... terms) {
  return detail::packed_attention("packed_multi_head_attention", query, key, value, heads, options,
                                  terms...);
}

/// The same into the caller's memory: out [batch * n_q, num_heads * Dv], lse [batch * n_q,
/// num_heads] or {} to leave it out. Throws and allocates as multi_head_attention_into does; an
/// argument without memory of its own is evaluated first.
template <typename Query, typename Key, typename Value, typename Out, typename Lse = detail::absent,
          typename... Terms>
void packed_multi_head_attention_into(const Query& query, const Key& key, const Value& value,
                                      const packed_heads& heads, Out&& out, Lse&& lse,
                                      const attention_options& options, workspace& memory,
                                      const Terms&... terms) {
  constexpr const char* name = "packed_multi_head_attention_into";
  const detail::packed_inputs<Query, Key, Value> in(name, query, key, value, heads);
  const auto split = [&](const char* what, const auto& packed) {
    return in.split(name, what, packed, "num_heads", heads.num_heads, heads.batch);
  };
  auto sums = detail::lse_of<typename decltype(in)::scalar>(lse);
  if (!detail::is_none(sums)) sums = split("lse", sums);
  detail::forward(detail::make_problem(name, in.query, in.key, in.value,
                                       split("out", writable_view(out)), sums, options, terms...),
                  memory);
}

/// The bytes of the workspace that this call of packed_multi_head_attention_into takes: out and lse
/// do not matter. With key_lengths, those of its largest need at any lengths.
template <typename Query, typename Key, typename Value, typename... Terms>
size_type packed_multi_head_attention_workspace_bytes(const Query& query, const Key& key,
                                                      const Value& value, const packed_heads& heads,
                                                      const attention_options& options = {},
                                                      const Terms&... terms) {
  constexpr const char* name = "packed_multi_head_attention_workspace_bytes";
  const detail::packed_inputs<Query, Key, Value> in(name, query, key, value, heads);
  return detail::bytes_of(
      detail::make_shape_problem(name, in.query, in.key, in.value, options, terms...));
}

HEED_NAMESPACE_END
