#pragma once

#include <heed/detail/number.hpp>
#include <heed/detail/params.hpp>

#include <Eigen/Core>
#include <cmath>
#include <limits>
#include <type_traits>

// The rule that makes a score of a dot product, for one pair, in any scalar type. The reference,
// the streaming form and the weights all call it; kernel/score.inc is the same rule for a block of
// vectors.

HEED_NAMESPACE_BEGIN
namespace detail {

// Products and quotients become an Acc before they are added: a scalar that carries derivatives,
// however many, may have an expression for each, and an expression of constants has no derivatives
// to add to those of a variable. A term that is absent does no arithmetic for the same reason.

/// Runs a hook on one pair.
template <typename Acc>
Acc hooked(const block_hook<Acc>& hook, const score_params<Acc>& score, Acc x, size i, size j) {
  hook.run(hook.context, score.b, score.h, score_block<Acc>{&x, i, i + 1, j, j + 1, 1, 1});
  return x;
}

/// The bias of a pair.
template <typename Acc>
Acc bias_at(const score_params<Acc>& score, size i, size j) {
  const size at = i * score.bias_row + j * score.bias_col;
  if constexpr (std::is_same<Acc, float>::value) {
    if (score.bias_type == bias_numbers::half)
      return static_cast<float>(static_cast<const Eigen::half*>(score.bias)[at]);
    if (score.bias_type == bias_numbers::bfloat16)
      return static_cast<float>(static_cast<const Eigen::bfloat16*>(score.bias)[at]);
  }
  return static_cast<const Acc*>(score.bias)[at];
}

/// Whether the masks let query i see key j. A pair that is not visible is skipped: neither its key
/// nor its value is looked at.
template <typename Acc>
bool visible(const score_params<Acc>& score, size i, size j) {
  if (j < i + score.band.low || j > i + score.band.high) return false;
  if (score.keep && !score.keep[i * score.keep_row + j * score.keep_col]) return false;
  if (score.bias && is_negative_infinity(bias_at(score, i, j))) return false;
  if (score.blocks.at(i, j) == block_state::hidden) return false;
  return !score.mask_hook.run ||
         !is_negative_infinity(hooked(score.mask_hook, score, Acc(0), i, j));
}

/// The row of a table of relative positions that key j has for query i; null without a table.
template <typename Acc>
const Acc* relative_row(const score_params<Acc>& score, const relative_rows<Acc>& table, size i,
                        size j) {
  return table.data ? table.at(j - i - score.distance_offset) : nullptr;
}

/// The dot product of query i with key j together with what a key at its distance has in a table:
/// query(c) is element c of the query.
template <typename Acc, typename Query>
Acc with_relative_key(const score_params<Acc>& score, Acc dot, const Query& query, size i, size j) {
  if (const Acc* const row = relative_row(score, score.relative_keys, i, j))
    for (size c = 0; c < score.relative_keys.cols; ++c) dot += Acc(Acc(query(c)) * row[c]);
  return dot;
}

/// How far key j is from query i, as ALiBi counts it.
template <typename Acc>
Acc distance(const score_params<Acc>& score, size i, size j) {
  const size steps = i + score.distance_offset - j;
  return Acc(static_cast<double>(steps < 0 ? -steps : steps));
}

/// The score of a visible pair: scale -> softcap -> bias and ALiBi -> score function (natural
/// units). -infinity: the function masked it.
template <typename Acc>
Acc score_of(const score_params<Acc>& score, const Acc& dot, size i, size j) {
  using std::tanh;
  Acc s(dot * score.scale);
  if (score.softcap > Acc(0)) s = score.softcap * Acc(tanh(Acc(s / score.softcap)));
  if (score.bias) s += bias_at(score, i, j);
  if (score.has_alibi) s -= Acc(score.alibi_slope * distance(score, i, j));
  if (score.score_hook.run) s = hooked(score.score_hook, score, s, i, j);
  return s;
}

/// How fast the score of a visible pair grows with the sum of its product and its biases, and with
/// the scaled product alone: the derivative of score_of.
template <typename Acc>
struct score_slopes {
  Acc of_bias, of_product;
};
template <typename Acc>
score_slopes<Acc> slopes_of(const score_params<Acc>& score, const Acc& dot, size i, size j) {
  using std::tanh;
  score_slopes<Acc> slopes{Acc(1), Acc(1)};
  if (score.score_hook.run) {
    score_params<Acc> before = score;
    before.score_hook.run = nullptr;
    slopes.of_bias = hooked(score.slope_hook, score, score_of(before, dot, i, j), i, j);
  }
  slopes.of_product = slopes.of_bias;
  if (score.softcap > Acc(0)) {
    const Acc t(tanh(Acc(Acc(dot * score.scale) / score.softcap)));
    slopes.of_product = Acc(slopes.of_product * Acc(Acc(1) - Acc(t * t)));
  }
  return slopes;
}

/// The largest score of a row before it sees a key: its sink, which counts as one.
template <typename Acc>
Acc first_maximum(const score_params<Acc>& score) {
  return score.has_sink ? score.sink : Acc(std::numeric_limits<Acc>::lowest());
}

/// Whether a row whose weights sum to this has seen no key and has no sink: the sum is exactly 0.
template <typename Acc>
bool is_empty_row(const Acc& sum) {
  return is_zero(sum);
}

/// The natural log-sum-exp of a row whose largest score is `max` and whose sum of exp(s - max) is
/// `sum`; -infinity for the empty row.
template <typename Acc>
Acc natural_log_sum_exp(const Acc& max, const Acc& sum) {
  using std::log;
  return is_empty_row(sum) ? negative_infinity<Acc>() : Acc(max + Acc(log(sum)));
}

/// The same where the largest score is in units of log 2, and the sum one of 2^(s - max).
template <typename Acc>
Acc log_sum_exp(const Acc& max, const Acc& sum) {
  constexpr double ln2 = 0.69314718055994531;
  if (is_empty_row(sum)) return negative_infinity<Acc>();
  return static_cast<Acc>(static_cast<double>(max) * ln2 + std::log(static_cast<double>(sum)));
}

/// The largest score of a row without a sink, from the same two: -infinity for the empty row.
template <typename Acc>
Acc largest_score_of(const Acc& max, const Acc& sum) {
  constexpr double ln2 = 0.69314718055994531;
  if (is_empty_row(sum)) return negative_infinity<Acc>();
  return static_cast<Acc>(static_cast<double>(max) * ln2);
}

/// Whether a score function has masked the pair whose score this is.
template <typename Acc>
bool masked_by_function(const score_params<Acc>& score, const Acc& s) {
  return score.score_hook.run && is_negative_infinity(s);
}

/// The weight under which a value is summed, of a softmax's: after the weight function and dropout.
template <typename Acc>
Acc value_weight(const score_params<Acc>& score, const Acc& weight, size i, size j) {
  return score.weight_hook.run ? hooked(score.weight_hook, score, weight, i, j) : weight;
}

}  // namespace detail
HEED_NAMESPACE_END
