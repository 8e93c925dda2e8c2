#pragma once

#include <heed/detail/check.hpp>
#include <heed/detail/inputs.hpp>
#include <heed/detail/number.hpp>
#include <heed/detail/score.hpp>

#include <cmath>
#include <limits>
#include <type_traits>

HEED_NAMESPACE_BEGIN

/// softmax(scale * scores) along each row, with the row's maximum subtracted before the exponential
/// so that nothing overflows.
///
/// scores n_q x n_kv -> n_q x n_kv; every row sums to 1. A score of -infinity has weight 0; a row
/// of only those, or of no columns, is 0. Throws std::invalid_argument for a scale that is not
/// finite, or not 0 but out of the range of the scores' type.
///
/// @code
/// const Eigen::MatrixXf scores = Eigen::MatrixXf::Random(6, 10);
/// const auto weights = heed::scaled_softmax(scores, 0.125);
/// assert(std::abs(weights.row(0).sum() - 1) < 1e-5f);
/// @endcode
template <typename Scores>
auto scaled_softmax(const Scores& scores, double scale = 1) {
  static_assert(detail::is_eigen<Scores>, "scaled_softmax takes an Eigen matrix or expression");
  using Scalar = typename detail::scalar_of<Scores>::type;
  static_assert(
      detail::is_real<Scalar>,
      "scaled_softmax takes a real, non-integer type: cast integers, split complex numbers");
  using Acc = accumulator_t<Scalar>;
  using std::exp;
  detail::check_number<Acc>("scaled_softmax", "scale", scale);

  const detail::input<Scalar, Scores> in(scores);
  detail::check_view("scaled_softmax", "scores", in.view);
  rows<Scalar, Scores::ColsAtCompileTime> weights(in.view.rows, in.view.cols);
  row_vector<Acc> row(in.view.cols);
  for (size_type i = 0; i < weights.rows(); ++i) {
    Acc largest(std::numeric_limits<Acc>::lowest()), sum(0);
    for (size_type j = 0; j < row.size(); ++j) {
      const Acc score(in.view(0, 0, i, j));
      row(j) = detail::is_negative_infinity(score)
                   ? score
                   : Acc(score * Acc(scale));  // a masked score stays masked, whatever the scale
      if (row(j) > largest) largest = row(j);
    }
    for (size_type j = 0; j < row.size(); ++j) {
      row(j) = detail::is_negative_infinity(row(j)) ? Acc(0) : Acc(exp(Acc(row(j) - largest)));
      sum += row(j);
    }
    const bool empty = detail::is_empty_row(sum);
    for (size_type j = 0; j < row.size(); ++j)
      weights(i, j) = Scalar(empty ? Acc(0) : Acc(row(j) / sum));
  }
  return weights;
}

/// The gradient with respect to the scores of scaled_softmax(scores, scale), from its result and
/// the gradient with respect to that: scale * P_ij (dP_ij - sum_k P_ik dP_ik).
///
/// weights and grad_weights n_q x n_kv, of one scalar type -> n_q x n_kv. A score whose weight is 0
/// has a gradient of 0, and its grad_weights is not read: masked scores, and rows of only those.
/// half and bfloat16 are summed up in float. Throws std::invalid_argument for sizes that differ and
/// for a scale as scaled_softmax does.
///
/// @code
/// const Eigen::MatrixXf scores = Eigen::MatrixXf::Random(6, 10);
/// const Eigen::MatrixXf grad_weights = Eigen::MatrixXf::Random(6, 10);
/// const auto weights = heed::scaled_softmax(scores, 0.125);
/// const auto grad_scores = heed::scaled_softmax_backward(weights, grad_weights, 0.125);
/// assert(grad_scores.rowwise().sum().norm() < 1e-5f);  // more for all changes nothing
/// @endcode
template <typename Weights, typename GradWeights>
auto scaled_softmax_backward(const Weights& weights, const GradWeights& grad_weights,
                             double scale = 1) {
  constexpr const char* name = "scaled_softmax_backward";
  static_assert(detail::is_eigen<Weights> && detail::is_eigen<GradWeights>,
                "scaled_softmax_backward takes Eigen matrices or expressions");
  using Scalar = typename detail::scalar_of<Weights>::type;
  static_assert(std::is_same<Scalar, typename detail::scalar_of<GradWeights>::type>::value,
                "weights and grad_weights must have one scalar type: cast one to the other's");
  static_assert(detail::is_real<Scalar>,
                "scaled_softmax_backward takes real numbers with fractions: cast whole numbers, "
                "split complex ones");
  using Acc = accumulator_t<Scalar>;
  detail::check_number<Acc>(name, "scale", scale);
  detail::check_equal(name, "grad_weights: rows", grad_weights.rows(), "weights' rows",
                      weights.rows());
  detail::check_equal(name, "grad_weights: columns", grad_weights.cols(), "weights' columns",
                      weights.cols());

  const detail::input<Scalar, Weights> p(weights);
  const detail::input<Scalar, GradWeights> dp(grad_weights);
  detail::check_view(name, "weights", p.view);
  detail::check_view(name, "grad_weights", dp.view);
  rows<Scalar, Weights::ColsAtCompileTime> grad_scores(p.view.rows, p.view.cols);
  for (size_type i = 0; i < grad_scores.rows(); ++i) {
    Acc mean(0);
    for (size_type j = 0; j < grad_scores.cols(); ++j) {
      const Acc weight(p.view(0, 0, i, j));
      if (!detail::is_zero(weight)) mean += Acc(weight * Acc(dp.view(0, 0, i, j)));
    }
    for (size_type j = 0; j < grad_scores.cols(); ++j) {
      const Acc weight(p.view(0, 0, i, j));
      grad_scores(i, j) =
          Scalar(detail::is_zero(weight)
                     ? Acc(0)
                     : Acc(Acc(Acc(scale) * weight) * Acc(Acc(dp.view(0, 0, i, j)) - mean)));
    }
  }
  return grad_scores;
}

HEED_NAMESPACE_END
