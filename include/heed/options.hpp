#pragma once

#include <heed/execution.hpp>
#include <heed/types.hpp>

#include <optional>

HEED_NAMESPACE_BEGIN

/// Which keys a query sees, by position. With n_q == n_kv both alignments are j <= i; otherwise the
/// name says which corner the diagonal starts from: `top_left` is j <= i, `bottom_right` is j <= i
/// + n_kv - n_q (the last query sees the last key).
enum class causal : unsigned char { none, top_left, bottom_right };

/// The options of one call of attention. An aggregate: C++20 users may write {.causal =
/// heed::causal::bottom_right}.
struct attention_options {
  /// Multiplies query . key. Absent: 1 / sqrt(head_dim). 0 is a literal 0 (every visible key weighs
  /// the same).
  std::optional<double> scale{};
  /// Which keys a query sees by position.
  heed::causal causal = heed::causal::none;
  /// How many keys a query sees to the left of its own position, besides its own; -1 is unbounded.
  /// The position is on the diagonal of `causal`, and on the bottom-right diagonal when `causal` is
  /// none.
  size_type window_left = -1;
  /// The same to the right.
  size_type window_right = -1;
  /// s becomes softcap * tanh(s / softcap) after the scale and before biases and masks; 0 is off.
  double softcap = 0;
  /// Instruction set, threads, pool.
  heed::execution execution{};
};

HEED_NAMESPACE_END
