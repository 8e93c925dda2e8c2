#pragma once

#include <heed/detail/params.hpp>

HEED_NAMESPACE_BEGIN
namespace detail {

/// One key/value head of linear attention or of the delta rule, all its tokens, and the query heads that read its state.
/// Strides count elements.
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
  const Acc* log_gate = nullptr;                   // null: no decay
  size gate_row = 0, gate_col = 0, gate_cols = 1;  // 1: one gate a token; d_k: one a token and key dimension
  const Acc* beta = nullptr;                       // null: linear attention; else the delta rule
  size beta_row = 0;
  const Acc* bonus = nullptr;  // null: the state is read after the update
  size bonus_col = 0;
  Acc* state = nullptr;  // d_k x (d_v, and one more with normalise); null: zeros, not kept
  size state_row = 0, state_col = 1;
  size query_heads = 0, tokens = 0, d_k = 0, d_v = 0;
  size chunk = 1;  // tokens that are worked on together
  Acc scale = 1, epsilon = 0;
  bool elu_plus_one = false, normalise = false;
  void* scratch = nullptr;  // 64-byte aligned, linear_layout's `elements` of Acc
};

/// Where the kernel keeps what, as offsets into its scratch. Every row starts on a cache line.
struct linear_layout {
  size keys, dims, values;  // row lengths: tokens of a chunk and a vector's room behind, d_k, d_v with the normaliser's column
  size key, value, update, state, key_t, last, gamma, weights, decay, query, near_query, far_query, gates, carried, forward, total,
      bonus, out, elements;

  linear_layout(size chunk, size d_k, size state_cols, size tile_rows)
      : keys(whole(chunk) + 16), dims(whole(d_k)), values(whole(state_cols)), elements(0) {
    key = take(chunk * dims);
    value = take(chunk * values);
    update = take(chunk * values);
    state = take(d_k * values);
    key_t = take(d_k * keys);
    last = take(keys);
    gamma = take(keys);
    weights = take(tile_rows * keys);
    decay = take(tile_rows * keys);
    query = take(tile_rows * dims);
    near_query = take(tile_rows * dims);
    far_query = take(tile_rows * dims);
    gates = take(tile_rows * dims);
    carried = take(tile_rows * dims);
    forward = take(dims);
    total = take(dims);
    bonus = take(dims);
    out = take(tile_rows * values);
  }

 private:
  static size whole(size n) { return (n + 15) / 16 * 16; }
  size take(size count) {
    const size offset = elements;
    elements += count;
    return offset;
  }
};

}  // namespace detail
HEED_NAMESPACE_END
