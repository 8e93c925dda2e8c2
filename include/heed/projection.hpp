#pragma once

#include <heed/attention.hpp>
#include <heed/detail/check.hpp>
#include <heed/detail/inputs.hpp>
#include <heed/multi_head.hpp>

HEED_NAMESPACE_BEGIN

/// X W, a linear layer without bias: x n x d_model, weight d_model x d_out -> n x d_out.
/// Throws std::invalid_argument where x's columns are not weight's rows.
template <typename X, typename Weight>
auto project(const X& x, const Weight& weight) {
  static_assert(detail::is_eigen<X> && detail::is_eigen<Weight>, "x and weight must be Eigen matrices, Maps, blocks or expressions");
  using Scalar = typename detail::scalar_of<X>::type;
  static_assert(std::is_same<Scalar, typename detail::scalar_of<Weight>::type>::value, "x and weight must have one scalar type");
  detail::check_equal("project", "weight: rows", weight.rows(), "x's d_model", x.cols());
  rows<Scalar, Weight::ColsAtCompileTime> out = x * weight;
  return out;
}

/// The three projections of a sequence: query = X W_Q, key = X W_K, value = X W_V.
template <typename Scalar, int Dk = Eigen::Dynamic, int Dv = Eigen::Dynamic>
struct qkv {
  rows<Scalar, Dk> query, key;
  rows<Scalar, Dv> value;
};

/// Q = X W_Q, K = X W_K, V = X W_V, without bias: x n x d_model, w_q and w_k d_model x d_k, w_v d_model x d_v.
/// Throws std::invalid_argument where the sizes do not fit together.
template <typename X, typename Wq, typename Wk, typename Wv>
auto project_qkv(const X& x, const Wq& w_q, const Wk& w_k, const Wv& w_v) {
  detail::check_equal("project_qkv", "w_q: rows", w_q.rows(), "x's d_model", x.cols());
  detail::check_equal("project_qkv", "w_k: rows", w_k.rows(), "x's d_model", x.cols());
  detail::check_equal("project_qkv", "w_v: rows", w_v.rows(), "x's d_model", x.cols());
  return qkv<typename X::Scalar, Wq::ColsAtCompileTime, Wv::ColsAtCompileTime>{project(x, w_q), project(x, w_k), project(x, w_v)};
}

/// Self-attention of one sequence: attention(X W_Q, X W_K, X W_V).
///
/// x n x d_model, w_q and w_k d_model x d_k, w_v d_model x d_v -> n x d_v. Throws std::invalid_argument where the sizes do not fit together.
template <typename X, typename Wq, typename Wk, typename Wv, typename... Terms>
auto self_attention(const X& x, const Wq& w_q, const Wk& w_k, const Wv& w_v, const attention_options& options = {}, const Terms&... terms) {
  const auto projected = project_qkv(x, w_q, w_k, w_v);
  return attention(projected.query, projected.key, projected.value, options, terms...);
}

/// Self-attention of `batch` sequences of one length, one below the other: x [batch * n, d_model] -> [batch * n, d_v].
template <typename X, typename Wq, typename Wk, typename Wv, typename... Terms>
auto self_attention_batch(const X& x, index batch, const Wq& w_q, const Wk& w_k, const Wv& w_v, const attention_options& options = {},
                          const Terms&... terms) {
  const auto projected = project_qkv(x, w_q, w_k, w_v);
  return multi_head_attention(projected.query, projected.key, projected.value, 1, 1, options, batch, terms...);
}

HEED_NAMESPACE_END
