#pragma once

#include <heed/detail/params.hpp>

HEED_NAMESPACE_BEGIN
namespace detail {

/// All query rows that share one key/value head, against the keys [j_begin, j_end), the same for
/// all heads of a call. Row r is query r % n_q of head r / n_q of the group. What comes out is a
/// part: sums over these keys only, not divided by the sum of the weights and without a sink.
template <typename Stored, typename Acc>
struct decode_params {
  const Acc* query = nullptr;  // rows x d_k
  size query_row = 0;
  stored_rows<Stored> key, value;
  const score_params<Acc>* score = nullptr;  // one for each head of the group
  size rows = 0, n_q = 1;
  size d_k = 0, d_v = 0;
  size j_begin = 0, j_end = 0;
  Acc* out = nullptr;       // rows x d_v, dense: sum over j of 2^(s - max) times value j
  Acc* max = nullptr;       // the largest score s of each row in units of log 2; the lowest finite
                            // number if there is none
  Acc* sum = nullptr;       // sum over j of 2^(s - max); 0: the row saw no key
  void* scratch = nullptr;  // 64-byte aligned, of the bytes of a decode_layout
};

/// Keys that are scored, then weighed, then summed up, at most: a multiple of every vector's lanes
/// and of the keys of every register tile.
constexpr size decode_block = 48;
/// Half as many where a row has more bytes than this, so that K and V rows stay in the nearest
/// cache (12 KiB each for 128 floats).
constexpr size decode_block_of(size row_bytes) {
  return row_bytes > 256 ? decode_block / 2 : decode_block;
}

/// Where a head keeps what: packed queries, scores, and of each row its running sums (a vector of
/// the widest instruction set), its maximum, its rescale and the sums of values of a block.
template <typename Acc>
struct decode_layout : scratch_layout {
  size query, scores, sums, maxima, alpha, part;

  decode_layout(size rows, size d_k, size d_v) {
    constexpr size widest = padded_row(1);
    query = take<Acc>(rows * padded_row(d_k));
    scores = take<Acc>(rows * decode_block);
    sums = take<Acc>(padded_row(rows) * widest);
    maxima = take<Acc>(padded_row(rows));
    alpha = take<Acc>(padded_row(rows));
    part = take<Acc>(rows * d_v);
  }
};

/// Scratch that the heads of a worker use in turns: copies of a block of keys and values, and which
/// pairs of the block are seen.
template <typename Acc>
struct decode_copies_layout : scratch_layout {
  size key, value, seen;

  decode_copies_layout(size rows, size d_k, size d_v) {
    key = take<Acc>(decode_block * padded_row(d_k));
    value = take<Acc>(decode_block * padded_row(d_v));
    seen = take<bool>(rows * decode_block);
  }
};
template <typename Acc>
struct decode_copies {
  Acc *key, *value;
  bool* seen;

  static decode_copies carve(void* scratch, const decode_copies_layout<Acc>& at) {
    return {scratch_at<Acc>(scratch, at.key), scratch_at<Acc>(scratch, at.value),
            scratch_at<bool>(scratch, at.seen)};
  }
};

/// The kernels of one instruction set for queries of one type and keys and values of another.
template <typename Query, typename Stored, typename Acc>
struct decode_kernel {
  void (*load_query)(const Query*, size row, size col, size rows, size cols, Acc* to,
                     size to_row) noexcept;
  void (*run)(const decode_params<Stored, Acc>* heads, size num_heads,
              const decode_copies<Acc>&) noexcept;
  void (*merge_row)(const Acc* part, const Acc* factor, size step, size parts, size d, Query* to,
                    size col) noexcept;
};

}  // namespace detail
HEED_NAMESPACE_END
