#pragma once

#include <heed/detail/dispatch.hpp>
#include <heed/detail/kernels.hpp>
#include <heed/executor.hpp>
#include <heed/isa.hpp>
#include <heed/types.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <type_traits>

// The yardsticks: what this machine can do at most, measured and not looked up.

HEED_NAMESPACE_BEGIN
HEED_BEGIN_BASELINE
#include "burst.inc"
HEED_END_REGION
#if HEED_X86
HEED_BEGIN_AVX2
#include "burst.inc"
HEED_END_REGION
HEED_BEGIN_AVX512
#include "burst.inc"
HEED_END_REGION
#endif
HEED_NAMESPACE_END

namespace bench {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Whether this CPU multiplies pairs of bfloat16 (AVX512-BF16).
inline bool has_bf16_pairs() {
#if HEED_X86
  return heed::detail::cpu().avx512_bf16;
#else
  return false;
#endif
}

#if HEED_X86
/// burst_vectors vdpbf16ps a step, 64 operations each.
__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) inline void bf16_burst(long steps) {
  constexpr int vectors = heed::detail::avx512::burst_vectors;
  __m512 sums[vectors];
  HEED_UNROLL
  for (int i = 0; i < vectors; ++i)
    sums[i] = _mm512_set1_ps(float(i));  // unlike each other, or the compiler merges them
  const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
  for (long s = 0; s < steps; ++s) {
    HEED_UNROLL
    for (int i = 0; i < vectors; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], ones, ones);
  }
  HEED_UNROLL
  for (int i = 0; i < vectors; ++i) __asm__ volatile("" : : "m"(sums[i]));
}
#endif

/// A burst, and the operations of one of its steps.
struct burst {
  void (*run)(long steps);
  double operations;
};

/// The multiply-adds of Acc (float or double) on one instruction set.
template <typename Acc>
burst fma_burst(heed::isa target) {
  return heed::detail::with_kernels(target, [](auto set) {
    using V = decltype(vector_beside(set, Acc()));
    return burst{burst_of(static_cast<const V*>(nullptr)),
                 2.0 * heed::detail::baseline::burst_vectors * V::lanes};
  });
}

/// Operations a second that one core reaches at best: the best of many bursts, each too short (some
/// 20 microseconds) for an interruption to hit them all.
inline double best_rate(const burst& work, double seconds = 0.004) {
  constexpr long steps = 2000;
  double best = 0;
  const auto start = std::chrono::steady_clock::now();
  do {
    const auto burst_start = std::chrono::steady_clock::now();
    work.run(steps);
    best = (std::max)(best, double(steps) * work.operations / seconds_since(burst_start));
  } while (seconds_since(start) < seconds);
  return best;
}

template <typename Acc>
double fma_peak(heed::isa target = heed::isa::automatic) {
  return best_rate(fma_burst<Acc>(target));
}

/// 0 where there is no such instruction.
inline double bf16_peak() {
#if HEED_X86
  if (has_bf16_pairs()) return best_rate({bf16_burst, 64.0 * heed::detail::avx512::burst_vectors});
#endif
  return 0;
}

/// Bytes a second at which `threads` threads read this memory from front to back, each its own
/// share: the best of some passes. What is measured is what the caller will read: the same pages.
/// `bytes` should be far more than the caches hold.
inline double read_bandwidth(const void* data, std::size_t bytes, int threads) {
  struct share {
    const float* data;
    heed::size_type count;
    void (*read)(const float*, heed::size_type);
  };
  share each{static_cast<const float*>(data),
             heed::size_type(bytes / sizeof(float) / std::size_t(threads)) / 256 * 256,
             heed::detail::with_kernels(heed::best_isa(), [](auto set) {
               using V = decltype(vector_beside(set, float()));
               return read_burst_of(static_cast<const V*>(nullptr));
             })};
  const auto work = [](void* context, int worker) {
    const share& mine = *static_cast<share*>(context);
    mine.read(mine.data + worker * mine.count, mine.count);
  };
  heed::thread_executor pool(threads);
  double best = 0;
  for (int pass = 0; pass < 4; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(threads, work, &each);
    best = (std::max)(best, double(each.count) * threads * sizeof(float) / seconds_since(start));
  }
  return best;
}

}  // namespace bench
