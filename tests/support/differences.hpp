#pragma once

// What a gradient is compared with: differences of the loss itself.

#include "example.hpp"

namespace testing {

/// How far a number of about 1 may be from the nearest one of a type. (Eigen's epsilon of half is
/// not that of the type.)
template <typename Scalar>
constexpr long double unit_roundoff = std::numeric_limits<Scalar>::epsilon() / 2;
template <>
inline constexpr long double unit_roundoff<Eigen::half> = 0x1p-11L;
template <>
inline constexpr long double unit_roundoff<Eigen::bfloat16> = 0x1p-8L;

/// sum of a * b, for losses.
template <typename A, typename B>
long double inner(const A& a, const B& b) {
  long double sum = 0;
  for (size_type i = 0; i < a.rows(); ++i)
    for (size_type c = 0; c < a.cols(); ++c)
      sum += static_cast<long double>(a(i, c)) * static_cast<long double>(b(i, c));
  return sum;
}

/// The gradient of loss() with respect to every number of `input`, which it reads, by central
/// differences of the fourth order. A loss of some tens rounds by 1e-17 and so moves a difference
/// by 1e-14; the step to the power of 4 is 1e-12, of which a thirtieth counts for each unit of the
/// fifth derivative.
template <typename Loss>
heed::rows<long double> differences(heed::rows<long double>& input, const Loss& loss) {
  const long double step = 1e-3L;
  heed::rows<long double> gradient(input.rows(), input.cols());
  for (size_type i = 0; i < input.rows(); ++i)
    for (size_type c = 0; c < input.cols(); ++c) {
      const long double x = input(i, c);
      const auto at = [&](int steps) {
        input(i, c) = x + static_cast<long double>(steps) * step;
        return loss();
      };
      gradient(i, c) = (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * step);
      input(i, c) = x;
    }
  return gradient;
}

/// A gradient that was computed in double is the one of loss(): to 1e-10, where the differences are
/// exact to fifth derivatives of a thousand, and a double to a hundred thousand roundings.
template <typename Gradient, typename Loss>
void check_differences(const Gradient& gradient, heed::rows<long double>& input, const Loss& loss) {
  const heed::rows<long double> exact = differences(input, loss);
  REQUIRE(gradient.rows() == exact.rows());
  REQUIRE(gradient.cols() == exact.cols());
  CHECK(max_error(gradient, exact) <= 1e-10L * (1 + magnitude(exact)));
}

/// a b, of matrices or their transposes, summed up as the library does: the direct form.
template <typename Scalar, typename A, typename B>
heed::rows<Scalar> plain_product(const A& a, const B& b) {
  using Acc = heed::accumulator_t<Scalar>;
  heed::rows<Scalar> out(a.rows(), b.cols());
  for (size_type i = 0; i < a.rows(); ++i)
    for (size_type c = 0; c < b.cols(); ++c) {
      Acc sum(0);
      for (size_type k = 0; k < a.cols(); ++k) sum += Acc(Acc(a(i, k)) * Acc(b(k, c)));
      out(i, c) = Scalar(sum);
    }
  return out;
}

}  // namespace testing
