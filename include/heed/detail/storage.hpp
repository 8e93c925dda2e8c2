#pragma once

#include <heed/detail/number.hpp>
#include <heed/detail/params.hpp>
#include <heed/float8.hpp>
#include <heed/quantised.hpp>
#include <heed/tensor.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

HEED_NAMESPACE_BEGIN
namespace detail {

/// What has a scale beside the elements.
enum class scale_of { nothing, row, head };

/// How numbers of a type are stored: how a kernel sees them (void: there are no kernels for them),
/// their name in bytes that are saved (null: they cannot be), what has a scale beside
/// it, and how a row is written. A new type of keys and values
/// is one more of these, and a load in each file of simd/.
template <typename Stored, typename Kernel>
struct plain_storage {
  using kernel = Kernel;
  static constexpr const char* name = nullptr;
  static constexpr scale_of scales = scale_of::nothing;

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

/// Elements [first, first + count) of row i are from / scale rounded to nearest, with scale = max
/// |from| / 127. Where that is subnormal, a scale that would be rounded too far down for 127 of it
/// to reach max |from| is the next float up; where 127 of it would overflow, the next down. If one
/// is an infinity or NaN, they become NaN throughout: 0 under a scale of NaN.
template <typename Scalar>
void store_int8(const matrix_view<const Scalar>& from, size_type i, size_type first,
                size_type count, std::int8_t* to, size_type step, float& scale) {
  const auto element = [&](size_type c) {
    return static_cast<float>(accumulator_t<Scalar>(from(i, first + c)));
  };
  float largest = 0;
  bool finite = true;
  for (size_type c = 0; c < count; ++c) {
    largest = (std::max)(largest, (std::abs)(element(c)));
    finite = finite && is_finite(element(c));
  }
  scale = finite ? largest / 127 : std::numeric_limits<float>::quiet_NaN();
  const bool some = finite && largest > 0;
  if (some && largest >= 127.5f * scale) scale += std::numeric_limits<float>::denorm_min();
  if (some && !is_finite(127 * scale)) scale = std::nextafter(scale, 0.0f);
  // Divided, since 1 / scale overflows where the row is small.
  for (size_type c = 0; c < count; ++c)
    to[c * step] = some ? static_cast<std::int8_t>(std::lrint(element(c) / scale)) : std::int8_t{0};
}

/// A row has one scale.
template <>
struct storage_traits<std::int8_t> {
  using kernel = std::int8_t;
  static constexpr const char* name = "int8";
  static constexpr scale_of scales = scale_of::row;

  template <typename Scalar>
  static void store_row(const matrix_view<const Scalar>& from, const matrix_view<std::int8_t>& to,
                        float* scale, size_type i) {
    store_int8(from, i, 0, from.cols, to.data + i * to.row_stride, to.col_stride, *scale);
  }
};

/// Elements are from / scale, rounded and saturated, with the scale of their head. An infinity
/// becomes NaN: it must not turn up as a number.
template <typename Stored>
struct float8_storage {
  using kernel = Stored;
  static constexpr scale_of scales = scale_of::head;

  template <typename Scalar>
  static void store_row(const matrix_view<const Scalar>& from, const matrix_view<Stored>& to,
                        float* scale, size_type i) {
    for (size_type c = 0; c < from.cols; ++c) {
      const float element = static_cast<float>(accumulator_t<Scalar>(from(i, c)));
      to(i, c) =
          Stored(is_finite(element) ? element / *scale : std::numeric_limits<float>::quiet_NaN());
    }
  }
};
template <>
struct storage_traits<float8_e4m3> : float8_storage<float8_e4m3> {
  static constexpr const char* name = "float8_e4m3";
};
template <>
struct storage_traits<float8_e5m2> : float8_storage<float8_e5m2> {
  static constexpr const char* name = "float8_e5m2";
};

/// Calls store(element, first, count) for each block of row i.
template <typename Block, typename Store>
void for_each_block(const matrix_view<Block>& to, size_type i, size_type cols, const Store& store) {
  for (size_type first = 0; first < cols; first += Block::size) {
    Block& block = to(i, first / Block::size);
    block = Block();
    store(block, first, (std::min)(cols - first, size_type{Block::size}));
  }
}

template <>
struct storage_traits<int8_block> {
  using kernel = int8_block;
  static constexpr const char* name = "int8_block";
  static constexpr scale_of scales = scale_of::nothing;

  template <typename Scalar>
  static void store_row(const matrix_view<const Scalar>& from, const matrix_view<int8_block>& to,
                        float*, size_type i) {
    for_each_block(to, i, from.cols, [&](int8_block& block, size_type first, size_type count) {
      store_int8(from, i, first, count, block.quants, 1, block.scale);
    });
  }
};

template <>
struct storage_traits<int4_block> {
  using kernel = int4_block;
  static constexpr const char* name = "int4_block";
  static constexpr scale_of scales = scale_of::nothing;

  /// The bits of the nearest bfloat16 that is not nearer to 0 than x, or with `up` false not
  /// farther.
  static std::uint16_t bfloat16_of(double x, bool up) {
    const double magnitude = (std::abs)(x);
    std::uint32_t bits = bits_of(static_cast<float>(magnitude));  // to nearest
    const double nearest = static_cast<double>(static_cast<float>(magnitude));
    if (up && nearest < magnitude) ++bits;
    if (!up && nearest > magnitude) --bits;
    return static_cast<std::uint16_t>((up ? bits + 0xffffu : bits) >> 16 | (x < 0 ? 0x8000u : 0u));
  }

  template <typename Scalar>
  static void store_row(const matrix_view<const Scalar>& from, const matrix_view<int4_block>& to,
                        float*, size_type i) {
    const auto element = [&](size_type c) {
      const double x = static_cast<double>(accumulator_t<Scalar>(from(i, c)));
      return (std::min)((std::max)(x, -0x1p126), 0x1p126);
    };
    for_each_block(to, i, from.cols, [&](int4_block& block, size_type first, size_type count) {
      double least = element(first), largest = least;
      for (size_type c = first; c < first + count; ++c) {
        if (!is_finite(static_cast<double>(accumulator_t<Scalar>(from(i, c))))) {
          block.scale = block.minimum = 0x7fc0;  // NaN
          return;
        }
        least = (std::min)(least, element(c));
        largest = (std::max)(largest, element(c));
      }
      block.minimum = bfloat16_of(least, least < 0);
      const double minimum = static_cast<double>(int4_block::widen(block.minimum));
      block.scale = bfloat16_of((largest - minimum) / 15, true);
      const double scale = static_cast<double>(int4_block::widen(block.scale));
      for (size_type c = 0; scale > 0 && c < count; ++c) {
        const long quant = (std::min)(std::lrint((element(first + c) - minimum) / scale), 15L)
                           << (c < 16 ? 0 : 4);
        block.pairs[c % 16] = static_cast<std::uint8_t>(block.pairs[c % 16] | quant);
      }
    });
  }
};

template <typename Scalar>
using kernel_scalar = typename storage_traits<Scalar>::kernel;

/// Scales as rows of one number beside the rows that they belong to.
template <typename Stored, typename Scale>
tensor_view<Scale> view_scales(Scale* scales, size_type batch, size_type heads, size_type rows) {
  constexpr scale_of what = storage_traits<Stored>::scales;
  if (what == scale_of::nothing) return {};
  if (what == scale_of::head) return {scales, batch, heads, rows, 1, 0, 1, 0, 1};
  return bhnd(scales, batch, heads, rows, 1);
}

}  // namespace detail
HEED_NAMESPACE_END
