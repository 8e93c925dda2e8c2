#pragma once

#include <heed/detail/inputs.hpp>
#include <heed/detail/linear_problem.hpp>
#include <heed/detail/run_linear.hpp>
#include <heed/linear_attention.hpp>
#include <heed/workspace.hpp>

#include <optional>
#include <type_traits>

HEED_NAMESPACE_BEGIN

// Linear attention that corrects what it already knows: a key's new value replaces the state's
// answer to that key by the share beta,
//   S = diag(exp(g)) S;   S = S + beta k (v - S^T k)^T;   o = scale S^T q
// without a gate DeltaNet (Schlag et al. 2021), with a gate per token gated DeltaNet (Yang et al.
// 2025), with one per key dimension KDA. Keys should have unit length and beta be in [0, 2], or the
// state may grow without bound. The chunked form is the WY form: one triangular system a chunk
// (Yang et al. 2024). Terms: log_gate and carry, as for linear_attention.

/// The options of the delta rule.
struct delta_rule_options {
  /// Multiplies the read. Absent: 1 / sqrt(head_dim). 0 is a literal 0.
  std::optional<double> scale{};
  /// Tokens that are computed together, at most 48; 0 is the library's choice. It changes time and
  /// rounding, nothing else.
  size_type chunk = 0;
  /// Instruction set, threads, pool.
  heed::execution execution{};
};

namespace detail {
/// What the linear problem of the delta rule has of its options.
inline linear_attention_options linear_options(const delta_rule_options& options) {
  linear_attention_options same;
  same.scale = options.scale;
  same.chunk = options.chunk;
  same.execution = options.execution;
  return same;
}

/// beta, and the terms, compared with what the delta rule takes.
template <typename Scalar, typename Beta, typename... Terms>
tensor_view<const accumulator_t<Scalar>> delta_beta(const tensor_view<Beta>& beta) {
  static_assert(std::is_same<std::remove_const_t<Beta>, accumulator_t<Scalar>>::value,
                "beta must have the scalar of the state: float for half and bfloat16");
  static_assert(
      (!std::is_same<typename purpose_of<Terms>::type, bonus_term<accumulator_t<Scalar>>>::value &&
       ...),
      "bonus is no term of the delta rule");
  return beta;
}

template <typename Scalar, typename Query, typename Key, typename Value, typename Beta,
          typename... Terms>
linear_problem<Scalar> make_delta_problem(
    const char* function, const tensor_view<Query>& query, const tensor_view<Key>& key,
    const tensor_view<Value>& value, const tensor_view<Scalar>& out, const tensor_view<Beta>& beta,
    const delta_rule_options& options, const Terms&... terms) {
  return make_linear_problem<Scalar>(function, query, key, value, out,
                                     delta_beta<Scalar, Beta, Terms...>(beta),
                                     linear_options(options), terms...);
}

/// beta of one head: T x 1, or 1 x 1 for a constant.
template <typename Acc, typename Beta>
tensor_view<const Acc> beta_view(const Beta& beta) {
  static_assert(is_eigen<Beta> && has_memory<Beta> && bool(Beta::IsVectorAtCompileTime),
                "beta must be an Eigen vector, one number per token");
  static_assert(std::is_same<typename Beta::Scalar, Acc>::value,
                "beta must have the scalar of the state: float for half and bfloat16");
  return {beta.data(), 1, 1, beta.size(), 1, 0, 0, beta.innerStride(), 0};
}
}  // namespace detail

/// The delta rule for every head of every batch entry, through strided views, in chunks that run on
/// the library's kernels.
///
/// query [B, H, T, d_k], key [B, H_kv, T, d_k], value [B, H_kv, T, d_v], beta [B, H_kv, T, 1] (each
/// extent may be 1) -> out [B, H, T, d_v]. There may be more value heads than key heads, as in
/// linear attention (Qwen3-Next). With T = 0 nothing is written and the state stays.
/// Throws std::invalid_argument for sizes that do not fit together, options out of range, and an
/// out or carry that overlaps itself, the other or an input, before anything is written. Allocates
/// nothing once `memory` has grown. Scalars without a kernel take the recurrent form.
template <typename Query, typename Key, typename Value, typename Beta, typename Scalar,
          typename... Terms>
void multi_head_delta_rule_into(const tensor_view<Query>& query, const tensor_view<Key>& key,
                                const tensor_view<Value>& value, const tensor_view<Beta>& beta,
                                const tensor_view<Scalar>& out, const delta_rule_options& options,
                                workspace& memory, const Terms&... terms) {
  detail::chunked(detail::make_delta_problem<Scalar>("multi_head_delta_rule_into", query, key,
                                                     value, out, beta, options, terms...),
                  memory);
}

/// The bytes of the workspace that this call of multi_head_delta_rule_into takes: out does not
/// matter. 0 where it takes the recurrent form, which allocates a state and three rows for each
/// head.
template <typename Query, typename Key, typename Value, typename Beta, typename... Terms>
size_type multi_head_delta_rule_workspace_bytes(
    const tensor_view<Query>& query, const tensor_view<Key>& key, const tensor_view<Value>& value,
    const tensor_view<Beta>& beta, const delta_rule_options& options, const Terms&... terms) {
  using Scalar = std::remove_const_t<Query>;
  return detail::bytes_of(detail::make_linear_shape_problem<Scalar>(
      "multi_head_delta_rule_workspace_bytes", query, key, value,
      detail::delta_beta<Scalar, Beta, Terms...>(beta), detail::linear_options(options), terms...));
}

/// The same, token after token, for any scalar type: the oracle of the chunked form.
template <typename Query, typename Key, typename Value, typename Beta, typename Scalar,
          typename... Terms>
void recurrent_multi_head_delta_rule_into(
    const tensor_view<Query>& query, const tensor_view<Key>& key, const tensor_view<Value>& value,
    const tensor_view<Beta>& beta, const tensor_view<Scalar>& out,
    const delta_rule_options& options, const Terms&... terms) {
  detail::recurrent(detail::make_delta_problem<Scalar>(
      "recurrent_multi_head_delta_rule_into", query, key, value, out, beta, options, terms...));
}

/// The delta rule of one head: query T x d_k, key T x d_k, value T x d_v, beta T -> T x d_v. Throws
/// std::invalid_argument where sizes do not fit.
///
/// @code
/// const heed::rows<float> query = heed::rows<float>::Random(100, 16),
///                         value = heed::rows<float>::Random(100, 8);
/// const heed::rows<float> key = query.rowwise().normalized();
/// const Eigen::VectorXf beta = Eigen::VectorXf::Constant(100, 0.5f);
/// const auto out = heed::delta_rule(query, key, value, beta);  // 100 x 8
/// @endcode
template <typename Query, typename Key, typename Value, typename Beta, typename... Terms>
auto delta_rule(const Query& query, const Key& key, const Value& value, const Beta& beta,
                const delta_rule_options& options = {}, const Terms&... terms) {
  const detail::inputs<deduced, Eigen::Dynamic, Eigen::Dynamic, Query, Key, Value> in(
      "delta_rule", query, key, value);
  using Scalar = typename decltype(in)::scalar;
  typename decltype(in)::output out(in.query.rows, in.value.cols);
  workspace memory;
  detail::chunked(detail::make_delta_problem<Scalar>(
                      "delta_rule", in.query, in.key, in.value, writable_view(out),
                      detail::beta_view<accumulator_t<Scalar>>(beta), options, terms...),
                  memory);
  return out;
}

/// The same, token after token, for any scalar type.
template <typename Query, typename Key, typename Value, typename Beta, typename... Terms>
auto recurrent_delta_rule(const Query& query, const Key& key, const Value& value, const Beta& beta,
                          const delta_rule_options& options = {}, const Terms&... terms) {
  const detail::inputs<deduced, Eigen::Dynamic, Eigen::Dynamic, Query, Key, Value> in(
      "recurrent_delta_rule", query, key, value);
  using Scalar = typename decltype(in)::scalar;
  typename decltype(in)::output out(in.query.rows, in.value.cols);
  detail::recurrent(detail::make_delta_problem<Scalar>(
      "recurrent_delta_rule", in.query, in.key, in.value, writable_view(out),
      detail::beta_view<accumulator_t<Scalar>>(beta), options, terms...));
  return out;
}

HEED_NAMESPACE_END
