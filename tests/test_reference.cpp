#include <heed/merge.hpp>
#include <heed/reference.hpp>
#include <heed/streaming.hpp>

#include <cmath>
#include <limits>
#include <unsupported/Eigen/AutoDiff>

#include "support/example.hpp"
#include "support/refusal.hpp"

using heed::reference_attention;
using heed::reference_attention_with_lse;

namespace {
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

/// One query and two keys whose softmax is known: scores 0 and ln 3, so weights 1/4 and 3/4 over
/// the values 0 and 4.
struct one_and_three {
  Eigen::MatrixXd query = Eigen::MatrixXd::Constant(1, 1, 1), key{2, 1}, value{2, 1};
  heed::attention_options options;
  double tolerance = 1e-14;  // some tens of roundings

  one_and_three() {
    key << 0, std::log(3.0);
    value << 0, 4;
    options.scale = 1;
  }
  /// Runs with the options and holds out and lse against numbers worked out by hand.
  template <typename... Terms>
  void check(double out, double lse, const Terms&... terms) const {
    const auto result = reference_attention_with_lse(query, key, value, options, terms...);
    CHECK(result.out(0, 0) == Approx(out).epsilon(tolerance));
    if (std::isfinite(lse)) {
      CHECK(result.lse(0) == Approx(lse).epsilon(tolerance));
    } else {
      CHECK(result.lse(0) == lse);
    }
  }
};
}  // namespace

TEST_CASE("reference_attention gives the numbers of a worked example") {
  Eigen::MatrixXd q(3, 2), k(3, 2), v(3, 2), out(3, 2);
  q << 0.1, 0.2, 0.3, 0.4, 0.5, 0.6;
  k << 0.7, 0.8, 0.9, 1.0, 1.1, 1.2;
  v << 1, 2, 3, 4, 5, 6;
  // row 1: scores 0.53 / sqrt 2 and 0.67 / sqrt 2, so the second weight is 1 / (1 + exp(-0.14 /
  // sqrt 2)) = 0.524728...
  const double second = 1 / (1 + std::exp(-0.14 / std::sqrt(2.0)));
  heed::attention_options options;
  options.causal = heed::causal::top_left;
  const auto result = reference_attention_with_lse(q, k, v, options);
  CHECK(result.out(0, 0) == 1);
  CHECK(result.out(0, 1) == 2);
  CHECK(result.out(1, 0) == Approx(1 + 2 * second).epsilon(1e-14));
  CHECK(result.out(2, 0) == Approx(3.20658579).epsilon(1e-8));
  CHECK(result.out(2, 1) == Approx(4.20658579).epsilon(1e-8));
  CHECK(result.lse(0) == Approx(0.23 / std::sqrt(2.0)).epsilon(1e-14));
  const double sum = std::exp(0.83 / std::sqrt(2.0)) + std::exp(1.05 / std::sqrt(2.0)) +
                     std::exp(1.27 / std::sqrt(2.0));
  CHECK(result.lse(2) == Approx(std::log(sum)).epsilon(1e-14));
}

TEST_CASE("every option of reference_attention does what its formula says") {
  one_and_three e;
  const double ln3 = std::log(3.0);
  SECTION("none") { e.check(3, std::log(4.0)); }
  SECTION("scale") {
    e.options.scale = 2;
    e.check(3.6, std::log(10.0));
  }
  SECTION("a scale of 0 weighs all alike") {
    e.options.scale = 0;
    e.check(2, std::log(2.0));
  }
  SECTION("softcap: tanh(ln 3) is 0.8") {
    e.options.softcap = 1;
    e.check(4 / (1 + std::exp(-0.8)), std::log(1 + std::exp(0.8)));
  }
  SECTION("softcap comes before the bias") {
    e.options.softcap = 1;
    const Eigen::RowVector2d bias(0.8, 0);
    e.check(2, 0.8 + std::log(2.0), heed::bias(bias));
  }
  SECTION("causal from the top left") {
    e.options.causal = heed::causal::top_left;
    e.check(0, 0);
  }
  SECTION("causal from the bottom right") {
    e.options.causal = heed::causal::bottom_right;
    e.check(3, std::log(4.0));
  }
  SECTION("window") {
    e.options.window_left = 0;
    e.check(4, ln3);
  }
  SECTION("window from the top left") {
    e.options.causal = heed::causal::top_left;
    e.options.window_left = 5;
    e.check(0, 0);
  }
  SECTION("bias") {
    const Eigen::RowVector2d bias(ln3, 0);
    e.check(2, std::log(6.0), heed::bias(bias));
  }
  SECTION("a bias of -infinity masks") {
    const Eigen::RowVector2d bias(-infinity, 0);
    e.check(4, ln3, heed::bias(bias));
  }
  SECTION("keep") {
    const Eigen::Matrix<bool, 1, 2> keep(true, false);
    e.check(0, 0, heed::keep(keep));
  }
  SECTION("nothing kept") {
    const Eigen::Matrix<bool, 1, 2> keep(false, false);
    e.check(0, -infinity, heed::keep(keep));
  }
  SECTION("alibi: the first key is one position away") {
    const Eigen::VectorXd slopes = Eigen::VectorXd::Constant(1, ln3);
    e.check(3.6, std::log(10.0 / 3), heed::alibi(slopes));
  }
  SECTION("a sink takes its share and gives nothing") {
    const Eigen::VectorXd sink = Eigen::VectorXd::Constant(1, std::log(4.0));
    e.check(1.5, std::log(8.0), heed::sinks(sink));
  }
  SECTION("a sink alone") {
    const Eigen::VectorXd sink = Eigen::VectorXd::Constant(1, std::log(4.0));
    const Eigen::Matrix<bool, 1, 2> keep(false, false);
    e.check(0, std::log(4.0), heed::sinks(sink), heed::keep(keep));
  }
  SECTION("a sink of -infinity is no sink") {
    const Eigen::VectorXd sink = Eigen::VectorXd::Constant(1, -infinity);
    e.check(3, std::log(4.0), heed::sinks(sink));
  }
  SECTION("key_lengths") {
    const std::vector<heed::size_type> lengths{1};
    e.check(0, 0, heed::key_lengths(lengths));
  }
}

TEST_CASE("the default scale is one over the root of head_dim") {
  const testing::example<double> e(3, 5, 16, 4);
  heed::attention_options options;
  options.scale = 0.25;
  CHECK(reference_attention(e.query, e.key, e.value) ==
        reference_attention(e.query, e.key, e.value, options));
}

TEST_CASE("bottom_right with more queries than keys leaves the first rows empty") {
  testing::example<double> e(5, 2, 4, 3);
  e.options.causal = heed::causal::bottom_right;
  const auto result = e.reference();
  CHECK((result.out.topRows(3).array() == 0).all());
  CHECK((result.lse.head(3).array() == -infinity).all());
  CHECK(result.out.row(3).isApprox(e.value.row(0), 1e-15));
  CHECK(result.lse.tail(2).allFinite());
}

TEST_CASE("no keys, no queries and no columns are sizes like others") {
  CHECK((testing::example<double>(3, 0, 4, 2).reference().out.array() == 0).all());
  CHECK((testing::example<double>(3, 0, 4, 2).reference().lse.array() == -infinity).all());
  CHECK(testing::example<double>(0, 3, 4, 2).reference().out.rows() == 0);
  CHECK(testing::example<double>(2, 3, 4, 0).reference().out.cols() == 0);
  // without columns every score is 0, so each row is the mean of the values
  const testing::example<double> e(2, 4, 0, 3);
  CHECK(e.reference().out.row(1).isApprox(e.value.colwise().mean(), 1e-15));
}

TEST_CASE(
    "a masked NaN reaches nothing; in a visible key or value it reaches the rows that see it") {
  testing::example<double> e(4, 6, 5, 3);
  e.options.causal = heed::causal::top_left;
  const auto clean = e.reference();
  SECTION("key") {
    e.key.row(2).setConstant(nan_value);
    const auto result = e.reference();
    CHECK(result.out.topRows(2) == clean.out.topRows(2));
    CHECK(result.out.bottomRows(2).array().isNaN().all());
    CHECK(result.lse.tail(2).array().isNaN().all());
  }
  SECTION("value") {
    e.value(3, 1) = nan_value;
    const auto result = e.reference();
    CHECK(result.out.topRows(3) == clean.out.topRows(3));
    CHECK(result.out.col(0) == clean.out.col(0));
    CHECK(std::isnan(result.out(3, 1)));
    CHECK(result.lse == clean.lse);
  }
}

TEST_CASE("scores that would overflow or vanish do not") {
  for (const double shift : {800.0, -800.0}) {
    one_and_three e;
    e.tolerance = 800 * 0x1p-52;  // the scores are rounded at the size of the shift
    const Eigen::RowVector2d bias(shift, shift);
    CAPTURE(shift);
    e.check(3, std::log(4.0) + shift, heed::bias(bias));
  }
}

TEST_CASE("the mean of large values is finite") {
  for (const float size : {1e38f, 3e38f})
    for (const heed::size_type n : {40, 300}) {
      testing::example<float> e(3, n, 8, 2);
      e.value.col(0).setConstant(size);
      e.value.col(1) =
          (e.value.col(1).array() > 0).select(heed::rows<float>::Constant(n, 1, size), -size);
      const auto exact = e.cast<double>().reference();
      // a weight is wrong by as much as its score (see below); then n sums are rounded, each at
      // most `size`
      const double bound = double(n + 6 * 8 + 4) * 0x1p-24 * double(size);
      CAPTURE(size, n);
      for (const heed::rows<float>& out : {e.reference().out, e.run([](const auto&... all) {
                                             return heed::streaming_attention(all...);
                                           })})
        CHECK((out.cast<double>() - exact.out).cwiseAbs().maxCoeff() <= bound);
      const auto merged =
          heed::merge(e.reference(), e.reference());  // the same keys twice: the same mean
      CHECK((merged.out.cast<double>() - exact.out).cwiseAbs().maxCoeff() <= bound);
    }
}

TEST_CASE("reference_attention carries derivatives") {
  using dual = Eigen::AutoDiffScalar<Eigen::Vector3d>;
  using matrix = Eigen::Matrix<dual, Eigen::Dynamic, Eigen::Dynamic>;
  const one_and_three e;
  matrix query = e.query.cast<dual>(), key = e.key.cast<dual>(), value = e.value.cast<dual>();
  query(0, 0).derivatives() = Eigen::Vector3d::Unit(0);
  key(1, 0).derivatives() = Eigen::Vector3d::Unit(1);
  value(1, 0).derivatives() = Eigen::Vector3d::Unit(2);
  const auto result = reference_attention_with_lse(query, key, value, e.options);
  // out = 4 w with w = 3/4 the sigmoid of query * key
  const double slope = 4 * 0.75 * 0.25;
  CHECK(result.out(0, 0).value() == Approx(3));
  CHECK(result.out(0, 0).derivatives()(0) == Approx(slope * std::log(3.0)));
  CHECK(result.out(0, 0).derivatives()(1) == Approx(slope));
  CHECK(result.out(0, 0).derivatives()(2) == Approx(0.75));
  CHECK(result.lse(0).derivatives()(1) == Approx(0.75));
}

TEST_CASE("reference_attention in float agrees with double, in double with long double") {
  // n terms of rounding error eps / 2 each, in the dot products (d_k of them) and in the sums over
  // keys; a weight's relative error is its score's absolute error, and a score is at most about 6
  // here.
  const heed::size_type n_kv = 60, d_k = 32;
  testing::example<double> e(20, n_kv, d_k, 8);
  e.options.softcap = 3;
  const double terms = double(n_kv) + 6 * double(d_k);
  const double scale = double(testing::magnitude(e.value));
  CHECK(testing::max_error(e.reference().out, e.cast<long double>().reference().out) <=
        terms * scale * 0x1p-53);
  const testing::example<float> f = e.cast<float>();
  CHECK(testing::max_error(f.reference().out, f.cast<double>().reference().out) <=
        terms * scale * 0x1p-24);
}

TEST_CASE("reference_attention refuses sizes that do not fit") {
  const testing::example<double> e(3, 5, 4, 2);
  const Eigen::MatrixXd wide = Eigen::MatrixXd::Zero(5, 7), tall = Eigen::MatrixXd::Zero(6, 2);
  testing::check_refused([&] { reference_attention(e.query, wide, e.value); },
                         {"heed::reference_attention:", "key: head_dim 7", "query's head_dim 4"});
  testing::check_refused(
      [&] { reference_attention_with_lse(e.query, e.key, tall); },
      {"heed::reference_attention_with_lse:", "value: kv_length 6", "key's kv_length 5"});
}
