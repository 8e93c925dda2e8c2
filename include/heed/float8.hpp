#pragma once

#include <heed/detail/abi.hpp>

#include <cstdint>
#include <cstring>
#include <vector>

HEED_NAMESPACE_BEGIN
namespace detail {

/// Floats of a sign, some bits of exponent and `Mantissa` of mantissa, in 8 bits. `Largest` are the
/// bits of the largest finite one; what is above it is infinite or no number.
template <unsigned Mantissa, unsigned Largest>
struct float8_format {
  static constexpr unsigned shift = 23 - Mantissa;  // from its mantissa to that of a float
  static constexpr std::uint32_t bias = (1u << (6 - Mantissa)) - 1,
                                 rebias = (127 - bias) << 23,  // added to the bits of a normal one
      least_normal = rebias + (1u << 23);

  static float as_float(std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  }
  static std::uint32_t as_bits(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
  }
  /// The last bit of this number is the smallest subnormal.
  static float least_unit() { return as_float((127 + 1 - bias + shift) << 23); }

  static float widen(std::uint8_t bits) {
    const std::uint32_t magnitude = bits & 0x7fu, sign = std::uint32_t(bits & 0x80u) << 24,
                        mantissa = magnitude & ((1u << Mantissa) - 1);
    if (magnitude > Largest)
      return as_float(sign | 0x7f800000u | (mantissa ? 0x400000u | mantissa << shift : 0u));
    if (magnitude >> Mantissa != 0) return as_float(sign | ((magnitude << shift) + rebias));
    const float unit = as_float((127 + 1 - bias - Mantissa) << 23);
    return as_float(sign | as_bits(static_cast<float>(mantissa) * unit));
  }
  /// To nearest, ties to even; what is beyond the largest, infinity too, becomes the largest.
  static std::uint8_t narrow(float x) {
    const std::uint32_t u = as_bits(x), magnitude = u & 0x7fffffffu, sign = (u ^ magnitude) >> 24;
    std::uint32_t bits;
    if (magnitude > 0x7f800000u) {
      bits = 0x7f;
    } else if (magnitude >= (Largest << shift) + rebias) {
      bits = Largest;
    } else if (magnitude < least_normal) {  // the addition rounds
      bits = as_bits(as_float(magnitude) + least_unit()) - as_bits(least_unit());
    } else {
      bits = (magnitude - rebias + (1u << (shift - 1)) - 1 + (magnitude >> shift & 1u)) >> shift;
    }
    return static_cast<std::uint8_t>(bits | sign);
  }
};
}  // namespace detail

/// An 8-bit float of 4 bits of exponent and 3 of mantissa, e4m3fn: up to 448, down to 2^-9 with 3
/// bits lost on the way from 2^-6; no infinity, and one NaN of either sign (Micikevicius et al.
/// 2022; the OCP 8-bit floating point specification). To float: exact. From float: to nearest, ties
/// to even, and saturating: what is larger than 448, infinity too, becomes 448 of its sign.
///
/// @code
/// assert(float(heed::float8_e4m3(3.3f)) == 3.25f);
/// assert(float(heed::float8_e4m3(1e6f)) == 448);
/// heed::kv_cache<heed::float8_e4m3> cache(1, 2, 64, 64);  // a byte an element
/// @endcode
struct float8_e4m3 {
  /// No number in particular.
  float8_e4m3() = default;
  /// The nearest to x.
  explicit float8_e4m3(float x) : bits(detail::float8_format<3, 0x7e>::narrow(x)) {}
  /// Its value.
  operator float() const { return detail::float8_format<3, 0x7e>::widen(bits); }

  std::uint8_t bits;  ///< sign, exponent and mantissa, from the highest bit on
};

/// An 8-bit float of 5 bits of exponent and 2 of mantissa, the upper byte of a half: up to 57344,
/// down to 2^-16, with infinities and NaNs. To float: exact. From float: to nearest, ties to even,
/// and saturating: what is larger than 57344, infinity too, becomes 57344 of its sign.
///
/// @code
/// assert(float(heed::float8_e5m2(3.3f)) == 3.5f);
/// assert(float(heed::float8_e5m2(1e6f)) == 57344);
/// @endcode
struct float8_e5m2 {
  /// No number in particular.
  float8_e5m2() = default;
  /// The nearest to x.
  explicit float8_e5m2(float x) : bits(detail::float8_format<2, 0x7b>::narrow(x)) {}
  /// Its value.
  operator float() const { return detail::float8_format<2, 0x7b>::widen(bits); }

  std::uint8_t bits;  ///< sign, exponent and mantissa, from the highest bit on
};

/// The scale of each key/value head's keys and of its values, for caches of 8-bit floats: what is
/// stored is the number divided by it. Empty: 1 for every head. The largest magnitude that a head
/// has in some texts, divided by the type's largest number, uses the type's range.
struct head_scales {
  std::vector<float> key;    ///< num_kv_heads positive numbers, or none
  std::vector<float> value;  ///< likewise
};

HEED_NAMESPACE_END
