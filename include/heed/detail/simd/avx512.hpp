#pragma once

#include <heed/detail/kernel/boundary.hpp>

#if HEED_X86
HEED_NAMESPACE_BEGIN
HEED_BEGIN_AVX512

#if !defined(__clang__)
#pragma GCC diagnostic ignored \
    "-Wsign-conversion"  // at -O0 the intrinsics are macros, whose masks of all ones are -1
#endif

// The vectors of AVX-512 (F, DQ, BW, VL); the operations are described in region.hpp.

struct f32 {
  using scalar = float;
  static constexpr int lanes = 16, tile_rows = 8, tile_vectors = 3;
  struct mask {
    __mmask16 reg;
  };
  __m512 reg;

  HEED_INLINE static __mmask16 first_bits(size n) {
    return static_cast<__mmask16>(n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u);
  }
  HEED_INLINE static mask first(size n) { return {first_bits(n)}; }
  HEED_INLINE static mask load_mask(const bool* p, size n) {
    const __m128i bytes = _mm_maskz_loadu_epi8(first_bits(n), p);
    return {_mm_test_epi8_mask(bytes, bytes)};
  }
  HEED_INLINE static f32 zero() { return {_mm512_setzero_ps()}; }
  HEED_INLINE static f32 broadcast(float x) { return {_mm512_set1_ps(x)}; }
  HEED_INLINE static f32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  HEED_INLINE static f32 load(const float* p, size n) {
    return {_mm512_maskz_loadu_ps(first_bits(n), p)};
  }
  HEED_INLINE void store(float* p) const { _mm512_storeu_ps(p, reg); }
  HEED_INLINE void store(float* p, size n) const { _mm512_mask_storeu_ps(p, first_bits(n), reg); }

  HEED_INLINE static f32 widen(const bfloat16_bits*, __m256i u) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(u), 16))};
  }
  HEED_INLINE static f32 widen(const half_bits*, __m256i u) { return {_mm512_cvtph_ps(u)}; }
  HEED_INLINE static void load_even_odd(const bfloat16_bits* p, f32& even, f32& odd) {
    const __m512i u = _mm512_loadu_si512(p);
    even = {_mm512_castsi512_ps(_mm512_slli_epi32(u, 16))};
    odd = {_mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32(-0x10000)))};
  }
  HEED_INLINE __m256i narrow(const bfloat16_bits*) const {
    const __m512i u = _mm512_castps_si512(reg);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    const __m512i bits = _mm512_mask_mov_epi32(rounded, _mm512_fpclass_ps_mask(reg, 0x81), quiet);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
  }
  HEED_INLINE __m256i narrow(const half_bits*) const {
    return _mm512_cvtps_ph(reg, _MM_FROUND_TO_NEAREST_INT);
  }
  HEED_INLINE static f32 widen(const std::int8_t*, __m128i u) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(u))};
  }
  HEED_INLINE static f32 widen(const float8_e5m2*, __m128i u) {
    return {_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(u), 8))};
  }
  HEED_INLINE static f32 widen(const float8_e4m3*, __m128i u) {
    return widen_e4m3(_mm256_slli_epi16(_mm256_cvtepu8_epi16(u), 8));
  }
  HEED_INLINE static f32 widen_e4m3(__m256i upper) {
    // As a half it is 2^-8 of itself, with a bit of the sign to clear in between; only NaN, all
    // ones, carries into that bit, and is NaN with it.
    const __m256i bit = _mm256_set1_epi16(0x4000);
    const __m256i half = _mm256_and_si256(_mm256_srai_epi16(upper, 1), _mm256_set1_epi16(-0x4080));
    const __m256i nan = _mm256_and_si256(bit, _mm256_add_epi16(half, _mm256_set1_epi16(0x80)));
    return {_mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(half, nan)), _mm512_set1_ps(256))};
  }
  HEED_INLINE static void load_even_odd(const float8_e5m2* p, f32& even, f32& odd) {
    const __m256i u = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    even = {_mm512_cvtph_ps(_mm256_slli_epi16(u, 8))};
    odd = {_mm512_cvtph_ps(_mm256_and_si256(u, _mm256_set1_epi16(-0x100)))};
  }
  HEED_INLINE static bool has_nan(const float8_e4m3* p, size n) {
    const __m512i nan = _mm512_set1_epi8(0x7f);
    __mmask64 some = 0;
    for (; n > 0; n -= 64, p += 64) {
      const __mmask64 there = n < 64 ? (__mmask64{1} << n) - 1 : ~__mmask64{0};
      const __m512i u = _mm512_maskz_loadu_epi8(there, p);
      some |= _mm512_cmpeq_epi8_mask(_mm512_and_si512(u, nan), nan);
    }
    return some != 0;
  }
  HEED_INLINE static void load_even_odd(const float8_e4m3* p, f32& even, f32& odd) {
    const __m256i u = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
                  bits = _mm256_set1_epi16(-0x4080);
    const __m256i upper = _mm256_slli_epi16(u, 8);
    even = {_mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(upper, 1), bits))};
    odd = {_mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(u, 1), bits))};
  }
  HEED_INLINE static void broadcast_two(const std::uint16_t* p, f32& a, f32& b) {
    int two;
    __builtin_memcpy(&two, p, 4);
    const __m512i u = _mm512_set1_epi32(two);
    a = {_mm512_castsi512_ps(_mm512_slli_epi32(u, 16))};
    b = {_mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32(-0x10000)))};
  }
  HEED_INLINE static void load_pairs(const std::uint8_t* p, f32 step, f32 start, f32& low,
                                     f32& high) {
    // All 16 numbers that there are, to look them up: the lower 4 bits are where.
    const f32 numbers = {_mm512_fmadd_ps(
        step.reg, _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), start.reg)};
    const __m512i pairs =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    low = {_mm512_permutexvar_ps(pairs, numbers.reg)};
    high = {_mm512_permutexvar_ps(_mm512_srli_epi32(pairs, 4), numbers.reg)};
  }
  template <typename Bits>
  HEED_INLINE static std::enable_if_t<sizeof(Bits) == 1, f32> load(const Bits* p) {
    return widen(p, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  template <typename Bits>
  HEED_INLINE static std::enable_if_t<sizeof(Bits) == 1, f32> load(const Bits* p, size n) {
    return widen(p, _mm_maskz_loadu_epi8(first_bits(n), p));
  }
  template <typename Bits>
  HEED_INLINE static std::enable_if_t<sizeof(Bits) == 2, f32> load(const Bits* p) {
    return widen(p, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  template <typename Bits>
  HEED_INLINE static std::enable_if_t<sizeof(Bits) == 2, f32> load(const Bits* p, size n) {
    return widen(p, _mm256_maskz_loadu_epi16(first_bits(n), p));
  }
  template <typename Bits>
  HEED_INLINE void store(Bits* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(p));
  }
  template <typename Bits>
  HEED_INLINE void store(Bits* p, size n) const {
    _mm256_mask_storeu_epi16(p, first_bits(n), narrow(p));
  }
};

HEED_INLINE f32 operator+(f32 a, f32 b) { return {_mm512_add_ps(a.reg, b.reg)}; }
HEED_INLINE f32 operator-(f32 a, f32 b) { return {_mm512_sub_ps(a.reg, b.reg)}; }
HEED_INLINE f32 operator*(f32 a, f32 b) { return {_mm512_mul_ps(a.reg, b.reg)}; }
HEED_INLINE f32 operator/(f32 a, f32 b) { return {_mm512_div_ps(a.reg, b.reg)}; }
HEED_INLINE f32 fma(f32 a, f32 b, f32 c) { return {_mm512_fmadd_ps(a.reg, b.reg, c.reg)}; }
HEED_INLINE f32(max)(f32 a, f32 b) { return {_mm512_max_ps(a.reg, b.reg)}; }
HEED_INLINE f32 held(f32 a) {
  __asm__("" : "+v"(a.reg));
  return a;
}
HEED_INLINE f32(abs)(f32 a) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0f), a.reg)}; }
HEED_INLINE f32 with_sign(f32 a, f32 b) {
  const __m512 sign = _mm512_set1_ps(-0.0f);
  return {_mm512_or_ps(_mm512_andnot_ps(sign, a.reg), _mm512_and_ps(sign, b.reg))};
}
HEED_INLINE f32 split(f32 a, f32& rest) {
  rest = {_mm512_reduce_ps(a.reg, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
  return a;  // scalef rounds down itself
}
HEED_INLINE f32 split(f32::mask m, f32 a, f32& rest) {
  rest = {_mm512_maskz_reduce_ps(m.reg, a.reg, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
  return a;
}
HEED_INLINE f32 scale(f32 a, f32 n) { return {_mm512_scalef_ps(a.reg, n.reg)}; }
HEED_INLINE f32 scale(f32::mask m, f32 a, f32 n) {
  return {_mm512_maskz_scalef_ps(m.reg, a.reg, n.reg)};
}
HEED_INLINE f32::mask less(f32 a, f32 b) { return {_mm512_cmp_ps_mask(a.reg, b.reg, _CMP_LT_OQ)}; }
HEED_INLINE f32::mask not_less(f32 a, f32 b) {
  return {_mm512_cmp_ps_mask(a.reg, b.reg, _CMP_NLT_UQ)};
}
HEED_INLINE f32::mask not_finite(f32 a) { return {_mm512_fpclass_ps_mask(a.reg, 0x99)}; }
HEED_INLINE f32::mask operator&(f32::mask a, f32::mask b) {
  return {static_cast<__mmask16>(a.reg & b.reg)};
}
HEED_INLINE f32::mask operator|(f32::mask a, f32::mask b) {
  return {static_cast<__mmask16>(a.reg | b.reg)};
}
HEED_INLINE f32::mask operator~(f32::mask a) { return {static_cast<__mmask16>(~a.reg)}; }
HEED_INLINE bool any(f32::mask m) { return m.reg != 0; }
HEED_INLINE bool all(f32::mask m) { return m.reg == 0xffff; }
HEED_INLINE f32 select(f32::mask m, f32 a, f32 b) {
  return {_mm512_mask_mov_ps(b.reg, m.reg, a.reg)};
}

HEED_INLINE f32 unpack_low(f32 a, f32 b) { return {_mm512_unpacklo_ps(a.reg, b.reg)}; }
HEED_INLINE f32 unpack_high(f32 a, f32 b) { return {_mm512_unpackhi_ps(a.reg, b.reg)}; }
HEED_INLINE f32 unpack_low2(f32 a, f32 b) {
  return {_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a.reg), _mm512_castps_pd(b.reg)))};
}
HEED_INLINE f32 unpack_high2(f32 a, f32 b) {
  return {_mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a.reg), _mm512_castps_pd(b.reg)))};
}
// Quarters 0 and 2 (or 1 and 3) of a, then of b.
HEED_INLINE f32 even_quarters(f32 a, f32 b) { return {_mm512_shuffle_f32x4(a.reg, b.reg, 0x88)}; }
HEED_INLINE f32 odd_quarters(f32 a, f32 b) { return {_mm512_shuffle_f32x4(a.reg, b.reg, 0xdd)}; }

HEED_INLINE void transpose(f32 (&v)[16]) {
  f32 t[16];
  HEED_UNROLL
  for (int i = 0; i < 16; i += 4) {  // each quarter: a transposed 4 x 4 block
    const f32 a = unpack_low(v[i], v[i + 1]), b = unpack_high(v[i], v[i + 1]);
    const f32 c = unpack_low(v[i + 2], v[i + 3]), d = unpack_high(v[i + 2], v[i + 3]);
    t[i] = unpack_low2(a, c);
    t[i + 1] = unpack_high2(a, c);
    t[i + 2] = unpack_low2(b, d);
    t[i + 3] = unpack_high2(b, d);
  }
  HEED_UNROLL
  for (int i = 0; i < 4; ++i) {  // then the 4 x 4 blocks themselves
    const f32 a = even_quarters(t[i], t[i + 4]), b = odd_quarters(t[i], t[i + 4]);
    const f32 c = even_quarters(t[i + 8], t[i + 12]), d = odd_quarters(t[i + 8], t[i + 12]);
    v[i] = even_quarters(a, c);
    v[i + 4] = even_quarters(b, d);
    v[i + 8] = odd_quarters(a, c);
    v[i + 12] = odd_quarters(b, d);
  }
}
HEED_INLINE f32 sums(const f32 (&v)[16]) {
  f32 t[4];
  HEED_UNROLL
  for (int i = 0; i < 4; ++i) {
    const f32 a = unpack_low(v[4 * i], v[4 * i + 1]) + unpack_high(v[4 * i], v[4 * i + 1]);
    const f32 b = unpack_low(v[4 * i + 2], v[4 * i + 3]) + unpack_high(v[4 * i + 2], v[4 * i + 3]);
    t[i] = unpack_low2(a, b) + unpack_high2(a, b);
  }
  const f32 a = even_quarters(t[0], t[1]) + odd_quarters(t[0], t[1]);
  const f32 b = even_quarters(t[2], t[3]) + odd_quarters(t[2], t[3]);
  return even_quarters(a, b) + odd_quarters(a, b);
}
HEED_INLINE float sum(f32 a) { return _mm512_reduce_add_ps(a.reg); }

struct f64 {
  using scalar = double;
  static constexpr int lanes = 8, tile_rows = 8, tile_vectors = 3;
  struct mask {
    __mmask8 reg;
  };
  __m512d reg;

  HEED_INLINE static __mmask8 first_bits(size n) {
    return static_cast<__mmask8>(n >= 8 ? 0xffu : n <= 0 ? 0u : (1u << n) - 1u);
  }
  HEED_INLINE static mask first(size n) { return {first_bits(n)}; }
  HEED_INLINE static mask load_mask(const bool* p, size n) {
    const __m128i bytes = _mm_maskz_loadu_epi8(first_bits(n), p);
    return {static_cast<__mmask8>(_mm_test_epi8_mask(bytes, bytes))};
  }
  HEED_INLINE static f64 zero() { return {_mm512_setzero_pd()}; }
  HEED_INLINE static f64 broadcast(double x) { return {_mm512_set1_pd(x)}; }
  HEED_INLINE static f64 load(const double* p) { return {_mm512_loadu_pd(p)}; }
  HEED_INLINE static f64 load(const double* p, size n) {
    return {_mm512_maskz_loadu_pd(first_bits(n), p)};
  }
  HEED_INLINE void store(double* p) const { _mm512_storeu_pd(p, reg); }
  HEED_INLINE void store(double* p, size n) const { _mm512_mask_storeu_pd(p, first_bits(n), reg); }
};

HEED_INLINE f64 operator+(f64 a, f64 b) { return {_mm512_add_pd(a.reg, b.reg)}; }
HEED_INLINE f64 operator-(f64 a, f64 b) { return {_mm512_sub_pd(a.reg, b.reg)}; }
HEED_INLINE f64 operator*(f64 a, f64 b) { return {_mm512_mul_pd(a.reg, b.reg)}; }
HEED_INLINE f64 operator/(f64 a, f64 b) { return {_mm512_div_pd(a.reg, b.reg)}; }
HEED_INLINE f64 fma(f64 a, f64 b, f64 c) { return {_mm512_fmadd_pd(a.reg, b.reg, c.reg)}; }
HEED_INLINE f64(max)(f64 a, f64 b) { return {_mm512_max_pd(a.reg, b.reg)}; }
HEED_INLINE f64 held(f64 a) {
  __asm__("" : "+v"(a.reg));
  return a;
}
HEED_INLINE f64(abs)(f64 a) { return {_mm512_andnot_pd(_mm512_set1_pd(-0.0), a.reg)}; }
HEED_INLINE f64 with_sign(f64 a, f64 b) {
  const __m512d sign = _mm512_set1_pd(-0.0);
  return {_mm512_or_pd(_mm512_andnot_pd(sign, a.reg), _mm512_and_pd(sign, b.reg))};
}
HEED_INLINE f64 split(f64 a, f64& rest) {
  rest = {_mm512_reduce_pd(a.reg, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
  return a;  // scalef rounds down itself
}
HEED_INLINE f64 split(f64::mask m, f64 a, f64& rest) {
  rest = {_mm512_maskz_reduce_pd(m.reg, a.reg, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
  return a;
}
HEED_INLINE f64 scale(f64 a, f64 n) { return {_mm512_scalef_pd(a.reg, n.reg)}; }
HEED_INLINE f64 scale(f64::mask m, f64 a, f64 n) {
  return {_mm512_maskz_scalef_pd(m.reg, a.reg, n.reg)};
}
HEED_INLINE f64::mask less(f64 a, f64 b) { return {_mm512_cmp_pd_mask(a.reg, b.reg, _CMP_LT_OQ)}; }
HEED_INLINE f64::mask not_less(f64 a, f64 b) {
  return {_mm512_cmp_pd_mask(a.reg, b.reg, _CMP_NLT_UQ)};
}
HEED_INLINE f64::mask not_finite(f64 a) { return {_mm512_fpclass_pd_mask(a.reg, 0x99)}; }
HEED_INLINE f64::mask operator&(f64::mask a, f64::mask b) {
  return {static_cast<__mmask8>(a.reg & b.reg)};
}
HEED_INLINE f64::mask operator|(f64::mask a, f64::mask b) {
  return {static_cast<__mmask8>(a.reg | b.reg)};
}
HEED_INLINE f64::mask operator~(f64::mask a) { return {static_cast<__mmask8>(~a.reg)}; }
HEED_INLINE bool any(f64::mask m) { return m.reg != 0; }
HEED_INLINE bool all(f64::mask m) { return m.reg == 0xff; }
HEED_INLINE f64 select(f64::mask m, f64 a, f64 b) {
  return {_mm512_mask_mov_pd(b.reg, m.reg, a.reg)};
}

HEED_INLINE f64 unpack_low(f64 a, f64 b) { return {_mm512_unpacklo_pd(a.reg, b.reg)}; }
HEED_INLINE f64 unpack_high(f64 a, f64 b) { return {_mm512_unpackhi_pd(a.reg, b.reg)}; }
HEED_INLINE f64 even_quarters(f64 a, f64 b) { return {_mm512_shuffle_f64x2(a.reg, b.reg, 0x88)}; }
HEED_INLINE f64 odd_quarters(f64 a, f64 b) { return {_mm512_shuffle_f64x2(a.reg, b.reg, 0xdd)}; }

HEED_INLINE void transpose(f64 (&v)[8]) {
  f64 t[8];
  HEED_UNROLL
  for (int i = 0; i < 8; i += 2) {
    t[i] = unpack_low(v[i], v[i + 1]);
    t[i + 1] = unpack_high(v[i], v[i + 1]);
  }
  HEED_UNROLL
  for (int i = 0; i < 2; ++i) {
    const f64 a = even_quarters(t[i], t[i + 2]), b = odd_quarters(t[i], t[i + 2]);
    const f64 c = even_quarters(t[i + 4], t[i + 6]), d = odd_quarters(t[i + 4], t[i + 6]);
    v[i] = even_quarters(a, c);
    v[i + 2] = even_quarters(b, d);
    v[i + 4] = odd_quarters(a, c);
    v[i + 6] = odd_quarters(b, d);
  }
}
HEED_INLINE f64 sums(const f64 (&v)[8]) {
  f64 t[4];
  HEED_UNROLL
  for (int i = 0; i < 4; ++i)
    t[i] = unpack_low(v[2 * i], v[2 * i + 1]) + unpack_high(v[2 * i], v[2 * i + 1]);
  const f64 a = even_quarters(t[0], t[1]) + odd_quarters(t[0], t[1]);
  const f64 b = even_quarters(t[2], t[3]) + odd_quarters(t[2], t[3]);
  return even_quarters(a, b) + odd_quarters(a, b);
}
HEED_INLINE double sum(f64 a) { return _mm512_reduce_add_pd(a.reg); }

#include <heed/detail/kernel/all.inc>

HEED_END_REGION
HEED_NAMESPACE_END
#endif
