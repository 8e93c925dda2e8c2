#pragma once

#include <heed/detail/check.hpp>
#include <heed/detail/inputs.hpp>
#include <heed/detail/number.hpp>
#include <heed/detail/score.hpp>

#include <cmath>

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

HEED_NAMESPACE_END
