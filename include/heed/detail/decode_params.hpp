#pragma once

#include <heed/detail/params.hpp>

HEED_NAMESPACE_BEGIN
namespace detail {

/// The keys or values of one head as a decode kernel reads them: see stored_rows, whose plain twin it is.
template <typename Stored>
struct decode_rows {
  const Stored* data = nullptr;
  size row = 0, col = 1;
  const size* pages = nullptr;  // row j is row j % page_rows of page pages[j / page_rows]; null: rows lie one `row` apart
  size page_rows = 1, page_stride = 0;
  const float* scales = nullptr;  // the factor of each row; null: 1
  size scale_row = 0, scale_page_stride = 0;
};

/// All query rows that share one key/value head, against the keys [j_begin, j_end). Row r is query r % n_q of head r / n_q of the group.
/// What comes out is a part: sums over these keys only, not divided by the sum of the weights and without a sink.
template <typename Stored, typename Acc>
struct decode_params {
  const Acc* query = nullptr;  // rows x d_k
  size query_row = 0;
  decode_rows<Stored> key, value;
  const score_params<Acc>* score = nullptr;  // one for each head of the group
  size rows = 0, n_q = 1;
  size d_k = 0, d_v = 0;
  size j_begin = 0, j_end = 0;
  Acc* out = nullptr;  // rows x d_v, dense: sum over j of 2^(s - max) times value j
  Acc* max = nullptr;  // the largest score s of each row in units of log 2; the lowest finite number if there is none
  Acc* sum = nullptr;  // sum over j of 2^(s - max); 0: the row saw no key
  void* scratch = nullptr;  // 64-byte aligned, decode_scratch elements of the accumulator type
};

/// Keys that are scored, then weighed, then summed up: their K and V rows stay in the nearer caches, and each block asks for the next.
constexpr size decode_block = 64;

/// Widest vector of any instruction set, in elements: every row in scratch is padded to it.
constexpr size decode_padded(size n) { return (n + 15) / 16 * 16; }

/// Elements of scratch that a call needs: packed queries, scores, running sums, maxima and rescales of the rows, copies of a block of keys and
/// values, and which pairs of the block are seen.
constexpr size decode_scratch(size rows, size d_k, size d_v) {
  return rows * (decode_padded(d_k) + 2 * decode_block) + decode_padded(rows) * 18 + decode_block * (decode_padded(d_k) + decode_padded(d_v));
}

}  // namespace detail
HEED_NAMESPACE_END
