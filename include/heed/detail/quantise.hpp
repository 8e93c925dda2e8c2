#pragma once

#include <heed/detail/number.hpp>
#include <heed/tensor.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

HEED_NAMESPACE_BEGIN
namespace detail {

template <typename Stored>
constexpr bool is_quantised = std::is_same<Stored, std::int8_t>::value;

/// Writes row i of `from` as row i of `to`. An int8 row is from / scale rounded to nearest, with scale = max |from| / 127. Where that is
/// subnormal, a scale that would be rounded too far down for 127 of it to reach max |from| is the next float up; where 127 of
/// it would overflow, the next down. A row that holds an infinity or NaN becomes NaN throughout: 0 under a scale of NaN.
template <typename Scalar, typename Stored>
void store_row(const matrix_view<const Scalar>& from, const matrix_view<Stored>& to, float* scale, index i) {
  using Acc = accumulator_t<Scalar>;
  if constexpr (is_quantised<Stored>) {
    const auto element = [&](index c) { return static_cast<float>(Acc(from(i, c))); };
    float largest = 0;
    bool finite = true;
    for (index c = 0; c < from.cols; ++c) {
      largest = (std::max)(largest, (std::abs)(element(c)));
      finite = finite && is_finite(element(c));
    }
    *scale = finite ? largest / 127 : std::numeric_limits<float>::quiet_NaN();
    const bool some = finite && largest > 0;
    if (some && largest >= 127.5f * *scale) *scale += std::numeric_limits<float>::denorm_min();
    if (some && !is_finite(127 * *scale)) *scale = std::nextafter(*scale, 0.0f);
    // Divided, since 1 / scale overflows where the row is small.
    for (index c = 0; c < from.cols; ++c) to(i, c) = some ? static_cast<Stored>(std::lrint(element(c) / *scale)) : Stored(0);
  } else {
    for (index c = 0; c < from.cols; ++c) to(i, c) = static_cast<Stored>(Acc(from(i, c)));
  }
}

}  // namespace detail
HEED_NAMESPACE_END
