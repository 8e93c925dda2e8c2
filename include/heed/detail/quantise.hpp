#pragma once

#include <heed/tensor.hpp>

#include <cmath>
#include <cstdint>
#include <type_traits>

HEED_NAMESPACE_BEGIN
namespace detail {

template <typename Stored>
constexpr bool is_quantised = std::is_same<Stored, std::int8_t>::value;

/// Writes row i of `from` as row i of `to`. An int8 row is from / scale rounded to nearest, with scale = max |from| / 127.
template <typename Scalar, typename Stored>
void store_row(const matrix_view<const Scalar>& from, const matrix_view<Stored>& to, float* scale, index i) {
  using Acc = accumulator_t<Scalar>;
  if constexpr (is_quantised<Stored>) {
    float largest = 0;
    for (index c = 0; c < from.cols; ++c) largest = (std::max)(largest, std::abs(static_cast<float>(Acc(from(i, c)))));
    *scale = largest / 127;
    const float inverse = largest > 0 ? 127 / largest : 0;
    for (index c = 0; c < from.cols; ++c) to(i, c) = static_cast<Stored>(std::lrint(static_cast<float>(Acc(from(i, c))) * inverse));
  } else {
    for (index c = 0; c < from.cols; ++c) to(i, c) = static_cast<Stored>(Acc(from(i, c)));
  }
}

}  // namespace detail
HEED_NAMESPACE_END
