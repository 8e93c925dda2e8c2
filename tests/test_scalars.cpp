// Scalars of the caller's own: with derivatives whose number is known when the program runs, and
// one that counts what is done to it.

#include <heed/causal_conv.hpp>
#include <heed/delta_rule.hpp>
#include <heed/linear_attention.hpp>
#include <heed/merge.hpp>
#include <heed/multi_head.hpp>
#include <heed/projection.hpp>
#include <heed/reference.hpp>
#include <heed/rwkv7.hpp>
#include <heed/selective_scan.hpp>
#include <heed/softmax.hpp>
#include <heed/streaming.hpp>
#include <heed/weights.hpp>

#include <unsupported/Eigen/AutoDiff>

#include "support/example.hpp"

namespace {

using fixed = Eigen::AutoDiffScalar<Eigen::Vector3d>;
using dynamic = Eigen::AutoDiffScalar<Eigen::VectorXd>;

/// A number that is the variable `axis`, or a constant (-1). Those of a dynamic size have three
/// derivatives, or none: `bare`.
template <typename Dual>
Dual number(double x, int axis, bool bare) {
  Dual dual(x);
  if (axis >= 0 || !bare) dual.derivatives() = Eigen::Vector3d::Zero();
  if (axis >= 0) dual.derivatives()(axis) = 1;
  return dual;
}
template <typename Dual>
heed::rows<Dual> numbers(heed::size_type n, heed::size_type cols, unsigned seed, bool bare) {
  const heed::rows<double> plain = testing::random_rows<double>(n, cols, seed);
  heed::rows<Dual> all(n, cols);
  for (heed::size_type i = 0; i < n; ++i)
    for (heed::size_type c = 0; c < cols; ++c) all(i, c) = number<Dual>(plain(i, c), -1, bare);
  return all;
}

/// Constants but for one number of the queries, the keys and the values.
template <typename Dual>
struct inputs {
  heed::rows<Dual> query, key, value, bias, gate;
  heed::row_vector<Dual> slope, factor;

  explicit inputs(bool bare)
      : query(numbers<Dual>(4, 3, 1, bare)),
        key(numbers<Dual>(70, 3, 2, bare)),
        value(numbers<Dual>(70, 2, 3, bare)),
        bias(numbers<Dual>(4, 70, 4, bare)),
        gate(70, 1),
        slope(1),
        factor(1) {
    query(1, 2) = number<Dual>(0.3, 0, bare);
    key(66, 1) = number<Dual>(-0.2, 1, bare);  // in the second tile of keys
    value(5, 0) = number<Dual>(0.7, 2, bare);
    slope(0) = number<Dual>(0.25, -1, bare);
    factor(0) = number<Dual>(1.5, -1, bare);
    for (heed::size_type t = 0; t < 70; ++t) gate(t, 0) = number<Dual>(-0.01 * double(t), -1, bare);
  }
};

/// Values and derivatives, a row a number.
template <typename Matrix>
Eigen::MatrixXd spread(const Matrix& matrix) {
  Eigen::MatrixXd all = Eigen::MatrixXd::Zero(matrix.size(), 4);
  for (heed::size_type i = 0; i < matrix.rows(); ++i)
    for (heed::size_type c = 0; c < matrix.cols(); ++c) {
      const auto& x = matrix(i, c);
      const heed::size_type n = i * matrix.cols() + c;
      all(n, 0) = x.value();
      if (x.derivatives().size() == 3) all.row(n).tail<3>() = x.derivatives();
    }
  return all;
}

/// What `path` makes of numbers with derivatives of a dynamic size is what it makes of those of a
/// fixed one.
template <typename Path>
void check_dynamic(const Path& path) {
  const Eigen::MatrixXd want = spread(path(inputs<fixed>(false)));
  CHECK(want.rightCols<3>().norm() > 0);
  for (const bool bare : {false, true}) {
    CAPTURE(bare);
    CHECK(spread(path(inputs<dynamic>(bare))) == want);
  }
}

heed::attention_options causal(double softcap = 0) {
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  options.softcap = softcap;
  return options;
}

/// A number that counts the operations on all of its kind.
struct counted {
  counted(double x = 0) : value(x) {}
  double value;
  static inline long operations = 0;
};
counted count(double x) {
  ++counted::operations;
  return counted(x);
}
counted operator+(counted a, counted b) { return count(a.value + b.value); }
counted operator-(counted a, counted b) { return count(a.value - b.value); }
counted operator*(counted a, counted b) { return count(a.value * b.value); }
counted operator/(counted a, counted b) { return count(a.value / b.value); }
counted operator-(counted a) { return count(-a.value); }
counted& operator+=(counted& a, counted b) { return a = a + b; }
counted& operator-=(counted& a, counted b) { return a = a - b; }
counted& operator*=(counted& a, counted b) { return a = a * b; }
bool operator<(counted a, counted b) { return a.value < b.value; }
bool operator>(counted a, counted b) { return a.value > b.value; }
bool operator==(counted a, counted b) { return a.value == b.value; }
counted exp(counted a) { return count(std::exp(a.value)); }
counted log(counted a) { return count(std::log(a.value)); }
counted tanh(counted a) { return count(std::tanh(a.value)); }

}  // namespace

namespace std {
template <>
struct numeric_limits<counted> : numeric_limits<double> {};
}  // namespace std
namespace Eigen {
template <>
struct NumTraits<counted> : GenericNumTraits<double> {
  using Real = counted;
  using NonInteger = counted;
  using Nested = counted;
};
}  // namespace Eigen

TEST_CASE(
    "derivatives of a dynamic size come through attention, constants without any among them") {
  SECTION("the reference") {
    check_dynamic(
        [](const auto& e) { return heed::reference_attention(e.query, e.key, e.value, causal()); });
    check_dynamic([](const auto& e) {
      return heed::reference_attention_with_lse(e.query, e.key, e.value, causal()).lse;
    });
    check_dynamic([](const auto& e) {
      return heed::reference_attention(e.query, e.key, e.value, causal(2), heed::bias(e.bias),
                                       heed::alibi(e.slope), heed::sinks(e.slope),
                                       heed::logit_scales(e.factor), heed::dropout(0.3, 1));
    });
  }
  SECTION("the streaming form, which attention is for them") {
    check_dynamic([](const auto& e) { return heed::attention(e.query, e.key, e.value, causal()); });
    check_dynamic([](const auto& e) {
      return heed::streaming_attention_with_lse(e.query, e.key, e.value, causal()).lse;
    });
    check_dynamic([](const auto& e) {
      return heed::streaming_attention(e.query, e.key, e.value, causal(2), heed::bias(e.bias),
                                       heed::alibi(e.slope), heed::sinks(e.slope),
                                       heed::logit_scales(e.factor), heed::dropout(0.3, 1));
    });
  }
  SECTION("weights") {
    check_dynamic([](const auto& e) {
      return heed::attention_with_weights(e.query, e.key, e.value, causal()).weights;
    });
    check_dynamic([](const auto& e) {
      return heed::row_entropy(e.query, e.key,
                               heed::attention_with_lse(e.query, e.key, e.value).lse);
    });
    check_dynamic([](const auto& e) { return heed::scaled_softmax(e.key, 2.0); });
  }
  SECTION("merging") {
    check_dynamic([](const auto& e) {
      return heed::merge(heed::reference_attention_with_lse(e.query, e.key.topRows(30),
                                                            e.value.topRows(30)),
                         heed::reference_attention_with_lse(e.query, e.key.bottomRows(40),
                                                            e.value.bottomRows(40)))
          .out;
    });
  }
  SECTION("projection") {
    check_dynamic([](const auto& e) { return heed::project(e.query, e.key.topRows(3)); });
  }
}

TEST_CASE(
    "derivatives of a dynamic size come through the recurrences, constants without any among "
    "them") {
  SECTION("linear attention") {
    check_dynamic([](const auto& e) {
      heed::linear_attention_options options;
      options.feature_map = heed::feature_map::elu_plus_one;
      options.normalise = true;
      return heed::linear_attention(e.key, e.key, e.value, options);
    });
    check_dynamic([](const auto& e) {
      return heed::linear_attention(e.key, e.key, e.value, {},
                                    heed::bonus(heed::bhnd(e.query.data(), 1, 1, 1, 3)),
                                    heed::log_gate(heed::view(e.gate)));
    });
  }
  SECTION("the delta rule") {
    check_dynamic([](const auto& e) {
      return heed::delta_rule(e.key, e.key, e.value, e.bias.row(0).transpose().eval());
    });
  }
  SECTION("a convolution") {
    check_dynamic([](const auto& e) { return heed::causal_conv(e.key, e.key.topRows(3)); });
  }
  SECTION("RWKV-7") {
    check_dynamic(
        [](const auto& e) { return heed::rwkv7(e.key, e.key, e.key, e.value, e.key, e.key); });
  }
  SECTION("a selective scan") {
    check_dynamic([](const auto& e) {
      return heed::selective_scan(e.key, e.key, e.key.topRows(3), e.key, e.key);
    });
  }
}

TEST_CASE("a slope of 0 has a derivative") {
  const testing::example<double> e(4, 70, 3, 2);
  const auto with_slope = [&](const auto& slope) {
    using Scalar = std::decay_t<decltype(slope)>;
    const heed::row_vector<Scalar> slopes = heed::row_vector<Scalar>::Constant(1, slope);
    return heed::reference_attention(e.query.cast<Scalar>(), e.key.cast<Scalar>(),
                                     e.value.cast<Scalar>(), {}, heed::alibi(slopes));
  };
  const auto got = spread(with_slope(number<dynamic>(0, 0, false)));
  const double step = 1e-6;
  const heed::rows<double> differences = (with_slope(step) - with_slope(-step)) / (2 * step);
  // distances of up to 69 make a third derivative of at most 69^3 |value|, and the numbers are
  // rounded to 2^-53
  const double bound = 69.0 * 69 * 69 * step * step + 100 * 0x1p-53 / step;
  for (heed::size_type n = 0; n < got.rows(); ++n)
    CHECK(std::abs(got(n, 1) - differences(n / 2, n % 2)) <= bound * 2);
  CHECK(got.col(1).norm() > 1e-3);
}

TEST_CASE("a term that is absent does no arithmetic") {
  constexpr heed::size_type n_q = 3, n_kv = 5, d_k = 4, d_v = 2;
  const heed::rows<counted> query = heed::rows<counted>::Constant(n_q, d_k, 0.5),
                            key = heed::rows<counted>::Constant(n_kv, d_k, 0.25),
                            value = heed::rows<counted>::Constant(n_kv, d_v, 2.0);
  counted::operations = 0;
  const heed::rows<counted> out = heed::reference_attention(query, key, value);
  const long whole = counted::operations;
  CHECK(out(2, 1).value == Approx(2));
  // dot product, scale; s - max, exp, sum, share; mean of the values
  CHECK(whole == n_q * n_kv * (2 * d_k + 1 + 4 + 2 * d_v));
  counted::operations = 0;
  const heed::row_vector<counted> slopes = heed::row_vector<counted>::Constant(1, 0.0);
  heed::reference_attention(query, key, value, {}, heed::alibi(slopes));
  CHECK(counted::operations == whole + n_q * n_kv * 2);
}
