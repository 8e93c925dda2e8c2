#pragma once

#include <heed/detail/inputs.hpp>
#include <heed/detail/linear_problem.hpp>
#include <heed/detail/run_linear.hpp>
#include <heed/linear_options.hpp>
#include <heed/workspace.hpp>

#include <cmath>
#include <optional>
#include <type_traits>

HEED_NAMESPACE_BEGIN

// Attention without the softmax: a state S, d_k x d_v, sums the outer products of keys and values,
// and a query reads it. Time is O(n), and the state is all that has to be kept of the past. One
// family, which differ in their terms:
//
//   no term                      causal linear attention; with feature_map and normalise that of
//                                Katharopoulos et al. 2020
//   log_gate, one per head       RetNet (retention_log_gates; Sun et al. 2023)
//   log_gate, [T x 1]            a gate per token: Mamba-2's SSD with query = C, key = B,
//                                value = dt x, log_gate = dt A, scale = 1
//   log_gate, [T x d_k]          a gate per token and key dimension: GLA (Yang et al. 2024)
//   the same with bonus          RWKV-6, scale = 1 (Peng et al. 2024)
//
// The term carry hands a state [batch, num_kv_heads, d_k, d_v] from call to call, with one column
// more for `normalise`. Terms follow the options in any order. They look at the caller's memory and
// have the scalar of the state.

/// The natural logarithm of the decay that the state takes before each token: S = diag(exp(g)) S.
/// Sizes [batch, num_kv_heads, T, d_k] are each 1 (the same for all) or the call's own. -infinity
/// forgets the state, a NaN in it too; a gate that is NaN makes all that it scales NaN; a positive
/// number is refused. An entry of a state that decays counts as 0 below 2^-102 (double: 2^-998):
/// 2^24 times the smallest normal number, so that its product with a query of 2^-24 or more is a
/// normal number, which a CPU multiplies fast.
template <typename Scalar>
detail::log_gate_term<std::remove_const_t<Scalar>> log_gate(const tensor_view<Scalar>& gates) {
  return {gates};
}

/// The same for every batch entry and head: T x 1, T x d_k, or 1 x 1 for a constant.
template <typename Derived>
detail::log_gate_term<typename Derived::Scalar> log_gate(const Eigen::DenseBase<Derived>& gates) {
  return {view(gates)};
}

/// One constant per head.
template <typename Vector>
detail::log_gate_term<typename Vector::Scalar> log_gate_per_head(const Vector& gates) {
  static_assert(
      detail::is_eigen<Vector> && detail::has_memory<Vector> && bool(Vector::IsVectorAtCompileTime),
      "log_gate_per_head takes an Eigen vector, one number per head");
  return {{gates.data(), 1, gates.size(), 1, 1, 0, gates.innerStride(), 0, 0}};
}

/// RetNet's decays, gamma_h = 1 - 2^(-5 - h) for head h, as logarithms (Sun et al. 2023,
/// section 2.2).
template <typename Scalar>
row_vector<Scalar> retention_log_gates(size_type num_heads) {
  row_vector<Scalar> gates(detail::checked_size("retention_log_gates", "num_heads", num_heads));
  for (size_type h = 0; h < num_heads; ++h)
    gates(h) = Scalar(std::log1p(-std::exp2(-5.0 - static_cast<double>(h))));
  return gates;
}

/// Each token reads the state before its own update and sees itself with the weights u instead: o =
/// scale (S^T q + (q . (u * k)) v). u has one number per key dimension; [batch, num_kv_heads, 1,
/// d_k], each extent 1 or the call's own. u = 0 is a strictly causal read.
template <typename Scalar>
detail::bonus_term<std::remove_const_t<Scalar>> bonus(const tensor_view<Scalar>& u) {
  return {u};
}

/// The same u, a vector of d_k numbers, for every batch entry and head.
template <typename Vector>
detail::bonus_term<typename Vector::Scalar> bonus(const Eigen::DenseBase<Vector>& u) {
  static_assert(detail::has_memory<Vector> && bool(Vector::IsVectorAtCompileTime),
                "bonus takes an Eigen vector, one number per key dimension");
  return {{u.derived().data(), 1, 1, 1, u.size(), 0, 0, 0, u.derived().innerStride()}};
}

/// Where the state goes that each sequence has after every `tokens` tokens, and after its last: for
/// a cache of prefixes, or to go back. Of linear attention and the delta rule. states [entries,
/// num_kv_heads, d_k, d_v], with one column more for `normalise`: those of a sequence one after the
/// other, ceil(T / tokens) of them, then those of the next sequence. All results are those of calls
/// of `tokens` tokens with a carry, to the bit.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(100, 16);
/// std::vector<float> states(4 * 16 * 16);  // after 32, 64, 96 and 100 tokens
/// const auto out = heed::linear_attention(
///     x, x, x, {}, heed::chunk_states(heed::bhnd(states.data(), 4, 1, 16, 16), 32));
/// @endcode
template <typename Scalar>
detail::chunk_states_term<Scalar> chunk_states(const tensor_view<Scalar>& states,
                                               size_type tokens) {
  return {states, tokens};
}

/// Linear attention of every head of every batch entry, through strided views, in chunks that run
/// on the library's kernels.
///
/// query [B, H, T, d_k], key [B, H_kv, T, d_k], value [B, H_kv, T, d_v] -> out [B, H, T, d_v].
/// Query head h reads the state of head h / (H / H_kv). There may be more value heads than key
/// heads, H_v: then a state, a gate, a bonus and an output head for each of them, of which H_v /
/// H_k share a key head, and H_v / H a query head where there are fewer of those (the groups of
/// Mamba-2). With T = 0 nothing is written and the state
/// stays. Throws std::invalid_argument for sizes that do not fit together, options out of range,
/// and an out or carry that overlaps itself, the other or an input, before anything is written.
/// Allocates nothing once `memory` has grown. Scalars without a kernel (long double, an autodiff
/// type) take the recurrent form.
template <typename Query, typename Key, typename Value, typename Scalar, typename... Terms>
void multi_head_linear_attention_into(const tensor_view<Query>& query, const tensor_view<Key>& key,
                                      const tensor_view<Value>& value,
                                      const tensor_view<Scalar>& out,
                                      const linear_attention_options& options, workspace& memory,
                                      const Terms&... terms) {
  detail::chunked(
      detail::make_linear_problem<Scalar>("multi_head_linear_attention_into", query, key, value,
                                          out, std::nullopt, options, terms...),
      memory);
}

/// The bytes of the workspace that this call of multi_head_linear_attention_into takes: out does
/// not matter. 0 where it takes the recurrent form, which allocates a state and three rows for each
/// head.
template <typename Query, typename Key, typename Value, typename... Terms>
size_type multi_head_linear_attention_workspace_bytes(const tensor_view<Query>& query,
                                                      const tensor_view<Key>& key,
                                                      const tensor_view<Value>& value,
                                                      const linear_attention_options& options,
                                                      const Terms&... terms) {
  return detail::bytes_of(detail::make_linear_shape_problem<std::remove_const_t<Query>>(
      "multi_head_linear_attention_workspace_bytes", query, key, value, std::nullopt, options,
      terms...));
}

/// The same, token after token: for any scalar type, and the oracle of the chunked form.
template <typename Query, typename Key, typename Value, typename Scalar, typename... Terms>
void recurrent_multi_head_linear_attention_into(const tensor_view<Query>& query,
                                                const tensor_view<Key>& key,
                                                const tensor_view<Value>& value,
                                                const tensor_view<Scalar>& out,
                                                const linear_attention_options& options,
                                                const Terms&... terms) {
  detail::recurrent(
      detail::make_linear_problem<Scalar>("recurrent_multi_head_linear_attention_into", query, key,
                                          value, out, std::nullopt, options, terms...));
}

/// Linear attention of one head: query T x d_k, key T x d_k, value T x d_v -> T x d_v. Throws
/// std::invalid_argument where sizes do not fit.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(100, 16);
/// const Eigen::MatrixXf log_gates =
///     Eigen::MatrixXf::Constant(100, 1, -0.1f);           // a decay of exp(-0.1) a token
/// Eigen::MatrixXf state = Eigen::MatrixXf::Zero(16, 16);  // is left ready for the next tokens
/// const auto out =
///     heed::linear_attention(x, x, x, {}, heed::log_gate(log_gates), heed::carry(state));
/// @endcode
template <typename Query, typename Key, typename Value, typename... Terms>
auto linear_attention(const Query& query, const Key& key, const Value& value,
                      const linear_attention_options& options = {}, const Terms&... terms) {
  const detail::inputs<deduced, Eigen::Dynamic, Eigen::Dynamic, Query, Key, Value> in(
      "linear_attention", query, key, value);
  typename decltype(in)::output out(in.query.rows, in.value.cols);
  workspace memory;
  detail::chunked(detail::make_linear_problem("linear_attention", in.query, in.key, in.value,
                                              writable_view(out), std::nullopt, options, terms...),
                  memory);
  return out;
}

/// The same, token after token, for any scalar type.
template <typename Query, typename Key, typename Value, typename... Terms>
auto recurrent_linear_attention(const Query& query, const Key& key, const Value& value,
                                const linear_attention_options& options = {},
                                const Terms&... terms) {
  const detail::inputs<deduced, Eigen::Dynamic, Eigen::Dynamic, Query, Key, Value> in(
      "recurrent_linear_attention", query, key, value);
  typename decltype(in)::output out(in.query.rows, in.value.cols);
  detail::recurrent(detail::make_linear_problem("recurrent_linear_attention", in.query, in.key,
                                                in.value, writable_view(out), std::nullopt, options,
                                                terms...));
  return out;
}

HEED_NAMESPACE_END
