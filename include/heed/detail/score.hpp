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

/// Runs a hook on one pair.
template <typename Acc>
Acc hooked(const block_hook<Acc>& hook, const score_params<Acc>& score, Acc x, size i, size j) {
  hook.run(hook.context, score.b, score.h, score_block<Acc>{&x, i, i + 1, j, j + 1, 1, 1});
  return x;
}

/// Whether the masks let query i see key j. A pair that is not visible is skipped: neither its key nor its value is looked at.
template <typename Acc>
bool visible(const score_params<Acc>& score, size i, size j) {
  if (j < i + score.band.low || j > i + score.band.high) return false;
  if (score.keep && !score.keep[i * score.keep_row + j * score.keep_col]) return false;
  if (score.bias && is_negative_infinity(score.bias[i * score.bias_row + j * score.bias_col])) return false;
  const block_mask_params& blocks = score.blocks;
  if (blocks.visible && !blocks.visible[i / blocks.block_q * blocks.row + j / blocks.block_kv]) return false;
  return !score.mask_hook.run || !is_negative_infinity(hooked(score.mask_hook, score, Acc(0), i, j));
}

/// The score of a visible pair: scale -> softcap -> bias and ALiBi -> score function (natural units). -infinity: the function masked it.
template <typename Acc>
Acc score_of(const score_params<Acc>& score, const Acc& dot, size i, size j) {
  using std::tanh;
  Acc s = dot * score.scale;
  if (score.softcap > Acc(0)) s = score.softcap * tanh(s / score.softcap);
  if (score.bias) s += score.bias[i * score.bias_row + j * score.bias_col];
  const size distance = i + score.alibi_offset - j;
  s -= score.alibi_slope * Acc(static_cast<double>(distance < 0 ? -distance : distance));
  if (score.score_hook.run) s = hooked(score.score_hook, score, s, i, j);
  return s;
}

/// Whether a score function has masked the pair whose score this is.
template <typename Acc>
bool masked_by_function(const score_params<Acc>& score, const Acc& s) {
  return score.score_hook.run && is_negative_infinity(s);
}

/// The weight exp(s - max) under which a value is summed, after dropout.
template <typename Acc>
Acc dropped(const score_params<Acc>& score, const Acc& weight, size i, size j) {
  return score.weight_hook.run ? hooked(score.weight_hook, score, weight, i, j) : weight;
}

}  // namespace detail
HEED_NAMESPACE_END
