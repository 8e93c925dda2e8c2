#pragma once

#include <heed/detail/abi.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>

// The boundary between plans and kernels: numbers and pointers, nothing of Eigen.

HEED_NAMESPACE_BEGIN
namespace detail {

using size = std::ptrdiff_t;

/// Stands for "no limit" in a band; small enough that adding an index to it cannot overflow.
constexpr size unbounded = (std::numeric_limits<size>::max)() / 4;

/// Storage of the 16-bit types as a kernel sees them.
struct bfloat16_bits {
  std::uint16_t bits;
};
struct half_bits {
  std::uint16_t bits;
};

/// The diagonal band of visible pairs that causal masks and windows make: query i sees key j when i + low <= j <= i + high.
struct band {
  size low = -unbounded, high = unbounded;
};

/// A callable of the user's, applied to a block of scores (natural units, after scale, softcap, bias and masks of the options):
/// element (i, j) is scores[(j - j_begin) * key_step + (i - i_begin) * query_step].
template <typename Acc>
struct score_hook {
  void (*run)(const void* context, Acc* scores, size i_begin, size i_end, size j_begin, size j_end, size query_step, size key_step) = nullptr;
  const void* context = nullptr;
};

/// How a score comes from a dot product: scale -> softcap -> bias and ALiBi -> masks, then the softmax with the sink.
template <typename Acc>
struct score_params {
  Acc scale = 1;
  Acc softcap = 0;              // 0: off
  detail::band band;
  const Acc* bias = nullptr;    // bias[i * bias_row + j * bias_col]; -inf masks
  size bias_row = 0, bias_col = 0;
  const bool* keep = nullptr;   // keep[i * keep_row + j * keep_col]; true: attend
  size keep_row = 0, keep_col = 0;
  Acc alibi_slope = 0;          // adds -slope * |i + alibi_offset - j|
  size alibi_offset = 0;
  bool has_sink = false;
  Acc sink = 0;                 // joins the denominator, has no value
  score_hook<Acc> hook;
};

/// One head: query rows [row_begin, row_end) against keys [0, n_kv). Strides count elements.
template <typename In, typename Acc>
struct forward_params {
  const In* query = nullptr;
  const In* key = nullptr;
  const In* value = nullptr;
  In* out = nullptr;
  Acc* lse = nullptr;  // natural log, one for each query row; null: not wanted
  size query_row = 0, query_col = 1;
  size key_row = 0, key_col = 1;
  size value_row = 0, value_col = 1;
  size out_row = 0, out_col = 1;
  size lse_row = 1;
  size row_begin = 0, row_end = 0;
  size n_kv = 0, d_k = 0, d_v = 0;
  score_params<Acc> score;
  void* scratch = nullptr;  // 64-byte aligned, as large as the kernel's scratch_bytes says
};

}  // namespace detail
HEED_NAMESPACE_END
