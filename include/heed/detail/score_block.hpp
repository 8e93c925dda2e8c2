#pragma once

#include <heed/detail/params.hpp>

#include <algorithm>

// What functions outside the kernels do with the blocks of scores or weights that a kernel hands
// them.

HEED_NAMESPACE_BEGIN
namespace detail {

/// The pairs of a block that position leaves visible, i + band.low <= j <= i + band.high: functions
/// see no other.
template <typename Acc>
struct visible_block : score_block<Acc> {
  detail::band band;
};

/// Something of the call that works on the visible pairs of a block of head h of sequence b.
template <typename Acc>
struct pair_hook {
  void (*run)(const void* context, size b, size h, const visible_block<Acc>& block) = nullptr;
  const void* context = nullptr;
};

/// Makes every element x of n that are side by side update(x, place). A kernel's scratch is nothing
/// that `update` looks at, and the inner loop's length is known: of a simple function a compiler
/// makes vectors, at -O2 too.
template <typename Acc, typename Update>
void update_line(Acc* __restrict line, size n, const Update& update) {
  constexpr size some = 8;
  size at = 0;
  for (; at + some <= n; at += some)
    for (size k = 0; k < some; ++k) line[at + k] = update(line[at + k], at + k);
  for (; at < n; ++at) line[at] = update(line[at], at);
}

/// Makes the element x of every visible pair of a block update(x, i, j).
template <typename Acc, typename Update>
void update_block(const visible_block<Acc>& block, const Update& update) {
  const size low = block.band.low, high = block.band.high;
  if (block.query_step == 1) {
    for (size j = block.j_begin; j < block.j_end; ++j) {
      const size first = (std::max)(block.i_begin, j - high),
                 end = (std::min)(block.i_end, j - low + 1);
      if (first < end)
        update_line(block.data + (j - block.j_begin) * block.key_step + (first - block.i_begin),
                    end - first, [&](const Acc& x, size q) { return update(x, first + q, j); });
    }
  } else {
    for (size i = block.i_begin; i < block.i_end; ++i) {
      const size first = (std::max)(block.j_begin, i + low),
                 end = (std::min)(block.j_end, i + high + 1);
      if (first < end)
        update_line(block.data + (i - block.i_begin) * block.query_step + (first - block.j_begin),
                    end - first, [&](const Acc& x, size k) { return update(x, i, first + k); });
    }
  }
}

}  // namespace detail
HEED_NAMESPACE_END
