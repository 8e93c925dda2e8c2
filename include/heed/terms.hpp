#pragma once

#include <heed/detail/params.hpp>
#include <heed/tensor.hpp>

#include <Eigen/Core>

HEED_NAMESPACE_BEGIN

// What may follow the options of a call, in any order, each at most once:
//   attention(query, key, value, options, keep(mask), alibi(slopes))
// A term looks at the caller's memory; it does not own it. A term made from an empty view or vector is as good as absent.

namespace detail {
template <typename Scalar>
struct keep_term {
  tensor_view<const Scalar> view;
};
template <typename Scalar>
struct bias_term {
  tensor_view<const Scalar> view;
};
template <typename Scalar>
struct alibi_term {
  const Scalar* slopes;
  index count;
};
template <typename Scalar>
struct sinks_term {
  const Scalar* logits;
  index count;
};
struct key_lengths_term {
  index_list lengths;
};

/// All terms of one call, typed for its accumulator. A null pointer: the term was not given.
template <typename Acc>
struct terms {
  tensor_view<const bool> keep;
  tensor_view<const Acc> bias;
  alibi_term<Acc> alibi{nullptr, 0};
  sinks_term<Acc> sinks{nullptr, 0};
  key_lengths_term key_lengths;

  void add(const keep_term<bool>& term) { keep = term.view; }
  void add(const bias_term<Acc>& term) { bias = term.view; }
  void add(const alibi_term<Acc>& term) { alibi = term; }
  void add(const sinks_term<Acc>& term) { sinks = term; }
  void add(const key_lengths_term& term) { key_lengths = term; }
  template <typename Other>
  void add(const Other&) {
    static_assert(sizeof(Other) == 0,
                  "not a term of attention, or one of another scalar type: keep takes bool; bias, alibi and sinks take the type of the "
                  "scores (float for float, half and bfloat16; double for double)");
  }
};

template <typename Vector>
void check_is_vector() {
  static_assert(is_eigen<Vector> && has_memory<Vector> && bool(Vector::IsVectorAtCompileTime), "this term takes an Eigen vector");
  static_assert(int(Vector::InnerStrideAtCompileTime) == 1, "this term takes a vector whose elements lie side by side");
}
}  // namespace detail

/// A boolean mask, true = attend. Its sizes [batch, heads, n_q, n_kv] are each 1 (the same for all) or the call's own.
inline detail::keep_term<bool> keep(const tensor_view<const bool>& mask) { return {mask}; }

/// A boolean mask n_q x n_kv (or 1 x n_kv, n_q x 1) for every batch entry and head, true = attend.
template <typename Derived>
detail::keep_term<bool> keep(const Eigen::DenseBase<Derived>& mask) {
  static_assert(std::is_same<typename Derived::Scalar, bool>::value, "keep takes a matrix of bool; a float mask is a bias");
  return {view(mask)};
}

/// Numbers added to the scores after scale and softcap; -infinity masks. Sizes broadcast as those of keep. The scalar is that of the scores.
template <typename Scalar>
detail::bias_term<std::remove_const_t<Scalar>> bias(const tensor_view<Scalar>& values) {
  return {values};
}

/// A bias n_q x n_kv (or 1 x n_kv, n_q x 1) for every batch entry and head.
template <typename Derived>
detail::bias_term<typename Derived::Scalar> bias(const Eigen::DenseBase<Derived>& values) {
  return {view(values)};
}

/// Attention with linear biases: adds -slope * |i + n_kv - n_q - j|, one slope a query head (Press, Smith and Lewis 2022).
template <typename Vector>
detail::alibi_term<typename Vector::Scalar> alibi(const Vector& slopes) {
  detail::check_is_vector<Vector>();
  return {slopes.data(), slopes.size()};
}

/// One logit a query head that joins the softmax's denominator and has no value (Xiao et al. 2024). A logit of -infinity is no sink.
template <typename Vector>
detail::sinks_term<typename Vector::Scalar> sinks(const Vector& logits) {
  detail::check_is_vector<Vector>();
  return {logits.data(), logits.size()};
}

/// The number of valid keys of each batch entry, 0 to n_kv; what lies behind them is never read. Bottom-right alignment counts from them.
inline detail::key_lengths_term key_lengths(const index_list& lengths) { return {lengths}; }

HEED_NAMESPACE_END
