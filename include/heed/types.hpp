#pragma once

#include <heed/detail/abi.hpp>

#include <Eigen/Core>
#include <type_traits>

HEED_NAMESPACE_BEGIN

/// Every size and stride: Eigen's index, 64 bits wide on every machine that matters.
using index = Eigen::Index;

/// A matrix whose rows are tokens and lie one after the other in memory: n x Cols. (Eigen has no row-major column vector, so one
/// column is column-major; the memory is the same.)
template <typename Scalar, int Cols = Eigen::Dynamic>
using rows = Eigen::Matrix<Scalar, Eigen::Dynamic, Cols, Cols == 1 ? Eigen::ColMajor : Eigen::RowMajor>;

/// One number for each query row: a log-sum-exp, a count, an entropy.
template <typename Scalar>
using row_vector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;

namespace detail {
template <typename Scalar>
struct accumulator {
  using type = Scalar;
};
template <>
struct accumulator<Eigen::half> {
  using type = float;
};
template <>
struct accumulator<Eigen::bfloat16> {
  using type = float;
};
}  // namespace detail

namespace detail {
/// Whether softmax means something in a scalar: not in whole or complex numbers.
template <typename Scalar>
constexpr bool is_real = !Eigen::NumTraits<Scalar>::IsInteger && !Eigen::NumTraits<Scalar>::IsComplex;
template <>
inline constexpr bool is_real<void> = true;  // no scalar: another sentence says so
}  // namespace detail

/// The type that scores, softmax and sums have: float for half and bfloat16, Scalar itself for every other type.
template <typename Scalar>
using accumulator_t = typename detail::accumulator<Scalar>::type;

HEED_NAMESPACE_END
