#pragma once

#include <heed/detail/backward_inputs.hpp>
#include <heed/detail/run_backward.hpp>
#include <heed/gradient_terms.hpp>
#include <heed/ragged.hpp>
#include <heed/reference_backward.hpp>
#include <heed/workspace.hpp>

HEED_NAMESPACE_BEGIN

/// The gradients of a loss with respect to query, key and value, from its gradient with respect to
/// the output of attention (Dao et al. 2022, algorithm 4): O(n) memory; no weights are kept.
///
/// query n_q x Dk, key n_kv x Dk, value n_kv x Dv as in the forward call; out n_q x Dv and lse
/// (n_q, natural log) are its results, grad_out n_q x Dv is the gradient of the loss with respect
/// to out -> {query, key, value}, each of its input's size. Options and terms are those of the
/// forward call; gradient terms follow (grad_lse, grad_bias, grad_alibi, grad_sinks,
/// grad_logit_scales); relative_keys, relative_values and weight_function are refused. For half and
/// bfloat16, sums are floats, and out may be given in float. A row that sees no key has a gradient
/// of 0 and adds nothing to others; nothing hidden is read into a gradient. The same bits for any
/// number of threads. Throws std::invalid_argument for sizes that do not fit together and for
/// options out of range.
///
/// @code
/// const heed::rows<float> query = heed::rows<float>::Random(6, 64),
///                         key = heed::rows<float>::Random(10, 64),
///                         value = heed::rows<float>::Random(10, 32);
/// const auto forward = heed::attention_with_lse(query, key, value);
/// // the loss is the sum of out
/// const heed::rows<float> grad_out = heed::rows<float>::Ones(6, 32);
/// const auto gradient =
///     heed::attention_backward(query, key, value, forward.out, forward.lse, grad_out);
/// assert(gradient.key.rows() == 10 && gradient.value.cols() == 32);
/// @endcode
template <typename Scalar = deduced, int Dk = Eigen::Dynamic, int Dv = Dk, typename Query,
          typename Key, typename Value, typename Out, typename Lse, typename GradOut,
          typename... Terms>
auto attention_backward(const Query& query, const Key& key, const Value& value, const Out& out,
                        const Lse& lse, const GradOut& grad_out,
                        const attention_options& options = {}, const Terms&... terms) {
  constexpr const char* name = "attention_backward";
  const detail::backward_inputs<Scalar, Dk, Dv, Query, Key, Value, Out, Lse, GradOut> in(
      name, query, key, value, out, lse, grad_out);
  typename decltype(in)::result result = in.make_result();
  workspace memory;
  detail::backward(
      detail::make_backward_problem(name, in.query, in.key, in.value, in.out, in.lse, in.grad_out,
                                    writable_view(result.query), writable_view(result.key),
                                    writable_view(result.value), options, terms...),
      memory);
  return result;
}

/// The same into the caller's matrices, which must not overlap anything that is read; nothing is
/// allocated once the workspace has grown.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// const auto forward = heed::attention_with_lse(x, x, x);
/// heed::rows<float> dq(10, 64), dk(10, 64), dv(10, 64);
/// heed::workspace memory;
/// heed::attention_backward_into(x, x, x, forward.out, forward.lse, x, dq, dk, dv,
///                               heed::attention_options(), memory);
/// @endcode
template <typename Scalar = deduced, int Dk = Eigen::Dynamic, int Dv = Dk, typename Query,
          typename Key, typename Value, typename Out, typename Lse, typename GradOut,
          typename GradQuery, typename GradKey, typename GradValue, typename... Terms>
void attention_backward_into(const Query& query, const Key& key, const Value& value, const Out& out,
                             const Lse& lse, const GradOut& grad_out, GradQuery&& grad_query,
                             GradKey&& grad_key, GradValue&& grad_value,
                             const attention_options& options, workspace& memory,
                             const Terms&... terms) {
  constexpr const char* name = "attention_backward_into";
  const detail::backward_inputs<Scalar, Dk, Dv, Query, Key, Value, Out, Lse, GradOut> in(
      name, query, key, value, out, lse, grad_out);
  detail::backward(
      detail::make_backward_problem(name, in.query, in.key, in.value, in.out, in.lse, in.grad_out,
                                    writable_view(grad_query), writable_view(grad_key),
                                    writable_view(grad_value), options, terms...),
      memory);
}

/// The bytes that attention_backward_into takes of its workspace for such arguments.
template <typename Scalar = deduced, int Dk = Eigen::Dynamic, int Dv = Dk, typename Query,
          typename Key, typename Value, typename Out, typename Lse, typename GradOut,
          typename GradQuery, typename GradKey, typename GradValue, typename... Terms>
size_type attention_backward_workspace_bytes(const Query& query, const Key& key, const Value& value,
                                             const Out& out, const Lse& lse,
                                             const GradOut& grad_out, GradQuery&& grad_query,
                                             GradKey&& grad_key, GradValue&& grad_value,
                                             const attention_options& options = {},
                                             const Terms&... terms) {
  constexpr const char* name = "attention_backward_workspace_bytes";
  const detail::backward_inputs<Scalar, Dk, Dv, Query, Key, Value, Out, Lse, GradOut> in(
      name, query, key, value, out, lse, grad_out);
  return detail::bytes_of(detail::make_backward_problem(
      name, in.query, in.key, in.value, in.out, in.lse, in.grad_out, writable_view(grad_query),
      writable_view(grad_key), writable_view(grad_value), options, terms...));
}

/// The gradients of multi_head_attention_into: batches and heads through strided views.
///
/// query [B, H, n_q, Dk], key [B, H_kv, n_kv, Dk], value [B, H_kv, n_kv, Dv], out and grad_out [B,
/// H, n_q, Dv], lse [B, H, n_q, 1] -> grad_query, grad_key, grad_value of the sizes of query, key
/// and value. With grouped queries the gradient of a key/value head is the sum over its query
/// heads, in ascending order. Keys past a length have a gradient of 0.
///
/// @code
/// std::vector<float> q(2 * 4 * 10 * 64, 0.1f), k(2 * 2 * 10 * 64, 0.2f), out(q.size()),
///     lse(2 * 4 * 10), dq(q.size()), dk(k.size()), dv(k.size());
/// const auto query = heed::bhnd(q.data(), 2, 4, 10, 64), key = heed::bhnd(k.data(), 2, 2, 10, 64);
/// const auto result = heed::bhnd(out.data(), 2, 4, 10, 64),
///            sums = heed::bhnd(lse.data(), 2, 4, 10, 1);
/// heed::workspace memory;
/// const heed::attention_options options;
/// heed::multi_head_attention_into(query, key, key, result, sums, options, memory);
/// heed::multi_head_attention_backward_into(
///     query, key, key, result, sums, query, heed::bhnd(dq.data(), 2, 4, 10, 64),
///     heed::bhnd(dk.data(), 2, 2, 10, 64), heed::bhnd(dv.data(), 2, 2, 10, 64), options, memory);
/// @endcode
template <typename Query, typename Key, typename Value, typename Out, typename Lse,
          typename GradOut, typename Scalar, typename... Terms>
void multi_head_attention_backward_into(
    const tensor_view<Query>& query, const tensor_view<Key>& key, const tensor_view<Value>& value,
    const tensor_view<Out>& out, const tensor_view<Lse>& lse, const tensor_view<GradOut>& grad_out,
    const tensor_view<Scalar>& grad_query, const tensor_view<Scalar>& grad_key,
    const tensor_view<Scalar>& grad_value, const attention_options& options, workspace& memory,
    const Terms&... terms) {
  detail::backward(detail::make_backward_problem<Scalar>(
                       "multi_head_attention_backward_into", query, key, value, out, lse, grad_out,
                       grad_query, grad_key, grad_value, options, terms...),
                   memory);
}

/// The bytes that multi_head_attention_backward_into takes of its workspace for such arguments.
template <typename Query, typename Key, typename Value, typename Out, typename Lse,
          typename GradOut, typename Scalar, typename... Terms>
size_type multi_head_attention_backward_workspace_bytes(
    const tensor_view<Query>& query, const tensor_view<Key>& key, const tensor_view<Value>& value,
    const tensor_view<Out>& out, const tensor_view<Lse>& lse, const tensor_view<GradOut>& grad_out,
    const tensor_view<Scalar>& grad_query, const tensor_view<Scalar>& grad_key,
    const tensor_view<Scalar>& grad_value, const attention_options& options,
    const Terms&... terms) {
  return detail::bytes_of(detail::make_backward_problem<Scalar>(
      "multi_head_attention_backward_workspace_bytes", query, key, value, out, lse, grad_out,
      grad_query, grad_key, grad_value, options, terms...));
}

/// The gradients of ragged_attention_into: sequences of different lengths, one after the other,
/// each within itself. Its arguments are those of multi_head_attention_backward_into with a batch
/// of 1, and the two lists of starts.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// const std::vector<heed::size_type> starts{0, 3, 10};  // sequences of 3 and 7 tokens
/// heed::rows<float> out(10, 64), dq(10, 64), dk(10, 64), dv(10, 64);
/// Eigen::VectorXf lse(10);
/// const auto view = [](auto& rows) { return heed::writable_view(rows); };
/// const auto tokens = heed::view(x);
/// heed::workspace memory;
/// heed::ragged_attention_into(tokens, tokens, tokens, view(out), view(lse), starts, starts, {},
///                             memory);
/// heed::ragged_attention_backward_into(tokens, tokens, tokens, view(out), view(lse), tokens,
///                                      view(dq), view(dk), view(dv), starts, starts, {}, memory);
/// @endcode
template <typename Query, typename Key, typename Value, typename Out, typename Lse,
          typename GradOut, typename Scalar, typename... Terms>
void ragged_attention_backward_into(
    const tensor_view<Query>& query, const tensor_view<Key>& key, const tensor_view<Value>& value,
    const tensor_view<Out>& out, const tensor_view<Lse>& lse, const tensor_view<GradOut>& grad_out,
    const tensor_view<Scalar>& grad_query, const tensor_view<Scalar>& grad_key,
    const tensor_view<Scalar>& grad_value, const index_list& query_starts,
    const index_list& key_starts, const attention_options& options, workspace& memory,
    const Terms&... terms) {
  detail::backward(
      detail::make_ragged_backward_problem<Scalar>(
          "ragged_attention_backward_into", query_starts, key_starts, query, key, value, out, lse,
          grad_out, grad_query, grad_key, grad_value, options, terms...),
      memory);
}

/// The bytes that ragged_attention_backward_into takes of its workspace for such arguments.
template <typename Query, typename Key, typename Value, typename Out, typename Lse,
          typename GradOut, typename Scalar, typename... Terms>
size_type ragged_attention_backward_workspace_bytes(
    const tensor_view<Query>& query, const tensor_view<Key>& key, const tensor_view<Value>& value,
    const tensor_view<Out>& out, const tensor_view<Lse>& lse, const tensor_view<GradOut>& grad_out,
    const tensor_view<Scalar>& grad_query, const tensor_view<Scalar>& grad_key,
    const tensor_view<Scalar>& grad_value, const index_list& query_starts,
    const index_list& key_starts, const attention_options& options, const Terms&... terms) {
  return detail::bytes_of(detail::make_ragged_backward_problem<Scalar>(
      "ragged_attention_backward_workspace_bytes", query_starts, key_starts, query, key, value, out,
      lse, grad_out, grad_query, grad_key, grad_value, options, terms...));
}

HEED_NAMESPACE_END
