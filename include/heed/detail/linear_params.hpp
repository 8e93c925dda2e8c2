#pragma once

#include <heed/detail/params.hpp>

#include <limits>

HEED_NAMESPACE_BEGIN
namespace detail {

/// An entry of a state that decays counts as 0 below this, 2^-102 in float and 2^-998 in double: a
/// product below the normal numbers takes a CPU a hundred cycles, and a state that fades slowly
/// would have some at every token. The 2^24 above them are room for what an entry is multiplied by
/// before it is looked at again: queries, keys and the decays of tokens_to_settle. Where these
/// decay further, the next look makes it 0.
template <typename Acc>
constexpr Acc least_state = (std::numeric_limits<Acc>::min)() * Acc(1 << 24);
/// A path that would be slower for a look at the state after each token takes one after so many, of
/// which a chunk has no more, and at a call's end.
constexpr size tokens_to_settle = 48;

/// The rows that are read and written after those of a chunk: of the same head's next chunk or,
/// where heads take turns, of the next head.
template <typename In, typename Acc>
struct linear_ahead {
  const In *query = nullptr, *key = nullptr, *value = nullptr;
  const Acc* log_gate = nullptr;
  const In* out = nullptr;
  bool in_turns = false;   // with other heads
  bool next_chunk = true;  // false: the same tokens of the next head
};

/// One key/value head of linear attention or of the delta rule and the query heads that read its
/// state. Strides count elements.
template <typename In, typename Acc>
struct linear_params {
  const In* query = nullptr;
  const In* key = nullptr;
  const In* value = nullptr;
  In* out = nullptr;
  size query_head = 0, query_row = 0, query_col = 1;
  size key_row = 0, key_col = 1;
  size value_row = 0, value_col = 1;
  size out_head = 0, out_row = 0, out_col = 1;
  const Acc* log_gate = nullptr;  // null: no decay
  size gate_row = 0, gate_col = 0,
       gate_cols = 1;         // 1: one gate per token; d_k: per token and key dimension
  const Acc* beta = nullptr;  // null: linear attention; else the delta rule
  size beta_row = 0;
  const Acc* bonus = nullptr;  // null: the state is read after the update
  size bonus_col = 0;
  Acc* state = nullptr;  // d_k x (d_v, and one more with normalise); null: zeros, not kept
  size state_row = 0, state_col = 1;
  size query_heads = 0, tokens = 0, d_k = 0, d_v = 0;
  size chunk = 1;           // tokens that are worked on together
  size begin = 0, end = 0;  // a call works on the chunks that begin in here, the first call of a
                            // head with begin 0
  linear_ahead<In, Acc> ahead;
  Acc scale = 1, epsilon = 0;
  bool elu_plus_one = false, normalise = false;
  Acc* own_state = nullptr;  // linear_layout's `state_elements`, where `state` cannot be worked on;
                             // the head's, between calls
  void* scratch = nullptr;   // 64-byte aligned, of the bytes of a linear_layout
};

/// Where the kernel keeps what. Every row starts on a cache line.
template <typename Acc>
struct linear_layout : scratch_layout {
  size keys, dims, values;  // row lengths: tokens of a chunk and room for a vector more, d_k, d_v
                            // with the normaliser's column
  size state_elements;      // of a state of such rows
  size key, value, update, key_t, last, gamma, weights, decay, query, near_query, far_query, gates,
      carried, forward, total, bonus, out;

  linear_layout(size chunk, size d_k, size state_cols, size tile_rows)
      : keys(padded_row(chunk) + padded_row(1)),
        dims(padded_row(d_k)),
        values(padded_row(state_cols)),
        state_elements(d_k * values) {
    key = take<Acc>(chunk * dims);
    value = take<Acc>(chunk * values);
    update = take<Acc>(chunk * values);
    key_t = take<Acc>(d_k * keys);
    last = take<Acc>(keys);
    gamma = take<Acc>(keys);
    weights = take<Acc>(tile_rows * keys);
    decay = take<Acc>(tile_rows * keys);
    query = take<Acc>(tile_rows * dims);
    near_query = take<Acc>(tile_rows * dims);
    far_query = take<Acc>(tile_rows * dims);
    gates = take<Acc>(tile_rows * dims);
    carried = take<Acc>(tile_rows * dims);
    forward = take<Acc>(dims);
    total = take<Acc>(dims);
    bonus = take<Acc>(dims);
    out = take<Acc>(tile_rows * values);
  }
};

/// The kernel of one instruction set, and how many rows its register tile has.
template <typename In, typename Acc>
struct linear_kernel {
  size (*run)(const linear_params<In, Acc>&) noexcept;
  size tile_rows;

  /// Tokens of a chunk where the caller leaves it to the library. Within a chunk a token costs
  /// chunk / 2 (d_k + d_v) multiply-adds, on top of 2 d_k d_v for the state: a longer chunk is more
  /// work, has longer sums to round and leaves the first-level cache; a shorter one brings the
  /// state through the registers more often. float, d = 64, ns a token: with AVX-512 and 48 KiB of
  /// cache 137 at 32, 156 at 48, 166 at 64, 195 at 96; with AVX2 and 32 KiB 232 at 16, 238 at 24,
  /// 244 at 32.
  size chunk() const { return 4 * tile_rows; }
};

}  // namespace detail
HEED_NAMESPACE_END
