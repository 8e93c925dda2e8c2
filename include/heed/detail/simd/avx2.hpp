#pragma once

#include <heed/detail/kernel/boundary.hpp>

#if HEED_X86
HEED_NAMESPACE_BEGIN
HEED_BEGIN_AVX2

// The vectors of AVX2 with FMA and F16C; the operations are described in region.hpp.

struct f32 {
  using scalar = float;
  static constexpr int lanes = 8, tile_rows = 4, tile_vectors = 3;
  struct mask {
    __m256 reg;
  };
  __m256 reg;

  HEED_INLINE static __m256i first_bits(size n) {
    const int count = static_cast<int>(n > 8 ? 8 : n < 0 ? 0 : n);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  HEED_INLINE static mask first(size n) { return {_mm256_castsi256_ps(first_bits(n))}; }
  HEED_INLINE static mask load_mask(const bool* p, size n) {
    long long bytes = 0;
    __builtin_memcpy(&bytes, p, static_cast<unsigned long>(n));
    const __m256i wide = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes));
    return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(wide, _mm256_setzero_si256()))};
  }
  HEED_INLINE static f32 zero() { return {_mm256_setzero_ps()}; }
  HEED_INLINE static f32 broadcast(float x) { return {_mm256_set1_ps(x)}; }
  HEED_INLINE static f32 load(const float* p) { return {_mm256_loadu_ps(p)}; }
  HEED_INLINE static f32 load(const float* p, size n) {
    return {_mm256_maskload_ps(p, first_bits(n))};
  }
  HEED_INLINE void store(float* p) const { _mm256_storeu_ps(p, reg); }
  HEED_INLINE void store(float* p, size n) const { _mm256_maskstore_ps(p, first_bits(n), reg); }

  HEED_INLINE static f32 widen(const bfloat16_bits*, __m128i u) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(u), 16))};
  }
  HEED_INLINE static f32 widen(const half_bits*, __m128i u) { return {_mm256_cvtph_ps(u)}; }
  HEED_INLINE static void load_even_odd(const bfloat16_bits* p, f32& even, f32& odd) {
    const __m256i u = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    even = {_mm256_castsi256_ps(_mm256_slli_epi32(u, 16))};
    odd = {_mm256_castsi256_ps(_mm256_and_si256(u, _mm256_set1_epi32(-0x10000)))};
  }
  HEED_INLINE __m128i narrow(const bfloat16_bits*) const {
    const __m256i u = _mm256_castps_si256(reg);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    const __m256i magnitude = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));
    const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    const __m256i bits = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  }
  HEED_INLINE __m128i narrow(const half_bits*) const {
    return _mm256_cvtps_ph(reg, _MM_FROUND_TO_NEAREST_INT);
  }
  HEED_INLINE static f32 load(const std::int8_t* p) {
    return {_mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
  }
  HEED_INLINE static __m128i load_upper(const void* p) {  // each byte above one of 0
    return _mm_unpacklo_epi8(_mm_setzero_si128(), _mm_loadl_epi64(static_cast<const __m128i*>(p)));
  }
  HEED_INLINE static f32 load(const float8_e5m2* p) { return {_mm256_cvtph_ps(load_upper(p))}; }
  HEED_INLINE static f32 load(const float8_e4m3* p) { return widen_e4m3(load_upper(p)); }
  HEED_INLINE static f32 widen_e4m3(__m128i upper) {
    // As a half it is 2^-8 of itself, with a bit of the sign to clear in between; only NaN, all
    // ones, carries into that bit, and is NaN with it.
    const __m128i bit = _mm_set1_epi16(0x4000);
    const __m128i half = _mm_and_si128(_mm_srai_epi16(upper, 1), _mm_set1_epi16(-0x4080));
    const __m128i nan = _mm_and_si128(bit, _mm_add_epi16(half, _mm_set1_epi16(0x80)));
    return {_mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(half, nan)), _mm256_set1_ps(256))};
  }
  HEED_INLINE static void load_even_odd(const float8_e5m2* p, f32& even, f32& odd) {
    const __m128i u = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    even = {_mm256_cvtph_ps(_mm_slli_epi16(u, 8))};
    odd = {_mm256_cvtph_ps(_mm_and_si128(u, _mm_set1_epi16(-0x100)))};
  }
  HEED_INLINE static bool has_nan(const float8_e4m3* p, size n) {
    const __m256i nan = _mm256_set1_epi8(0x7f);
    __m256i some = _mm256_setzero_si256();
    for (; n >= 32; n -= 32, p += 32) {
      const __m256i u = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
      some = _mm256_or_si256(some, _mm256_cmpeq_epi8(_mm256_and_si256(u, nan), nan));
    }
    bool rest = false;
    for (; n > 0; --n, ++p) rest |= (p->bits & 0x7f) == 0x7f;
    return rest || _mm256_movemask_epi8(some) != 0;
  }
  HEED_INLINE static void load_even_odd(const float8_e4m3* p, f32& even, f32& odd) {
    const __m128i u = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)),
                  bits = _mm_set1_epi16(-0x4080);
    const __m128i upper = _mm_slli_epi16(u, 8);
    even = {_mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(upper, 1), bits))};
    odd = {_mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(u, 1), bits))};
  }
  HEED_INLINE static void broadcast_two(const std::uint16_t* p, f32& a, f32& b) {
    int two;
    __builtin_memcpy(&two, p, 4);
    const __m256i u = _mm256_set1_epi32(two);
    a = {_mm256_castsi256_ps(_mm256_slli_epi32(u, 16))};
    b = {_mm256_castsi256_ps(_mm256_and_si256(u, _mm256_set1_epi32(-0x10000)))};
  }
  HEED_INLINE static void load_pairs(const std::uint8_t* p, f32 step, f32 start, f32& low,
                                     f32& high) {
    const __m256i pairs =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    low = {_mm256_fmadd_ps(
        step.reg, _mm256_cvtepi32_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(15))), start.reg)};
    high = {_mm256_fmadd_ps(step.reg, _mm256_cvtepi32_ps(_mm256_srli_epi32(pairs, 4)), start.reg)};
  }
  template <typename Bits>
  HEED_INLINE static f32 load(const Bits* p) {
    return widen(p, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  template <typename Bits>
  HEED_INLINE static f32 load(const Bits* p, size n) {
    Bits copy[8] = {};
    for (size i = 0; i < n; ++i) copy[i] = p[i];
    return load(copy);
  }
  template <typename Bits>
  HEED_INLINE void store(Bits* p) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(p));
  }
  template <typename Bits>
  HEED_INLINE void store(Bits* p, size n) const {
    Bits copy[8];
    store(copy);
    for (size i = 0; i < n; ++i) p[i] = copy[i];
  }
};

HEED_INLINE f32 operator+(f32 a, f32 b) { return {_mm256_add_ps(a.reg, b.reg)}; }
HEED_INLINE f32 operator-(f32 a, f32 b) { return {_mm256_sub_ps(a.reg, b.reg)}; }
HEED_INLINE f32 operator*(f32 a, f32 b) { return {_mm256_mul_ps(a.reg, b.reg)}; }
HEED_INLINE f32 operator/(f32 a, f32 b) { return {_mm256_div_ps(a.reg, b.reg)}; }
HEED_INLINE f32 fma(f32 a, f32 b, f32 c) { return {_mm256_fmadd_ps(a.reg, b.reg, c.reg)}; }
HEED_INLINE f32(max)(f32 a, f32 b) { return {_mm256_max_ps(a.reg, b.reg)}; }
HEED_INLINE f32 held(f32 a) {
  __asm__("" : "+x"(a.reg));
  return a;
}
HEED_INLINE f32(abs)(f32 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.reg)}; }
HEED_INLINE f32 with_sign(f32 a, f32 b) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(sign, a.reg), _mm256_and_ps(sign, b.reg))};
}
HEED_INLINE f32 split(f32 a, f32& rest) {
  const f32 whole = {_mm256_round_ps(a.reg, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
  rest = a - whole;
  return whole;
}
HEED_INLINE f32 scale(f32 a, f32 n) {
  return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.reg),
                                               _mm256_slli_epi32(_mm256_cvtps_epi32(n.reg), 23)))};
}
HEED_INLINE f32 split(f32::mask m, f32 a, f32& rest) {
  return split({_mm256_and_ps(m.reg, a.reg)}, rest);
}
HEED_INLINE f32 scale(f32::mask m, f32 a, f32 n) { return {_mm256_and_ps(m.reg, scale(a, n).reg)}; }
HEED_INLINE f32::mask less(f32 a, f32 b) { return {_mm256_cmp_ps(a.reg, b.reg, _CMP_LT_OQ)}; }
HEED_INLINE f32::mask not_less(f32 a, f32 b) { return {_mm256_cmp_ps(a.reg, b.reg, _CMP_NLT_UQ)}; }
HEED_INLINE f32::mask not_finite(f32 a) {
  const __m256i exponent = _mm256_set1_epi32(0x7f800000);
  return {_mm256_castsi256_ps(
      _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(a.reg), exponent), exponent))};
}
HEED_INLINE f32::mask operator&(f32::mask a, f32::mask b) { return {_mm256_and_ps(a.reg, b.reg)}; }
HEED_INLINE f32::mask operator|(f32::mask a, f32::mask b) { return {_mm256_or_ps(a.reg, b.reg)}; }
HEED_INLINE f32::mask operator~(f32::mask a) {
  return {_mm256_castsi256_ps(_mm256_xor_si256(_mm256_castps_si256(a.reg), _mm256_set1_epi32(-1)))};
}
HEED_INLINE bool any(f32::mask m) { return _mm256_movemask_ps(m.reg) != 0; }
HEED_INLINE bool all(f32::mask m) { return _mm256_movemask_ps(m.reg) == 0xff; }
HEED_INLINE f32 select(f32::mask m, f32 a, f32 b) {
  return {_mm256_blendv_ps(b.reg, a.reg, m.reg)};
}

HEED_INLINE f32 unpack_low(f32 a, f32 b) { return {_mm256_unpacklo_ps(a.reg, b.reg)}; }
HEED_INLINE f32 unpack_high(f32 a, f32 b) { return {_mm256_unpackhi_ps(a.reg, b.reg)}; }
HEED_INLINE f32 unpack_low2(f32 a, f32 b) {
  return {_mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a.reg), _mm256_castps_pd(b.reg)))};
}
HEED_INLINE f32 unpack_high2(f32 a, f32 b) {
  return {_mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a.reg), _mm256_castps_pd(b.reg)))};
}
HEED_INLINE f32 low_halves(f32 a, f32 b) { return {_mm256_permute2f128_ps(a.reg, b.reg, 0x20)}; }
HEED_INLINE f32 high_halves(f32 a, f32 b) { return {_mm256_permute2f128_ps(a.reg, b.reg, 0x31)}; }

HEED_INLINE void transpose(f32 (&v)[8]) {
  f32 t[8];
  HEED_UNROLL
  for (int i = 0; i < 8; i += 4) {  // each half: a transposed 4 x 4 block
    const f32 a = unpack_low(v[i], v[i + 1]), b = unpack_high(v[i], v[i + 1]);
    const f32 c = unpack_low(v[i + 2], v[i + 3]), d = unpack_high(v[i + 2], v[i + 3]);
    t[i] = unpack_low2(a, c);
    t[i + 1] = unpack_high2(a, c);
    t[i + 2] = unpack_low2(b, d);
    t[i + 3] = unpack_high2(b, d);
  }
  HEED_UNROLL
  for (int i = 0; i < 4; ++i) {
    v[i] = low_halves(t[i], t[i + 4]);
    v[i + 4] = high_halves(t[i], t[i + 4]);
  }
}
HEED_INLINE f32 sums(const f32 (&v)[8]) {
  f32 t[2];
  HEED_UNROLL
  for (int i = 0; i < 2; ++i) {
    const f32 a = unpack_low(v[4 * i], v[4 * i + 1]) + unpack_high(v[4 * i], v[4 * i + 1]);
    const f32 b = unpack_low(v[4 * i + 2], v[4 * i + 3]) + unpack_high(v[4 * i + 2], v[4 * i + 3]);
    t[i] = unpack_low2(a, b) + unpack_high2(a, b);
  }
  return low_halves(t[0], t[1]) + high_halves(t[0], t[1]);
}
HEED_INLINE float sum(f32 a) {
  const __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.reg), _mm256_extractf128_ps(a.reg, 1));
  const __m128 y = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_shuffle_ps(y, y, 1)));
}

struct f64 {
  using scalar = double;
  static constexpr int lanes = 4, tile_rows = 4, tile_vectors = 3;
  struct mask {
    __m256d reg;
  };
  __m256d reg;

  HEED_INLINE static __m256i first_bits(size n) {
    const long long count = n > 4 ? 4 : n < 0 ? 0 : n;
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_setr_epi64x(0, 1, 2, 3));
  }
  HEED_INLINE static mask first(size n) { return {_mm256_castsi256_pd(first_bits(n))}; }
  HEED_INLINE static mask load_mask(const bool* p, size n) {
    int bytes = 0;
    __builtin_memcpy(&bytes, p, static_cast<unsigned long>(n));
    const __m256i wide = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(bytes));
    return {_mm256_castsi256_pd(_mm256_cmpgt_epi64(wide, _mm256_setzero_si256()))};
  }
  HEED_INLINE static f64 zero() { return {_mm256_setzero_pd()}; }
  HEED_INLINE static f64 broadcast(double x) { return {_mm256_set1_pd(x)}; }
  HEED_INLINE static f64 load(const double* p) { return {_mm256_loadu_pd(p)}; }
  HEED_INLINE static f64 load(const double* p, size n) {
    return {_mm256_maskload_pd(p, first_bits(n))};
  }
  HEED_INLINE void store(double* p) const { _mm256_storeu_pd(p, reg); }
  HEED_INLINE void store(double* p, size n) const { _mm256_maskstore_pd(p, first_bits(n), reg); }
};

HEED_INLINE f64 operator+(f64 a, f64 b) { return {_mm256_add_pd(a.reg, b.reg)}; }
HEED_INLINE f64 operator-(f64 a, f64 b) { return {_mm256_sub_pd(a.reg, b.reg)}; }
HEED_INLINE f64 operator*(f64 a, f64 b) { return {_mm256_mul_pd(a.reg, b.reg)}; }
HEED_INLINE f64 operator/(f64 a, f64 b) { return {_mm256_div_pd(a.reg, b.reg)}; }
HEED_INLINE f64 fma(f64 a, f64 b, f64 c) { return {_mm256_fmadd_pd(a.reg, b.reg, c.reg)}; }
HEED_INLINE f64(max)(f64 a, f64 b) { return {_mm256_max_pd(a.reg, b.reg)}; }
HEED_INLINE f64 held(f64 a) {
  __asm__("" : "+x"(a.reg));
  return a;
}
HEED_INLINE f64(abs)(f64 a) { return {_mm256_andnot_pd(_mm256_set1_pd(-0.0), a.reg)}; }
HEED_INLINE f64 with_sign(f64 a, f64 b) {
  const __m256d sign = _mm256_set1_pd(-0.0);
  return {_mm256_or_pd(_mm256_andnot_pd(sign, a.reg), _mm256_and_pd(sign, b.reg))};
}
HEED_INLINE f64 split(f64 a, f64& rest) {
  const f64 whole = {_mm256_round_pd(a.reg, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
  rest = a - whole;
  return whole;
}
HEED_INLINE f64 scale(f64 a, f64 n) {
  const f64 biased =
      n +
      f64::broadcast(
          6755399441056767);  // 1.5 * 2^52 + 1023: the lowest bits are those of the exponent of 2^n
  return a * f64{_mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(biased.reg), 52))};
}
HEED_INLINE f64 split(f64::mask m, f64 a, f64& rest) {
  return split({_mm256_and_pd(m.reg, a.reg)}, rest);
}
HEED_INLINE f64 scale(f64::mask m, f64 a, f64 n) { return {_mm256_and_pd(m.reg, scale(a, n).reg)}; }
HEED_INLINE f64::mask less(f64 a, f64 b) { return {_mm256_cmp_pd(a.reg, b.reg, _CMP_LT_OQ)}; }
HEED_INLINE f64::mask not_less(f64 a, f64 b) { return {_mm256_cmp_pd(a.reg, b.reg, _CMP_NLT_UQ)}; }
HEED_INLINE f64::mask not_finite(f64 a) {
  const __m256i exponent = _mm256_set1_epi64x(0x7ff0000000000000);
  return {_mm256_castsi256_pd(
      _mm256_cmpeq_epi64(_mm256_and_si256(_mm256_castpd_si256(a.reg), exponent), exponent))};
}
HEED_INLINE f64::mask operator&(f64::mask a, f64::mask b) { return {_mm256_and_pd(a.reg, b.reg)}; }
HEED_INLINE f64::mask operator|(f64::mask a, f64::mask b) { return {_mm256_or_pd(a.reg, b.reg)}; }
HEED_INLINE f64::mask operator~(f64::mask a) {
  return {_mm256_castsi256_pd(_mm256_xor_si256(_mm256_castpd_si256(a.reg), _mm256_set1_epi32(-1)))};
}
HEED_INLINE bool any(f64::mask m) { return _mm256_movemask_pd(m.reg) != 0; }
HEED_INLINE bool all(f64::mask m) { return _mm256_movemask_pd(m.reg) == 0xf; }
HEED_INLINE f64 select(f64::mask m, f64 a, f64 b) {
  return {_mm256_blendv_pd(b.reg, a.reg, m.reg)};
}

HEED_INLINE f64 unpack_low(f64 a, f64 b) { return {_mm256_unpacklo_pd(a.reg, b.reg)}; }
HEED_INLINE f64 unpack_high(f64 a, f64 b) { return {_mm256_unpackhi_pd(a.reg, b.reg)}; }
HEED_INLINE f64 low_halves(f64 a, f64 b) { return {_mm256_permute2f128_pd(a.reg, b.reg, 0x20)}; }
HEED_INLINE f64 high_halves(f64 a, f64 b) { return {_mm256_permute2f128_pd(a.reg, b.reg, 0x31)}; }

HEED_INLINE void transpose(f64 (&v)[4]) {
  const f64 a = unpack_low(v[0], v[1]), b = unpack_high(v[0], v[1]);
  const f64 c = unpack_low(v[2], v[3]), d = unpack_high(v[2], v[3]);
  v[0] = low_halves(a, c);
  v[1] = low_halves(b, d);
  v[2] = high_halves(a, c);
  v[3] = high_halves(b, d);
}
HEED_INLINE f64 sums(const f64 (&v)[4]) {
  const f64 a = unpack_low(v[0], v[1]) + unpack_high(v[0], v[1]);
  const f64 b = unpack_low(v[2], v[3]) + unpack_high(v[2], v[3]);
  return low_halves(a, b) + high_halves(a, b);
}
HEED_INLINE double sum(f64 a) {
  const __m128d x = _mm_add_pd(_mm256_castpd256_pd128(a.reg), _mm256_extractf128_pd(a.reg, 1));
  return _mm_cvtsd_f64(_mm_add_sd(x, _mm_unpackhi_pd(x, x)));
}

#include <heed/detail/kernel/all.inc>

HEED_END_REGION
HEED_NAMESPACE_END
#endif
