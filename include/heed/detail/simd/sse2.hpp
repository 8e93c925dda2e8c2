#pragma once

#include <heed/detail/kernel/boundary.hpp>

#if HEED_X86
HEED_NAMESPACE_BEGIN
HEED_BEGIN_BASELINE

// The vectors of SSE2, which every x86-64 has; the operations are described in region.hpp.

struct f32 {
  using scalar = float;
  static constexpr int lanes = 4, tile_rows = 4, tile_vectors = 2;
  struct mask {
    __m128 reg;
  };
  __m128 reg;

  HEED_INLINE static mask first(size n) {
    const int count = static_cast<int>(n > 4 ? 4 : n < 0 ? 0 : n);
    return {_mm_castsi128_ps(_mm_cmpgt_epi32(_mm_set1_epi32(count), _mm_setr_epi32(0, 1, 2, 3)))};
  }
  HEED_INLINE static mask load_mask(const bool* p, size n) {
    int bytes = 0;
    __builtin_memcpy(&bytes, p, static_cast<unsigned long>(n));
    const __m128i zero = _mm_setzero_si128();
    const __m128i wide =
        _mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(bytes), zero), zero);
    return {_mm_castsi128_ps(_mm_cmpgt_epi32(wide, zero))};
  }
  HEED_INLINE static f32 zero() { return {_mm_setzero_ps()}; }
  HEED_INLINE static f32 broadcast(float x) { return {_mm_set1_ps(x)}; }
  HEED_INLINE static f32 load(const float* p) { return {_mm_loadu_ps(p)}; }
  HEED_INLINE static f32 load(const float* p, size n) {
    if (n > 3) return load(p);
    const __m128 zero = _mm_setzero_ps();
    const __m128 two = n > 1   ? _mm_loadl_pi(zero, reinterpret_cast<const __m64*>(p))
                       : n > 0 ? _mm_load_ss(p)
                               : zero;
    return {n > 2 ? _mm_movelh_ps(two, _mm_load_ss(p + 2)) : two};
  }
  HEED_INLINE void store(float* p) const { _mm_storeu_ps(p, reg); }

  HEED_INLINE static f32 load(const std::int8_t* p) {
    int bytes;
    __builtin_memcpy(&bytes, p, 4);
    const __m128i zero = _mm_setzero_si128();
    const __m128i high = _mm_unpacklo_epi16(
        zero,
        _mm_unpacklo_epi8(zero, _mm_cvtsi32_si128(bytes)));  // each byte at the top of 32 bits
    return {_mm_cvtepi32_ps(_mm_srai_epi32(high, 24))};
  }
  HEED_INLINE static __m128i choose(__m128i m, __m128i a, __m128i b) {
    return _mm_or_si128(_mm_and_si128(m, a), _mm_andnot_si128(m, b));
  }
  HEED_INLINE static f32 load(const bfloat16_bits* p) {
    return {_mm_castsi128_ps(_mm_unpacklo_epi16(
        _mm_setzero_si128(), _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
  }
  HEED_INLINE static void load_even_odd(const bfloat16_bits* p, f32& even, f32& odd) {
    const __m128i u = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    even = {_mm_castsi128_ps(_mm_slli_epi32(u, 16))};
    odd = {_mm_castsi128_ps(_mm_and_si128(u, _mm_set1_epi32(-0x10000)))};
  }
  HEED_INLINE static f32 load(const half_bits* p) {
    return widen_halves(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  HEED_INLINE static __m128i load_upper(const void* p) {  // each byte above one of 0
    int bytes;
    __builtin_memcpy(&bytes, p, 4);
    return _mm_unpacklo_epi8(_mm_setzero_si128(), _mm_cvtsi32_si128(bytes));
  }
  HEED_INLINE static f32 load(const float8_e5m2* p) { return widen_halves(load_upper(p)); }
  HEED_INLINE static f32 load(const float8_e4m3* p) { return widen_e4m3(load_upper(p)); }
  HEED_INLINE static f32 widen_e4m3(__m128i upper) {
    // As a half it is 2^-8 of itself, with a bit of the sign to clear in between; only NaN, all
    // ones, carries into that bit, and is NaN with it.
    const __m128i bit = _mm_set1_epi16(0x4000);
    const __m128i half = _mm_and_si128(_mm_srai_epi16(upper, 1), _mm_set1_epi16(-0x4080));
    const __m128i nan = _mm_and_si128(bit, _mm_add_epi16(half, _mm_set1_epi16(0x80)));
    return {_mm_mul_ps(widen_halves(_mm_or_si128(half, nan)).reg, _mm_set1_ps(256))};
  }
  HEED_INLINE static void load_even_odd(const float8_e5m2* p, f32& even, f32& odd) {
    const __m128i u = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    even = widen_halves(_mm_slli_epi16(u, 8));
    odd = widen_halves(_mm_and_si128(u, _mm_set1_epi16(-0x100)));
  }
  HEED_INLINE static bool has_nan(const float8_e4m3* p, size n) {
    const __m128i nan = _mm_set1_epi8(0x7f);
    __m128i some = _mm_setzero_si128();
    for (; n >= 16; n -= 16, p += 16) {
      const __m128i u = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
      some = _mm_or_si128(some, _mm_cmpeq_epi8(_mm_and_si128(u, nan), nan));
    }
    bool rest = false;
    for (; n > 0; --n, ++p) rest |= (p->bits & 0x7f) == 0x7f;
    return rest || _mm_movemask_epi8(some) != 0;
  }
  HEED_INLINE static void load_even_odd(const float8_e4m3* p, f32& even, f32& odd) {
    const __m128i u = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)),
                  bits = _mm_set1_epi16(-0x4080);
    const __m128i upper = _mm_slli_epi16(u, 8);
    even = widen_halves(_mm_and_si128(_mm_srai_epi16(upper, 1), bits));
    odd = widen_halves(_mm_and_si128(_mm_srai_epi16(u, 1), bits));
  }
  HEED_INLINE static void broadcast_two(const std::uint16_t* p, f32& a, f32& b) {
    int two;
    __builtin_memcpy(&two, p, 4);
    const __m128i u = _mm_set1_epi32(two);
    a = {_mm_castsi128_ps(_mm_slli_epi32(u, 16))};
    b = {_mm_castsi128_ps(_mm_and_si128(u, _mm_set1_epi32(-0x10000)))};
  }
  HEED_INLINE static void load_pairs(const std::uint8_t* p, f32 step, f32 start, f32& low,
                                     f32& high) {
    int bytes;
    __builtin_memcpy(&bytes, p, 4);
    const __m128i zero = _mm_setzero_si128();
    const __m128i pairs =
        _mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(bytes), zero), zero);
    low = {
        _mm_add_ps(_mm_mul_ps(step.reg, _mm_cvtepi32_ps(_mm_and_si128(pairs, _mm_set1_epi32(15)))),
                   start.reg)};
    high = {_mm_add_ps(_mm_mul_ps(step.reg, _mm_cvtepi32_ps(_mm_srli_epi32(pairs, 4))), start.reg)};
  }
  HEED_INLINE static f32 widen_halves(__m128i halves) {
    const __m128i u = _mm_unpacklo_epi16(halves, _mm_setzero_si128());
    const __m128i magnitude = _mm_and_si128(u, _mm_set1_epi32(0x7fff));
    const __m128i rebias = _mm_set1_epi32(
        112 << 23);  // the exponent's bias goes from 15 to 127; twice that makes 31 to 255
    const __m128i special =
        _mm_and_si128(_mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7bff)), rebias);
    const __m128i normal =
        _mm_add_epi32(_mm_add_epi32(_mm_slli_epi32(magnitude, 13), rebias), special);
    const __m128i subnormal =
        _mm_castps_si128(_mm_mul_ps(_mm_cvtepi32_ps(magnitude), _mm_set1_ps(0x1p-24f)));
    const __m128i is_subnormal = _mm_cmplt_epi32(magnitude, _mm_set1_epi32(0x400));
    const __m128i sign = _mm_slli_epi32(_mm_xor_si128(u, magnitude), 16);
    return {_mm_castsi128_ps(_mm_or_si128(sign, choose(is_subnormal, subnormal, normal)))};
  }
  HEED_INLINE void store_low_halves(void* p, __m128i u) const {
    const __m128i extended = _mm_srai_epi32(
        _mm_slli_epi32(u, 16), 16);  // so that the saturation of the pack changes nothing
    _mm_storel_epi64(static_cast<__m128i*>(p), _mm_packs_epi32(extended, extended));
  }
  HEED_INLINE void store(bfloat16_bits* p) const {
    const __m128i u = _mm_castps_si128(reg);
    const __m128i odd = _mm_and_si128(_mm_srli_epi32(u, 16), _mm_set1_epi32(1));
    const __m128i rounded = _mm_add_epi32(u, _mm_add_epi32(odd, _mm_set1_epi32(0x7fff)));
    const __m128i quiet = _mm_or_si128(u, _mm_set1_epi32(0x400000));
    const __m128i nan =
        _mm_cmpgt_epi32(_mm_and_si128(u, _mm_set1_epi32(0x7fffffff)), _mm_set1_epi32(0x7f800000));
    store_low_halves(p, _mm_srli_epi32(choose(nan, quiet, rounded), 16));
  }
  HEED_INLINE void store(half_bits* p) const {
    const __m128i u = _mm_castps_si128(reg);
    const __m128i magnitude = _mm_and_si128(u, _mm_set1_epi32(0x7fffffff));
    // A normal result: change the bias, round the 13 bits that go.
    const __m128i odd = _mm_and_si128(_mm_srli_epi32(magnitude, 13), _mm_set1_epi32(1));
    const __m128i rounded =
        _mm_add_epi32(_mm_add_epi32(magnitude, odd), _mm_set1_epi32(0xfff - (112 << 23)));
    const __m128i normal = _mm_srli_epi32(rounded, 13);
    // A subnormal result counts in 2^-24, the last bit of 0.5f: the addition rounds.
    const __m128 half = _mm_set1_ps(0.5f);
    const __m128i subnormal = _mm_sub_epi32(
        _mm_castps_si128(_mm_add_ps(_mm_castsi128_ps(magnitude), half)), _mm_castps_si128(half));
    const __m128i nan = _mm_and_si128(_mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7f800000)),
                                      _mm_set1_epi32(0x200));
    const __m128i special = _mm_or_si128(nan, _mm_set1_epi32(0x7c00));
    const __m128i is_subnormal = _mm_cmplt_epi32(magnitude, _mm_set1_epi32(113 << 23));
    const __m128i is_special = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32((143 << 23) - 1));
    const __m128i sign = _mm_srli_epi32(_mm_xor_si128(u, magnitude), 16);
    store_low_halves(p, _mm_or_si128(sign, choose(is_special, special,
                                                  choose(is_subnormal, subnormal, normal))));
  }
  template <typename In>
  HEED_INLINE static f32 load(const In* p, size n) {
    In copy[4] = {};
    for (size i = 0; i < n; ++i) copy[i] = p[i];
    return load(copy);
  }
  template <typename In>
  HEED_INLINE void store(In* p, size n) const {
    In copy[4];
    store(copy);
    for (size i = 0; i < n; ++i) p[i] = copy[i];
  }
};

HEED_INLINE f32 operator+(f32 a, f32 b) { return {_mm_add_ps(a.reg, b.reg)}; }
HEED_INLINE f32 operator-(f32 a, f32 b) { return {_mm_sub_ps(a.reg, b.reg)}; }
HEED_INLINE f32 operator*(f32 a, f32 b) { return {_mm_mul_ps(a.reg, b.reg)}; }
HEED_INLINE f32 operator/(f32 a, f32 b) { return {_mm_div_ps(a.reg, b.reg)}; }
HEED_INLINE f32 fma(f32 a, f32 b, f32 c) { return a * b + c; }
HEED_INLINE f32(max)(f32 a, f32 b) { return {_mm_max_ps(a.reg, b.reg)}; }
HEED_INLINE f32 held(f32 a) {
  __asm__("" : "+x"(a.reg));
  return a;
}
HEED_INLINE f32(abs)(f32 a) { return {_mm_andnot_ps(_mm_set1_ps(-0.0f), a.reg)}; }
HEED_INLINE f32 with_sign(f32 a, f32 b) {
  const __m128 sign = _mm_set1_ps(-0.0f);
  return {_mm_or_ps(_mm_andnot_ps(sign, a.reg), _mm_and_ps(sign, b.reg))};
}
// Rounds to nearest what is half below: an integer may become the one below and a rest of 1.
HEED_INLINE f32 split(f32 a, f32& rest) {
  const f32 whole = {_mm_cvtepi32_ps(_mm_cvtps_epi32((a - f32::broadcast(0.5f)).reg))};
  rest = a - whole;
  return whole;
}
HEED_INLINE f32 scale(f32 a, f32 n) {
  return {_mm_castsi128_ps(
      _mm_add_epi32(_mm_castps_si128(a.reg), _mm_slli_epi32(_mm_cvtps_epi32(n.reg), 23)))};
}
HEED_INLINE f32 split(f32::mask m, f32 a, f32& rest) {
  return split({_mm_and_ps(m.reg, a.reg)}, rest);
}
HEED_INLINE f32 scale(f32::mask m, f32 a, f32 n) { return {_mm_and_ps(m.reg, scale(a, n).reg)}; }
HEED_INLINE f32::mask less(f32 a, f32 b) { return {_mm_cmplt_ps(a.reg, b.reg)}; }
HEED_INLINE f32::mask not_less(f32 a, f32 b) { return {_mm_cmpnlt_ps(a.reg, b.reg)}; }
HEED_INLINE f32::mask not_finite(f32 a) {
  const __m128i exponent = _mm_set1_epi32(0x7f800000);
  return {_mm_castsi128_ps(
      _mm_cmpeq_epi32(_mm_and_si128(_mm_castps_si128(a.reg), exponent), exponent))};
}
HEED_INLINE f32::mask operator&(f32::mask a, f32::mask b) { return {_mm_and_ps(a.reg, b.reg)}; }
HEED_INLINE f32::mask operator|(f32::mask a, f32::mask b) { return {_mm_or_ps(a.reg, b.reg)}; }
HEED_INLINE f32::mask operator~(f32::mask a) {
  return {_mm_castsi128_ps(_mm_xor_si128(_mm_castps_si128(a.reg), _mm_set1_epi32(-1)))};
}
HEED_INLINE bool any(f32::mask m) { return _mm_movemask_ps(m.reg) != 0; }
HEED_INLINE bool all(f32::mask m) { return _mm_movemask_ps(m.reg) == 0xf; }
HEED_INLINE f32 select(f32::mask m, f32 a, f32 b) {
  return {_mm_or_ps(_mm_and_ps(m.reg, a.reg), _mm_andnot_ps(m.reg, b.reg))};
}

HEED_INLINE void transpose(f32 (&v)[4]) {
  _MM_TRANSPOSE4_PS(v[0].reg, v[1].reg, v[2].reg, v[3].reg);
}
HEED_INLINE f32 sums(const f32 (&v)[4]) {
  f32 t[4] = {v[0], v[1], v[2], v[3]};
  transpose(t);
  return (t[0] + t[1]) + (t[2] + t[3]);
}
HEED_INLINE float sum(f32 a) {
  const __m128 x = _mm_add_ps(a.reg, _mm_movehl_ps(a.reg, a.reg));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}

struct f64 {
  using scalar = double;
  static constexpr int lanes = 2, tile_rows = 4, tile_vectors = 2;
  struct mask {
    __m128d reg;
  };
  __m128d reg;

  HEED_INLINE static mask bits(bool a, bool b) {
    return {_mm_castsi128_pd(_mm_set_epi64x(b ? -1 : 0, a ? -1 : 0))};
  }
  HEED_INLINE static mask first(size n) { return bits(n > 0, n > 1); }
  HEED_INLINE static mask load_mask(const bool* p, size n) {
    return bits(n > 0 && p[0], n > 1 && p[1]);
  }
  HEED_INLINE static f64 zero() { return {_mm_setzero_pd()}; }
  HEED_INLINE static f64 broadcast(double x) { return {_mm_set1_pd(x)}; }
  HEED_INLINE static f64 load(const double* p) { return {_mm_loadu_pd(p)}; }
  HEED_INLINE static f64 load(const double* p, size n) {
    return n > 1 ? load(p) : n > 0 ? f64{_mm_load_sd(p)} : zero();
  }
  HEED_INLINE void store(double* p) const { _mm_storeu_pd(p, reg); }
  HEED_INLINE void store(double* p, size n) const {
    if (n > 1) {
      store(p);
    } else if (n > 0) {
      _mm_store_sd(p, reg);
    }
  }
};

HEED_INLINE f64 operator+(f64 a, f64 b) { return {_mm_add_pd(a.reg, b.reg)}; }
HEED_INLINE f64 operator-(f64 a, f64 b) { return {_mm_sub_pd(a.reg, b.reg)}; }
HEED_INLINE f64 operator*(f64 a, f64 b) { return {_mm_mul_pd(a.reg, b.reg)}; }
HEED_INLINE f64 operator/(f64 a, f64 b) { return {_mm_div_pd(a.reg, b.reg)}; }
HEED_INLINE f64 fma(f64 a, f64 b, f64 c) { return a * b + c; }
HEED_INLINE f64(max)(f64 a, f64 b) { return {_mm_max_pd(a.reg, b.reg)}; }
HEED_INLINE f64 held(f64 a) {
  __asm__("" : "+x"(a.reg));
  return a;
}
HEED_INLINE f64(abs)(f64 a) { return {_mm_andnot_pd(_mm_set1_pd(-0.0), a.reg)}; }
HEED_INLINE f64 with_sign(f64 a, f64 b) {
  const __m128d sign = _mm_set1_pd(-0.0);
  return {_mm_or_pd(_mm_andnot_pd(sign, a.reg), _mm_and_pd(sign, b.reg))};
}
HEED_INLINE f64 split(f64 a, f64& rest) {
  const f64 whole = {_mm_cvtepi32_pd(_mm_cvtpd_epi32((a - f64::broadcast(0.5)).reg))};
  rest = a - whole;
  return whole;
}
HEED_INLINE f64 scale(f64 a, f64 n) {
  const __m128i exponent =
      _mm_slli_epi64(_mm_unpacklo_epi32(_mm_setzero_si128(), _mm_cvtpd_epi32(n.reg)), 20);
  return {_mm_castsi128_pd(_mm_add_epi64(_mm_castpd_si128(a.reg), exponent))};
}
HEED_INLINE f64 split(f64::mask m, f64 a, f64& rest) {
  return split({_mm_and_pd(m.reg, a.reg)}, rest);
}
HEED_INLINE f64 scale(f64::mask m, f64 a, f64 n) { return {_mm_and_pd(m.reg, scale(a, n).reg)}; }
HEED_INLINE f64::mask less(f64 a, f64 b) { return {_mm_cmplt_pd(a.reg, b.reg)}; }
HEED_INLINE f64::mask not_less(f64 a, f64 b) { return {_mm_cmpnlt_pd(a.reg, b.reg)}; }
HEED_INLINE f64::mask not_finite(f64 a) {
  const __m128i exponent = _mm_set1_epi32(0x7ff00000);
  const __m128i high = _mm_shuffle_epi32(_mm_castpd_si128(a.reg), 0xf5);
  return {_mm_castsi128_pd(_mm_cmpeq_epi32(_mm_and_si128(high, exponent), exponent))};
}
HEED_INLINE f64::mask operator&(f64::mask a, f64::mask b) { return {_mm_and_pd(a.reg, b.reg)}; }
HEED_INLINE f64::mask operator|(f64::mask a, f64::mask b) { return {_mm_or_pd(a.reg, b.reg)}; }
HEED_INLINE f64::mask operator~(f64::mask a) {
  return {_mm_castsi128_pd(_mm_xor_si128(_mm_castpd_si128(a.reg), _mm_set1_epi32(-1)))};
}
HEED_INLINE bool any(f64::mask m) { return _mm_movemask_pd(m.reg) != 0; }
HEED_INLINE bool all(f64::mask m) { return _mm_movemask_pd(m.reg) == 3; }
HEED_INLINE f64 select(f64::mask m, f64 a, f64 b) {
  return {_mm_or_pd(_mm_and_pd(m.reg, a.reg), _mm_andnot_pd(m.reg, b.reg))};
}

HEED_INLINE void transpose(f64 (&v)[2]) {
  const f64 a = v[0], b = v[1];
  v[0].reg = _mm_unpacklo_pd(a.reg, b.reg);
  v[1].reg = _mm_unpackhi_pd(a.reg, b.reg);
}
HEED_INLINE f64 sums(const f64 (&v)[2]) {
  f64 t[2] = {v[0], v[1]};
  transpose(t);
  return t[0] + t[1];
}
HEED_INLINE double sum(f64 a) {
  return _mm_cvtsd_f64(_mm_add_sd(a.reg, _mm_unpackhi_pd(a.reg, a.reg)));
}

#include <heed/detail/kernel/all.inc>

HEED_END_REGION
HEED_NAMESPACE_END
#endif
