#pragma once

#include <heed/attention.hpp>
#include <heed/reference.hpp>

HEED_NAMESPACE_BEGIN
/// Attention of a ragged batch: sequences of different lengths, one after the other without
/// padding, each attending within itself.
///
/// query [1, H, total_q, Dk], key [1, H_kv, total_kv, Dk], value [1, H_kv, total_kv, Dv] -> out [1,
/// H, total_q, Dv], lse [1, H, total_q, 1] or {}. Sequence b has query rows [query_starts[b],
/// query_starts[b + 1]) and key rows [key_starts[b], key_starts[b + 1]) (the cu_seqlens of other
/// libraries, of 32 or 64 bits: one entry more than there are sequences, the first 0); a sequence
/// may be empty. Causal and window count within the sequence. Throws std::invalid_argument for
/// starts that decrease, do not end at the number of rows or overlap an output, and as
/// multi_head_attention_into does. Allocates nothing once `memory` has grown.
///
/// @code
/// const std::vector<std::int32_t> starts{0, 3, 10};  // two sequences, of 3 and 7 tokens
/// std::vector<float> x(4 * 10 * 64, 1.0f), out(x.size());
/// const auto heads = heed::bhnd(x.data(), 1, 4, 10, 64);
/// heed::workspace memory;
/// heed::ragged_attention_into(heads, heads, heads, heed::bhnd(out.data(), 1, 4, 10, 64), {},
///                             starts, starts, heed::attention_options(), memory);
/// @endcode
template <typename Query, typename Key, typename Value, typename Scalar,
          typename Lse = detail::absent, typename... Terms>
void ragged_attention_into(const tensor_view<Query>& query, const tensor_view<Key>& key,
                           const tensor_view<Value>& value, const tensor_view<Scalar>& out,
                           const Lse& lse, const index_list& query_starts,
                           const index_list& key_starts, const attention_options& options,
                           workspace& memory, const Terms&... terms) {
  detail::forward(detail::make_problem<Scalar>("ragged_attention_into", query, key, value, out,
                                               detail::lse_of<Scalar>(lse), options, terms...,
                                               detail::starts_term{query_starts, key_starts}),
                  memory);
}

/// The bytes of the workspace that this call of ragged_attention_into takes: out and lse do not
/// matter.
template <typename Query, typename Key, typename Value, typename... Terms>
size_type ragged_attention_workspace_bytes(
    const tensor_view<Query>& query, const tensor_view<Key>& key, const tensor_view<Value>& value,
    const index_list& query_starts, const index_list& key_starts, const attention_options& options,
    const Terms&... terms) {
  constexpr const char* name = "ragged_attention_workspace_bytes";
  return detail::bytes_of(detail::make_shape_problem<std::remove_const_t<Query>>(
      name, query, key, value, options, terms..., detail::starts_term{query_starts, key_starts}));
}

/// The same computed directly: the oracle of ragged_attention_into.
template <typename Query, typename Key, typename Value, typename Scalar,
          typename Lse = detail::absent, typename... Terms>
void reference_ragged_attention_into(const tensor_view<Query>& query, const tensor_view<Key>& key,
                                     const tensor_view<Value>& value,
                                     const tensor_view<Scalar>& out, const Lse& lse,
                                     const index_list& query_starts, const index_list& key_starts,
                                     const attention_options& options, const Terms&... terms) {
  detail::reference(detail::make_problem<Scalar>(
      "reference_ragged_attention_into", query, key, value, out, detail::lse_of<Scalar>(lse),
      options, terms..., detail::starts_term{query_starts, key_starts}));
}

HEED_NAMESPACE_END
