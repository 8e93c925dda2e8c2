#pragma once

#include <heed/detail/simd/avx512.hpp>

#if HEED_X86_BF16
HEED_NAMESPACE_BEGIN
HEED_BEGIN_AVX512_BF16

// What AVX512-BF16 adds to the vectors of AVX-512: pairs of bfloat16, a pair a lane, and the
// product that adds both of a pair to a float.

using namespace avx512;

struct bf16_pair {
  bfloat16_bits first, second;
};

struct bf16_pairs {
  __m512i reg;

  HEED_INLINE static bf16_pairs broadcast(const void* p) {
    int both;
    __builtin_memcpy(&both, p, sizeof both);
    return {_mm512_set1_epi32(both)};
  }
  /// Numbers side by side, any alignment; with n (0 <= n <= 32) the rest are 0 and memory past them
  /// is not touched.
  HEED_INLINE static bf16_pairs load(const void* p) { return {_mm512_loadu_si512(p)}; }
  HEED_INLINE static bf16_pairs load(const bfloat16_bits* p, size n) {
    return {_mm512_maskz_loadu_epi16(n >= 32 ? 0xffffffffu : (1u << n) - 1u, p)};
  }
  HEED_INLINE void store(void* p) const { _mm512_storeu_si512(p, reg); }
  /// The bits of each pair as a float, to be moved about.
  HEED_INLINE f32 as_lanes() const { return {_mm512_castsi512_ps(reg)}; }

  /// The pairs (a, b) of numbers that are bfloat16 already.
  HEED_INLINE static bf16_pairs of(f32 a, f32 b) {
    return {_mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(a.reg), 16),
                            _mm512_castps_si512(b.reg))};
  }
  /// The pairs (a, b), rounded to nearest even.
  HEED_INLINE static bf16_pairs rounded(f32 a, f32 b) {
    const __m512i lanes_of_a_then_b = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b.reg, a.reg));
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return {_mm512_permutexvar_epi16(order, lanes_of_a_then_b)};
  }
  /// The first of each pair where `first` is true, the second where `second` is; the others become
  /// 0.
  HEED_INLINE bf16_pairs only(f32::mask first, f32::mask second) const {
    const __m512i one = _mm512_maskz_set1_epi32(first.reg, 0xffff),
                  other = _mm512_maskz_set1_epi32(second.reg, -0x10000);
    return {_mm512_and_si512(reg, _mm512_or_si512(one, other))};
  }
  HEED_INLINE bool all_finite() const {
    const f32 odd{_mm512_castsi512_ps(reg)}, even{_mm512_castsi512_ps(_mm512_slli_epi32(reg, 16))};
    return !any(not_finite(odd) | not_finite(even));
  }
};

/// c + a.second * b.second + a.first * b.first, rounded twice; denormal numbers are taken as 0.
HEED_INLINE f32 fma(bf16_pairs a, bf16_pairs b, f32 c) {
  return {_mm512_dpbf16_ps(c.reg, reinterpret_cast<__m512bh>(a.reg),
                           reinterpret_cast<__m512bh>(b.reg))};
}

#include <heed/detail/kernel/pair_form.inc>

template <typename In>
forward_kernel<In, In, float> kernels::attention_in_pairs() {
  return {forward<f32, In, In>, forward_width<f32>};
}

HEED_END_REGION
HEED_NAMESPACE_END
#endif
