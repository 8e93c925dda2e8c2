#include <heed/softmax.hpp>

#include "support/example.hpp"
#include "support/refusal.hpp"

using heed::scaled_softmax;

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
