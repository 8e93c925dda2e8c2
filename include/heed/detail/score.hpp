#pragma once

#include <heed/detail/params.hpp>

#include <cmath>
#include <cstring>
#include <limits>

// The rule that makes a score of a dot product, for one pair, in any scalar type. The reference, the streaming form and the weights all
// call it; kernel/score.inc is the same rule for a block of vectors.

HEED_NAMESPACE_BEGIN
namespace detail {

// Infinities and NaNs are told by their bits: -ffast-math lets a compiler assume that a comparison with them is never true.
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
inline bool is_finite(double x) { return (bits_of(x) & 0x7ff0000000000000u) != 0x7ff0000000000000u; }

template <typename Acc>
Acc negative_infinity() {
  return Acc(-std::numeric_limits<Acc>::infinity());
}

/// Whether query i sees key j. A pair that is not visible is skipped: neither its key nor its value is looked at.
template <typename Acc>
bool visible(const score_params<Acc>& score, size i, size j) {
  if (j < i + score.band.low || j > i + score.band.high) return false;
  if (score.keep && !score.keep[i * score.keep_row + j * score.keep_col]) return false;
  return !score.bias || !is_negative_infinity(score.bias[i * score.bias_row + j * score.bias_col]);
}

/// The score of a visible pair: scale -> softcap -> bias and ALiBi (natural units).
template <typename Acc>
Acc score_of(const score_params<Acc>& score, const Acc& dot, size i, size j) {
  using std::tanh;
  Acc s = dot * score.scale;
  if (score.softcap > Acc(0)) s = score.softcap * tanh(s / score.softcap);
  if (score.bias) s += score.bias[i * score.bias_row + j * score.bias_col];
  const size distance = i + score.alibi_offset - j;
  s -= score.alibi_slope * Acc(static_cast<double>(distance < 0 ? -distance : distance));
  return s;
}

}  // namespace detail
HEED_NAMESPACE_END
