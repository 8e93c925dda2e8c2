#pragma once

#include <heed/detail/number.hpp>
#include <heed/detail/params.hpp>
#include <heed/tensor.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

HEED_NAMESPACE_BEGIN
namespace detail {

/// How numbers of a type are stored: how a kernel sees them (void: there are no kernels for them),
/// their name in bytes that are saved (null: they cannot be), whether each row has a scale beside
/// it, and how a row is written. A new type of keys and values
/// is one more of these, and a load in each file of simd/.
template <typename Stored, typename Kernel>
struct plain_storage {
  using kernel = Kernel;
  static constexpr const char* name = nullptr;
  static constexpr bool has_scales = false;

  /// Writes row i of `from` as row i of `to`.
  template <typename Scalar>
  static void store_row(const matrix_view<const Scalar>& from, const matrix_view<Stored>& to,
                        float*, size_type i) {
    for (size_type c = 0; c < from.cols; ++c)
      to(i, c) = static_cast<Stored>(accumulator_t<Scalar>(from(i, c)));
  }
};

template <typename Stored>
struct storage_traits : plain_storage<Stored, void> {};
template <>
struct storage_traits<float> : plain_storage<float, float> {
  static constexpr const char* name = "float32";
};
template <>
struct storage_traits<double> : plain_storage<double, double> {
  static constexpr const char* name = "float64";
};
template <>
struct storage_traits<Eigen::half> : plain_storage<Eigen::half, half_bits> {
  static constexpr const char* name = "float16";
};
template <>
struct storage_traits<Eigen::bfloat16> : plain_storage<Eigen::bfloat16, bfloat16_bits> {
  static constexpr const char* name = "bfloat16";
};

/// A row is from / scale rounded to nearest, with scale = max |from| / 127. Where that is
/// subnormal, a scale that would be rounded too far down for 127 of it to reach max |from| is the
/// next float up; where 127 of it would overflow, the next down. A row that holds an infinity or
/// NaN becomes NaN throughout: 0 under a scale of NaN.
template <>
struct storage_traits<std::int8_t> {
  using kernel = std::int8_t;
  static constexpr const char* name = "int8";
  static constexpr bool has_scales = true;

  template <typename Scalar>
  static void store_row(const matrix_view<const Scalar>& from, const matrix_view<std::int8_t>& to,
                        float* scale, size_type i) {
    const auto element = [&](size_type c) {
      return static_cast<float>(accumulator_t<Scalar>(from(i, c)));
    };
    float largest = 0;
    bool finite = true;
    for (size_type c = 0; c < from.cols; ++c) {
      largest = (std::max)(largest, (std::abs)(element(c)));
      finite = finite && is_finite(element(c));
    }
    *scale = finite ? largest / 127 : std::numeric_limits<float>::quiet_NaN();
    const bool some = finite && largest > 0;
    if (some && largest >= 127.5f * *scale) *scale += std::numeric_limits<float>::denorm_min();
    if (some && !is_finite(127 * *scale)) *scale = std::nextafter(*scale, 0.0f);
    // Divided, since 1 / scale overflows where the row is small.
    for (size_type c = 0; c < from.cols; ++c)
      to(i, c) = some ? static_cast<std::int8_t>(std::lrint(element(c) / *scale)) : std::int8_t{0};
  }
};

template <typename Scalar>
using kernel_scalar = typename storage_traits<Scalar>::kernel;

}  // namespace detail
HEED_NAMESPACE_END
