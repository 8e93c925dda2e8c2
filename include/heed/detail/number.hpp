#pragma once

#include <heed/detail/check.hpp>

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

// What kind of number a number is.

HEED_NAMESPACE_BEGIN
namespace detail {

// Infinities and NaNs are recognised by their bits: -ffast-math lets a compiler assume that a
// comparison with them is never true.
inline std::uint32_t bits_of(float x) {
  std::uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}
inline std::uint64_t bits_of(double x) {
  std::uint64_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}
inline bool is_negative_infinity(float x) { return bits_of(x) == 0xff800000u; }
inline bool is_negative_infinity(double x) { return bits_of(x) == 0xfff0000000000000u; }
template <typename Acc>
bool is_negative_infinity(const Acc& x) {
  return x < -(std::numeric_limits<Acc>::max)();
}
inline bool is_zero(float x) { return bits_of(x) << 1 == 0; }
inline bool is_zero(double x) { return bits_of(x) << 1 == 0; }
template <typename Acc>
bool is_zero(const Acc& x) {
  return x == Acc(0);
}
inline bool is_finite(double x) {
  return (bits_of(x) & 0x7ff0000000000000u) != 0x7ff0000000000000u;
}

template <typename Acc>
Acc negative_infinity() {
  return Acc(-std::numeric_limits<Acc>::infinity());
}

/// A number of any scalar type in a message; a type of the user's need not have more than
/// arithmetic.
template <typename Scalar>
message_part shown(const Scalar& x) {
  if constexpr (std::is_arithmetic<Scalar>::value) {
    return message_part(x);
  } else {
    return message_part("out of range");
  }
}

/// What bounds a score: float, or double for every other type.
template <typename Acc>
using score_limits =
    std::numeric_limits<std::conditional_t<std::is_same<Acc, float>::value, float, double>>;

/// Scores are finite where their magnitude stays below this: the kernels keep them in units of
/// ln 2.
template <typename Acc>
constexpr double largest_score() {
  return static_cast<double>((score_limits<Acc>::max)()) * 0.6931471805599453;
}

[[noreturn]] inline void fail_number(const char* function, const char* what, double x, double least,
                                     double most) {
  if (!is_finite(x)) fail_with("heed::", function, ": ", what, " must be finite, but is ", x);
  fail_with("heed::", function, ": ", what, " must be 0 or between ", least, " and ", most,
            " in magnitude, as the scores' type can hold it, but is ", x);
}
/// An option that takes part in the arithmetic of scores must not become infinite, or 0 where it is
/// not, in their type.
template <typename Acc>
void check_number(const char* function, const char* what, double x) {
  constexpr double least = static_cast<double>((score_limits<Acc>::min)()),
                   most = largest_score<Acc>();
  const double magnitude = x < 0 ? -x : x;
  const bool held = is_finite(x) && (x == 0 || (magnitude >= least && magnitude <= most));
  if (!held) fail_number(function, what, x, least, most);
}

}  // namespace detail
HEED_NAMESPACE_END
