#pragma once

#include <heed/terms.hpp>

HEED_NAMESPACE_BEGIN

// The terms of a backward call, after those of the forward call: the gradient of the log-sum-exp
// that comes in, and those of terms that go out. An outgoing one is written, has the sizes of its
// term, and is the sum over all that the term was broadcast to. Its scalar is that of the scores.

namespace detail {
template <typename Scalar>
struct grad_lse_term {
  tensor_view<const Scalar> view;
};
template <typename Scalar>
struct grad_bias_term {
  tensor_view<Scalar> view;
};
template <typename Scalar>
struct grad_alibi_term {
  tensor_view<Scalar> view;
};
/// The gradient of a term that is one number per query head.
template <typename Scalar, typename Tag>
struct grad_head_term {
  Scalar* values = nullptr;
  size_type count = 0;
};
template <typename Scalar, typename Tag>
memory_region region_of(const grad_head_term<Scalar, Tag>& term) {
  return {term.values, sizeof(Scalar), {1, 1, 1, term.count}, {0, 0, 0, 1}};
}
template <typename Tag, typename Vector>
auto make_grad_head_term(Vector& values) {
  static_assert(is_eigen<Vector> && has_memory<Vector> && bool(Vector::IsVectorAtCompileTime),
                "this term takes an Eigen vector");
  static_assert(int(Vector::InnerStrideAtCompileTime) == 1,
                "this term takes a vector whose elements are side by side in memory");
  static_assert(!std::is_const<std::remove_pointer_t<decltype(values.data())>>::value,
                "an output must not be const");
  return grad_head_term<typename Vector::Scalar, Tag>{values.data(), values.size()};
}

/// What a backward call has besides the terms of the forward call.
template <typename Acc>
struct gradient_terms {
  std::optional<grad_lse_term<Acc>> grad_lse;
  std::optional<grad_bias_term<Acc>> grad_bias;
  std::optional<grad_alibi_term<Acc>> grad_alibi;
  std::optional<grad_head_term<Acc, sinks_tag>> grad_sinks;
  std::optional<grad_head_term<Acc, logit_scales_tag>> grad_logit_scales;
};

/// All terms of one backward call.
template <typename Acc>
struct backward_terms : terms<Acc>, gradient_terms<Acc> {
  using terms<Acc>::add;
  void add(const grad_lse_term<Acc>& term) { this->grad_lse = term; }
  void add(const grad_bias_term<Acc>& term) { this->grad_bias = term; }
  void add(const grad_alibi_term<Acc>& term) { this->grad_alibi = term; }
  void add(const grad_head_term<Acc, sinks_tag>& term) { this->grad_sinks = term; }
  void add(const grad_head_term<Acc, logit_scales_tag>& term) { this->grad_logit_scales = term; }
  void add(const max_logits_term<Acc>&) {
    static_assert(sizeof(Acc) == 0, "max_logits is a result of the forward call: leave it out");
  }
  template <typename Function>
  void add(const score_function_term<Function, void>&) {
    static_assert(sizeof(Function) == 0,
                  "the gradient of a score function needs its derivative: "
                  "score_function(function, derivative)");
  }
};
}  // namespace detail

/// The gradient with respect to the log-sum-exp of each query row, [batch, heads, n_q, 1]: of a
/// loss that depends on it, or of parts that are merged by it. Absent: 0.
template <typename Scalar>
detail::grad_lse_term<std::remove_const_t<Scalar>> grad_lse(const tensor_view<Scalar>& values) {
  return {values};
}
/// The same for one head: a vector of n_q numbers.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// const auto forward = heed::attention_with_lse(x, x, x);
/// const heed::rows<float> nothing = heed::rows<float>::Zero(10, 64);
/// const Eigen::VectorXf ones = Eigen::VectorXf::Ones(10);  // the loss is the sum of lse
/// const auto gradient = heed::attention_backward(x, x, x, forward.out, forward.lse, nothing, {},
///                                                heed::grad_lse(ones));
/// assert(gradient.value.isZero());
/// @endcode
template <typename Derived>
detail::grad_lse_term<typename Derived::Scalar> grad_lse(const Eigen::DenseBase<Derived>& values) {
  return grad_lse(view(values));
}

/// Where the gradient of the term `bias` goes: [batch, heads, n_q, n_kv], each 1 or the call's own,
/// as in the bias. 0 for pairs that are not visible.
template <typename Scalar>
detail::grad_bias_term<Scalar> grad_bias(const tensor_view<Scalar>& values) {
  return {values};
}
/// The same for one matrix n_q x n_kv (or 1 x n_kv, n_q x 1) for every batch entry and head.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// const heed::rows<float> values = heed::rows<float>::Random(10, 10);
/// heed::rows<float> gradient(10, 10);
/// const auto forward = heed::attention_with_lse(x, x, x, {}, heed::bias(values));
/// heed::attention_backward(x, x, x, forward.out, forward.lse, x, {}, heed::bias(values),
///                          heed::grad_bias(gradient));
/// assert(gradient.rowwise().sum().norm() < 1e-4);  // more for all keys changes nothing
/// @endcode
template <typename Matrix, typename = std::enable_if_t<detail::is_eigen<Matrix>>>
auto grad_bias(Matrix&& values) {
  return grad_bias(writable_view(values));
}

/// Where the gradient of the term `alibi` goes: of the slopes' size.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// const Eigen::VectorXf slope = Eigen::VectorXf::Constant(1, 0.5f);
/// Eigen::VectorXf gradient(1);
/// const auto forward = heed::attention_with_lse(x, x, x, {}, heed::alibi(slope));
/// heed::attention_backward(x, x, x, forward.out, forward.lse, x, {}, heed::alibi(slope),
///                          heed::grad_alibi(gradient));
/// @endcode
template <typename Slopes>
auto grad_alibi(Slopes&& slopes) {
  using Matrix = std::decay_t<Slopes>;
  static_assert(detail::fits_heads<Matrix>::value);
  return detail::grad_alibi_term<typename Matrix::Scalar>{
      detail::heads_view<Matrix>(writable_view(slopes))};
}

/// Where the gradient of the term `sinks` goes: one logit a query head.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// const Eigen::VectorXf logit = Eigen::VectorXf::Constant(1, 2.0f);
/// Eigen::VectorXf gradient(1);
/// const auto forward = heed::attention_with_lse(x, x, x, {}, heed::sinks(logit));
/// heed::attention_backward(x, x, x, forward.out, forward.lse, forward.out, {}, heed::sinks(logit),
///                          heed::grad_sinks(gradient));
/// assert(gradient(0) < 0);  // half the square of the output falls as the sink grows
/// @endcode
template <typename Vector>
auto grad_sinks(Vector&& logits) {
  return detail::make_grad_head_term<detail::sinks_tag>(logits);
}

/// Where the gradient of the term `logit_scales` goes: one factor a query head.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// const Eigen::VectorXf factor = Eigen::VectorXf::Ones(1);
/// Eigen::VectorXf gradient(1);
/// const auto forward = heed::attention_with_lse(x, x, x, {}, heed::logit_scales(factor));
/// heed::attention_backward(x, x, x, forward.out, forward.lse, x, {}, heed::logit_scales(factor),
///                          heed::grad_logit_scales(gradient));
/// @endcode
template <typename Vector>
auto grad_logit_scales(Vector&& factors) {
  return detail::make_grad_head_term<detail::logit_scales_tag>(factors);
}

HEED_NAMESPACE_END
