#pragma once

#include <heed/detail/number.hpp>
#include <heed/detail/problem.hpp>
#include <heed/detail/score.hpp>

#include <cstdint>

// A query and the keys of its list alone: to a path they are keys 0, 1, ... of a head of one query.

HEED_NAMESPACE_BEGIN
namespace detail {

/// Words of a set of n keys, a bit for each.
constexpr size_type key_set_words(size_type n) { return (n + 63) / 64; }

/// Puts the keys of a list that query i of sequence b sees by position into `keys`, each once and
/// in the order of the list, and returns how many they are. `taken`, a set of keys, is empty before
/// and after.
template <typename Scalar, typename Stored>
size_type gather_keys(const problem<Scalar, Stored>& p, size_type b, size_type i,
                      const key_list& list, std::uint64_t* taken, size_type* keys) {
  const index_range reach = p.band(b).keys_of(i, i + 1, p.n_kv(b));
  size_type count = 0;
  for (size_type n = 0; n < list.count; ++n) {
    const size_type j = list[n];
    if (j < reach.begin || j >= reach.end) continue;  // -1 too
    std::uint64_t& word = taken[j / 64];
    const std::uint64_t bit = std::uint64_t{1} << j % 64;
    if (word & bit) continue;
    word |= bit;
    keys[count++] = j;
  }
  for (size_type n = 0; n < count; ++n) taken[keys[n] / 64] = 0;
  return count;
}

/// What is left of the rule of a score where a path does not know which keys it has: after scale
/// and softcap, pair by pair, by the numbers that keys have in the sequence.
template <typename Acc>
struct selected_row {
  score_params<Acc> score;
  const size* keys = nullptr;
  size i = 0;

  /// Makes a row of query `query` and returns the score for the path, which looks at this row.
  score_params<Acc> begin(const score_params<Acc>& of_head, const size* list, size query) {
    score = of_head, keys = list, i = query;
    score.scale = Acc(1), score.softcap = Acc(0);
    score.band = {};  // gather_keys has looked at it
    score_params<Acc> path;
    path.scale = of_head.scale, path.softcap = of_head.softcap;
    path.has_sink = of_head.has_sink, path.sink = of_head.sink;
    path.b = of_head.b, path.h = of_head.h;
    if (score.changes_scores() || score.may_hide(i, 1, i, 1) || score.blocks.states ||
        score.mask_hook.run)
      path.score_hook = {&change_scores, this};
    if (score.weight_hook.run) path.weight_hook = {&change_weights, this};
    return path;
  }

 private:
  template <typename Change>
  static void change(const score_block<Acc>& block, const Change& make) {
    for (size n = block.j_begin; n < block.j_end; ++n) {
      Acc& x = block.data[(n - block.j_begin) * block.key_step];
      x = make(x, n);
    }
  }
  static void change_scores(const void* context, size, size, const score_block<Acc>& block) {
    const selected_row& row = *static_cast<const selected_row*>(context);
    change(block, [&](const Acc& x, size n) {
      return visible(row.score, row.i, row.keys[n]) ? score_of(row.score, x, row.i, row.keys[n])
                                                    : negative_infinity<Acc>();
    });
  }
  static void change_weights(const void* context, size, size, const score_block<Acc>& block) {
    const selected_row& row = *static_cast<const selected_row*>(context);
    change(block,
           [&](const Acc& x, size n) { return value_weight(row.score, x, row.i, row.keys[n]); });
  }
};

/// Makes head (b, h) with query i alone one of the first `count` of `keys`. `row` must stay where
/// it is while the head is used.
template <typename Scalar, typename Stored>
head_problem<Scalar, Stored> selected_head(const problem<Scalar, Stored>& p, size_type b,
                                           size_type h, size_type i, const size_type* keys,
                                           size_type count,
                                           selected_row<accumulator_t<Scalar>>& row) {
  head_problem<Scalar, Stored> one = p.head(b, h, i, 1);
  one.key.selected = one.value.selected = keys;
  one.key.rows = one.value.rows = count;
  one.score = row.begin(one.score, keys, i);
  return one;
}

}  // namespace detail
HEED_NAMESPACE_END
