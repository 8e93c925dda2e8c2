#include <heed/softmax.hpp>

#include <unsupported/Eigen/AutoDiff>

#include "support/differences.hpp"
#include "support/refusal.hpp"

using heed::scaled_softmax;
using heed::scaled_softmax_backward;

namespace {
constexpr double infinity = std::numeric_limits<double>::infinity();
}

TEST_CASE("scaled_softmax gives the numbers worked out by hand") {
  Eigen::MatrixXd scores(3, 2);
  scores << 0, std::log(3.0), 5, 5, 1000, 1000 + std::log(3.0);
  const Eigen::MatrixXd weights = scaled_softmax(scores);
  CHECK(weights(0, 0) == Approx(0.25).epsilon(1e-15));
  CHECK(weights(0, 1) == Approx(0.75).epsilon(1e-15));
  CHECK(weights(1, 0) == 0.5);
  CHECK(weights(2, 1) == Approx(0.75).epsilon(1e-12));
  CHECK(scaled_softmax(scores, 2)(0, 1) == Approx(0.9).epsilon(1e-15));
  CHECK((scaled_softmax(scores, 0).array() == 0.5).all());
}

TEST_CASE("scaled_softmax: a score of -infinity has weight 0, a row of nothing else is 0") {
  Eigen::MatrixXd scores(2, 3);
  scores << 1, -infinity, 1, -infinity, -infinity, -infinity;
  Eigen::MatrixXd want(2, 3);
  want << 0.5, 0, 0.5, 0, 0, 0;
  CHECK(scaled_softmax(scores) == want);
  CHECK(scaled_softmax(scores, -1) == want);  // what is masked stays so, whatever the scale
  CHECK(scaled_softmax(scores, 0) == want);
}

TEST_CASE("scaled_softmax: NaN reaches its row alone") {
  heed::rows<float> scores = testing::random_rows<float>(3, 5, 1);
  const heed::rows<float> clean = scaled_softmax(scores);
  scores(1, 2) = std::numeric_limits<float>::quiet_NaN();
  const heed::rows<float> weights = scaled_softmax(scores);
  CHECK(weights.row(0) == clean.row(0));
  CHECK(weights.row(1).array().isNaN().all());
  CHECK(weights.row(2) == clean.row(2));
}

TEMPLATE_TEST_CASE(
    "every row of scaled_softmax sums to 1, and a constant added to its scores changes nothing", "",
    float, double, long double) {
  const heed::rows<TestType> scores = testing::random_rows<TestType>(20, 33, 2);
  const heed::rows<TestType> weights = scaled_softmax(scores, 0.5);
  // 33 weights with a rounding or two each, all of them positive
  CHECK((weights.rowwise().sum().array() - TestType(1)).abs().maxCoeff() <=
        33 * std::numeric_limits<TestType>::epsilon());
  CHECK((weights.array() > TestType(0)).all());
  // adding 4 rounds a score by half an ulp of 8 at most: that is the relative error of a weight,
  // and of the sum
  const heed::rows<TestType> shifted = scaled_softmax((scores.array() + TestType(4)).matrix(), 0.5);
  CHECK(((shifted - weights).array() / weights.array()).abs().maxCoeff() <=
        16 * std::numeric_limits<TestType>::epsilon());
}

TEST_CASE("scaled_softmax takes any expression, size and 16-bit type") {
  const heed::rows<float> scores = testing::random_rows<float>(4, 6, 3);
  const Eigen::MatrixXf columns = scores;
  CHECK(scaled_softmax(columns) == scaled_softmax(scores));
  CHECK(scaled_softmax(scores + heed::rows<float>::Zero(4, 6)) == scaled_softmax(scores));
  CHECK(scaled_softmax(scores.block(1, 2, 2, 3)) ==
        scaled_softmax(heed::rows<float>(scores.block(1, 2, 2, 3))));
  CHECK(scaled_softmax(heed::rows<float>(0, 3)).rows() == 0);
  CHECK(scaled_softmax(heed::rows<float>(3, 0)).cols() == 0);
  CHECK(scaled_softmax(Eigen::Matrix3d::Zero())(0, 0) == Approx(1.0 / 3));
  const heed::rows<Eigen::half> half = scaled_softmax(scores.cast<Eigen::half>());
  CHECK((half.cast<float>() - scaled_softmax(scores)).cwiseAbs().maxCoeff() <=
        0x1p-10f);  // inputs of about 2 rounded to 11 bits
}

TEST_CASE("scaled_softmax refuses a scale that is not finite, or not of the scores' type") {
  const Eigen::Matrix2f scores = Eigen::Matrix2f::Zero();
  testing::check_refused([&] { scaled_softmax(scores, infinity); },
                         {"heed::scaled_softmax:", "scale", "inf"});
  testing::check_refused([&] { scaled_softmax(scores, std::nan("")); },
                         {"heed::scaled_softmax:", "scale", "nan"});
  testing::check_refused([&] { scaled_softmax(scores, 1e300); },
                         {"heed::scaled_softmax:", "scale", "1e+300"});
  testing::check_refused([&] { scaled_softmax(scores, 1e-50); },
                         {"heed::scaled_softmax:", "scale", "1e-50"});
}

TEST_CASE("scaled_softmax_backward gives the numbers worked out by hand") {
  Eigen::RowVector2d weights(0.25, 0.75), grad_weights(1, 5);  // the mean is 4
  CHECK(scaled_softmax_backward(weights, grad_weights) == Eigen::RowVector2d(-0.75, 0.75));
  CHECK(scaled_softmax_backward(weights, grad_weights, 2) == Eigen::RowVector2d(-1.5, 1.5));
  CHECK(scaled_softmax_backward(weights, grad_weights, 0).isZero(0));
}

TEST_CASE("scaled_softmax_backward is the gradient of scaled_softmax, by differences") {
  const double scale = GENERATE(1.0, 0.3, -2.0);
  const heed::rows<double> scores = testing::random_rows<double>(4, 6, 4),
                           grad = testing::random_rows<double>(4, 6, 5);
  heed::rows<long double> wide = scores.cast<long double>();
  testing::check_differences(scaled_softmax_backward(scaled_softmax(scores, scale), grad, scale),
                             wide,
                             [&] { return testing::inner(scaled_softmax(wide, scale), grad); });
}

TEST_CASE("scaled_softmax_backward agrees with derivatives that scaled_softmax carries") {
  using dual = Eigen::AutoDiffScalar<Eigen::Vector3d>;
  const heed::rows<double> scores = testing::random_rows<double>(1, 3, 6),
                           grad = testing::random_rows<double>(1, 3, 7);
  heed::rows<dual> with = scores.cast<dual>();
  for (int axis = 0; axis < 3; ++axis) with(0, axis).derivatives() = Eigen::Vector3d::Unit(axis);
  const auto weights = scaled_softmax(with, 0.5);
  const auto got = scaled_softmax_backward(scaled_softmax(scores, 0.5), grad, 0.5);
  const auto carrying = scaled_softmax_backward(weights, grad.cast<dual>().eval(), 0.5);
  for (int axis = 0; axis < 3; ++axis) {
    double sum = 0;
    for (int j = 0; j < 3; ++j) sum += weights(0, j).derivatives()(axis) * grad(0, j);
    CHECK(got(0, axis) == Approx(sum).margin(1e-15));
    CHECK(carrying(0, axis).value() == Approx(got(0, axis)).margin(1e-15));
  }
}

TEMPLATE_TEST_CASE("scaled_softmax_backward is as exact as its sums", "", float, double,
                   Eigen::half, Eigen::bfloat16) {
  using acc = heed::accumulator_t<TestType>;
  const heed::size_type n = 300;
  const heed::rows<TestType> weights = scaled_softmax(testing::random_rows<TestType>(20, n, 8), 2),
                             grad = testing::random_rows<TestType>(20, n, 9);
  const auto got = scaled_softmax_backward(weights, grad, 2);
  for (heed::size_type i = 0; i < 20; ++i) {
    // the mean of n products has n roundings each of the sum of weights, 1, and of a grad below 2;
    // then a difference and two products, and the rounding of the result
    const long double unit = testing::unit_roundoff<acc>, last = testing::unit_roundoff<TestType>;
    long double mean = 0;
    for (heed::size_type j = 0; j < n; ++j)
      mean += static_cast<long double>(weights(i, j)) * static_cast<long double>(grad(i, j));
    for (heed::size_type j = 0; j < n; ++j) {
      const long double p = static_cast<long double>(weights(i, j)),
                        exact = 2 * p * (static_cast<long double>(grad(i, j)) - mean);
      const long double bound =
          2 * p * 2 * (n + 4) * unit + std::abs(exact) * last +
          static_cast<long double>((std::numeric_limits<TestType>::min)()) * last;
      CHECK(std::abs(static_cast<long double>(got(i, j)) - exact) <= bound);
    }
  }
}

TEST_CASE(
    "scaled_softmax_backward: what is masked has no gradient and is not read; NaN stays in "
    "its row") {
  heed::rows<float> weights = scaled_softmax(testing::random_rows<float>(3, 5, 10)),
                    grad = testing::random_rows<float>(3, 5, 11);
  weights.row(0).setZero();  // sees nothing
  weights(1, 2) = 0;
  heed::rows<float> clean = scaled_softmax_backward(weights, grad);
  grad.row(0).setConstant(std::numeric_limits<float>::quiet_NaN());
  grad(1, 2) = std::numeric_limits<float>::infinity();
  CHECK(scaled_softmax_backward(weights, grad) == clean);
  CHECK(clean.row(0).isZero(0));
  CHECK(clean(1, 2) == 0);
  grad(1, 3) = std::numeric_limits<float>::quiet_NaN();
  const heed::rows<float> got = scaled_softmax_backward(weights, grad);
  CHECK(std::isnan(got(1, 0)));
  CHECK(got(1, 2) == 0);
  CHECK(got.row(2) == clean.row(2));
  weights(2, 1) = std::numeric_limits<float>::quiet_NaN();
  CHECK(scaled_softmax_backward(weights, grad).row(2).array().isNaN().all());
}

TEST_CASE("scaled_softmax_backward takes any expression, and refuses what does not fit") {
  const heed::rows<float> weights = scaled_softmax(testing::random_rows<float>(3, 5, 12)),
                          grad = testing::random_rows<float>(3, 5, 13);
  const Eigen::MatrixXf columns = weights;
  CHECK(scaled_softmax_backward(columns, grad) == scaled_softmax_backward(weights, grad));
  CHECK(scaled_softmax_backward(weights, grad + heed::rows<float>::Zero(3, 5)) ==
        scaled_softmax_backward(weights, grad));
  CHECK(scaled_softmax_backward(heed::rows<float>(0, 3), heed::rows<float>(0, 3)).rows() == 0);
  testing::check_refused([&] { scaled_softmax_backward(weights, grad.topRows(2)); },
                         {"heed::scaled_softmax_backward: grad_weights: rows 2", "rows 3"});
  testing::check_refused([&] { scaled_softmax_backward(weights, grad.leftCols(2)); },
                         {"grad_weights: columns 2", "columns 5"});
  testing::check_refused([&] { scaled_softmax_backward(weights, grad, infinity); },
                         {"heed::scaled_softmax_backward: scale", "inf"});
  const Eigen::Map<const heed::rows<float>> nowhere(nullptr, 3, 5);
  testing::check_refused([&] { scaled_softmax_backward(weights, nowhere); },
                         {"grad_weights: a null pointer"});
}
