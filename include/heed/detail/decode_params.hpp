#pragma once

#include <heed/detail/params.hpp>

HEED_NAMESPACE_BEGIN
namespace detail {

/// All query rows that share one key/value head, against the keys [j_begin, j_end). Row r is query r % n_q of head r / n_q of the
/// group. What comes out is a part: sums over these keys only, not divided by the sum of the weights and without a sink.
template <typename Stored, typename Acc>
struct decode_params {
  const Acc* query = nullptr;  // rows x d_k
  size query_row = 0;
  row_source<Stored> key, value;
  const score_params<Acc>* score = nullptr;  // one for each head of the group
  size rows = 0, n_q = 1;
  size d_k = 0, d_v = 0;
  size j_begin = 0, j_end = 0;
  Acc* out = nullptr;       // rows x d_v, dense: sum over j of 2^(s - max) times value j
  Acc* max = nullptr;       // the largest score s of each row in units of log 2; the lowest finite number if there is none
  Acc* sum = nullptr;       // sum over j of 2^(s - max); 0: the row saw no key
  void* scratch = nullptr;  // 64-byte aligned, decode_scratch elements of the accumulator type
};

/// Keys that are scored, then weighed, then summed up, at most: a multiple of every vector's lanes and of the keys of every register
/// tile.
constexpr size decode_block = 48;
/// Half as many where a row has more bytes than this, so that K and V rows stay in the nearest cache (12 KiB each for 128 floats).
constexpr size decode_keys(size row_bytes) { return row_bytes > 256 ? decode_block / 2 : decode_block; }

/// Elements of scratch that a call needs: packed queries, scores, running sums, maxima and rescales of the rows, copies of a block of
/// keys and values, and which pairs of the block are seen.
constexpr size decode_scratch(size rows, size d_k, size d_v) {
  return rows * (padded_row(d_k) + 2 * decode_block) + padded_row(rows) * 18 + decode_block * (padded_row(d_k) + padded_row(d_v));
}

}  // namespace detail
HEED_NAMESPACE_END
