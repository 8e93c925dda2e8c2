#pragma once

#include <heed/detail/params.hpp>

// What functions outside the kernels do with the blocks of scores or weights that a kernel hands them.

HEED_NAMESPACE_BEGIN
namespace detail {

/// Makes every element x of n that lie side by side update(x, place). A kernel's scratch is nothing that `update` looks at, and the
/// inner loop's length is known: of a simple function a compiler makes vectors, at -O2 too.
template <typename Acc, typename Update>
void update_line(Acc* __restrict line, size n, const Update& update) {
  constexpr size some = 8;
  size at = 0;
  for (; at + some <= n; at += some)
    for (size k = 0; k < some; ++k) line[at + k] = update(line[at + k], at + k);
  for (; at < n; ++at) line[at] = update(line[at], at);
}

/// Makes every element x of a block update(x, i, j).
template <typename Acc, typename Update>
void update_block(const score_block<Acc>& block, const Update& update) {
  const size n_q = block.i_end - block.i_begin, n_kv = block.j_end - block.j_begin;
  if (block.query_step == 1) {
    for (size k = 0; k < n_kv; ++k)
      update_line(block.data + k * block.key_step, n_q,
                  [&](const Acc& x, size q) { return update(x, block.i_begin + q, block.j_begin + k); });
  } else {
    for (size q = 0; q < n_q; ++q)
      update_line(block.data + q * block.query_step, n_kv,
                  [&](const Acc& x, size k) { return update(x, block.i_begin + q, block.j_begin + k); });
  }
}

}  // namespace detail
HEED_NAMESPACE_END
