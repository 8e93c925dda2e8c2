#pragma once

#include <heed/detail/abi.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

HEED_NAMESPACE_BEGIN

/// 32 numbers of a row, side by side, in 8 bits each, and their scale: number i is scale *
/// quants[i]. An outlier spoils the precision of its block, not of the whole row. As the type that
/// a cache stores: scale = max |block| / 127, numbers rounded to nearest; a block with an infinity
/// or NaN in it is NaN throughout. 36 bytes.
///
/// @code
/// heed::kv_cache<heed::int8_block> cache(1, 2, 64, 64);  // 2 blocks a row
/// @endcode
struct int8_block {
  /// How many numbers a block holds.
  static constexpr std::ptrdiff_t size = 32;

  /// Number i of the block.
  float operator[](std::ptrdiff_t i) const { return scale * static_cast<float>(quants[i]); }

  float scale;             ///< what a step is
  std::int8_t quants[32];  ///< in [-127, 127]
};

/// 32 numbers of a row, side by side, in 4 bits each, with their step and their minimum: number i
/// is minimum + scale * quant(i). As the type that a cache stores: minimum and scale, both of
/// bfloat16, are rounded outwards, so that every number is at most half a scale from what is
/// stored; numbers beyond 2^126 are taken as 2^126 of their sign; a block with an infinity or NaN
/// in it is NaN throughout. 20 bytes, 5 bits a number.
///
/// @code
/// heed::kv_cache<heed::int4_block> cache(1, 2, 64, 64);  // 2 blocks a row
/// @endcode
struct int4_block {
  /// How many numbers a block holds.
  static constexpr std::ptrdiff_t size = 32;

  /// The 4 bits of number i: the lower ones of byte i, or from 16 on the upper ones of byte i - 16.
  int quant(std::ptrdiff_t i) const { return pairs[i % 16] >> (i < 16 ? 0 : 4) & 15; }
  /// Number i of the block.
  float operator[](std::ptrdiff_t i) const {
    return widen(minimum) + widen(scale) * static_cast<float>(quant(i));
  }

  /// A bfloat16 as a float.
  static float widen(std::uint16_t bits) {
    const std::uint32_t wide = std::uint32_t(bits) << 16;
    float x;
    std::memcpy(&x, &wide, sizeof x);
    return x;
  }

  std::uint16_t scale;     ///< the step, in the bits of a bfloat16
  std::uint16_t minimum;   ///< likewise
  std::uint8_t pairs[16];  ///< two numbers each
};

namespace detail {
/// How many numbers an element of a row holds.
template <typename Stored>
constexpr std::ptrdiff_t numbers_in = 1;
template <>
inline constexpr std::ptrdiff_t numbers_in<int8_block> = int8_block::size;
template <>
inline constexpr std::ptrdiff_t numbers_in<int4_block> = int4_block::size;

/// How many elements hold a row of `numbers`.
template <typename Stored>
constexpr std::ptrdiff_t elements_of(std::ptrdiff_t numbers) {
  constexpr std::ptrdiff_t each = numbers_in<Stored>;
  return numbers / each + (numbers % each != 0);
}
}  // namespace detail

HEED_NAMESPACE_END
