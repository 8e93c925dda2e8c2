#pragma once

#include <heed/detail/abi.hpp>

#include <Eigen/Core>
#include <cstddef>
#include <type_traits>

HEED_NAMESPACE_BEGIN

static_assert(std::is_same<Eigen::Index, std::ptrdiff_t>::value,
              "heed: EIGEN_DEFAULT_DENSE_INDEX_TYPE must be std::ptrdiff_t, Eigen's own choice: "
              "sizes and strides are 64 bits wide");

/// Every size and stride: Eigen's index, 64 bits wide on every machine that matters.
using size_type = Eigen::Index;

/// Stands for a scalar type that the function takes from its first argument.
struct deduced;

/// A matrix whose rows are tokens, one after the other in memory: n x Cols. (Eigen has no row-major
/// column vector, so one column is column-major; the memory is the same.)
template <typename Scalar, int Cols = Eigen::Dynamic>
using rows =
    Eigen::Matrix<Scalar, Eigen::Dynamic, Cols, Cols == 1 ? Eigen::ColMajor : Eigen::RowMajor>;

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
/// Whether softmax is defined for a scalar: not for integers or complex numbers.
template <typename Scalar>
constexpr bool is_real =
    !Eigen::NumTraits<Scalar>::IsInteger && !Eigen::NumTraits<Scalar>::IsComplex;
template <>
inline constexpr bool is_real<void> = true;  // no scalar: another assertion reports it
}  // namespace detail

/// The type that scores, softmax and sums have: float for half and bfloat16, Scalar itself for
/// every other type.
template <typename Scalar>
using accumulator_t = typename detail::accumulator<Scalar>::type;

namespace detail {
/// Compares the scalars of a call's inputs with that of its output.
template <typename Scalar, typename... Read>
struct scalars_fit : std::true_type {
  static_assert(!std::is_const<Scalar>::value, "an output must not be const");
  static_assert((std::is_same<std::remove_const_t<Scalar>, std::remove_const_t<Read>>::value &&
                 ...),
                "query, key, value and out must have one scalar type: cast the others to it");
  static_assert(is_real<std::remove_const_t<Scalar>>,
                "query, key and value must be of a real, non-integer type: cast integers, split "
                "complex numbers");
};
template <typename Scalar, typename Lse>
struct lse_fits : std::true_type {
  static_assert(std::is_same<Lse, accumulator_t<Scalar>>::value,
                "lse must have the type of the scores: float for float, half and bfloat16; double "
                "for double");
};
}  // namespace detail

HEED_NAMESPACE_END
