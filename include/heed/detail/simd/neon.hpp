#pragma once

#include <heed/detail/kernel/boundary.hpp>

#if HEED_NEON
HEED_NAMESPACE_BEGIN
HEED_BEGIN_BASELINE

// The vectors of NEON, which every AArch64 has; the operations are described in region.hpp.

struct f32 {
  using scalar = float;
  static constexpr int lanes = 4, tile_rows = 8, tile_vectors = 3;
  struct mask {
    uint32x4_t reg;
  };
  float32x4_t reg;

  HEED_INLINE static mask first(size n) {
    const std::uint32_t count = static_cast<std::uint32_t>(n > 4 ? 4 : n < 0 ? 0 : n);
    return {vcltq_u32(uint32x4_t{0, 1, 2, 3}, vdupq_n_u32(count))};
  }
  HEED_INLINE static mask load_mask(const bool* p, size n) {
    std::uint64_t bytes = 0;
    __builtin_memcpy(&bytes, p, static_cast<unsigned long>(n));
    const uint32x4_t wide = vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(bytes))));
    return {vtstq_u32(wide, wide)};
  }
  HEED_INLINE static f32 zero() { return {vdupq_n_f32(0.0f)}; }
  HEED_INLINE static f32 broadcast(float x) { return {vdupq_n_f32(x)}; }
  HEED_INLINE static f32 load(const float* p) { return {vld1q_f32(p)}; }
  HEED_INLINE void store(float* p) const { vst1q_f32(p, reg); }

  HEED_INLINE static f32 load(const std::int8_t* p) {
    std::uint32_t bytes;
    __builtin_memcpy(&bytes, p, 4);
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(bytes)))))};
  }
  HEED_INLINE static f32 load(const bfloat16_bits* p) {
    return {vreinterpretq_f32_u32(
        vshll_n_u16(vld1_u16(reinterpret_cast<const std::uint16_t*>(p)), 16))};
  }
  HEED_INLINE static f32 load(const half_bits* p) {
    return {
        vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const std::uint16_t*>(p))))};
  }
  HEED_INLINE static uint16x4_t load_upper(const void* p) {  // each byte above one of 0
    std::uint32_t bytes;
    __builtin_memcpy(&bytes, p, 4);
    return vget_low_u16(vshll_n_u8(vcreate_u8(bytes), 8));
  }
  HEED_INLINE static f32 load(const float8_e5m2* p) {
    return {vcvt_f32_f16(vreinterpret_f16_u16(load_upper(p)))};
  }
  HEED_INLINE static f32 load(const float8_e4m3* p) {
    // As a half it is 2^-8 of itself, with a bit of the sign to clear in between; only NaN, all
    // ones, carries into that bit, and is NaN with it.
    const int16x4_t shifted = vshr_n_s16(vreinterpret_s16_u16(load_upper(p)), 1);
    const uint16x4_t bit = vdup_n_u16(0x4000);
    const uint16x4_t half = vbic_u16(vreinterpret_u16_s16(shifted), bit);
    const uint16x4_t nan = vand_u16(bit, vadd_u16(half, vdup_n_u16(0x80)));
    return {vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(vorr_u16(half, nan))), 256)};
  }
  HEED_INLINE static void broadcast_two(const std::uint16_t* p, f32& a, f32& b) {
    a = {vreinterpretq_f32_u32(vdupq_n_u32(std::uint32_t(p[0]) << 16))};
    b = {vreinterpretq_f32_u32(vdupq_n_u32(std::uint32_t(p[1]) << 16))};
  }
  HEED_INLINE static void load_pairs(const std::uint8_t* p, f32 step, f32 start, f32& low,
                                     f32& high) {
    std::uint32_t bytes;
    __builtin_memcpy(&bytes, p, 4);
    const uint32x4_t pairs = vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(bytes))));
    low = {vfmaq_f32(start.reg, step.reg, vcvtq_f32_u32(vandq_u32(pairs, vdupq_n_u32(15))))};
    high = {vfmaq_f32(start.reg, step.reg, vcvtq_f32_u32(vshrq_n_u32(pairs, 4)))};
  }
  HEED_INLINE void store(bfloat16_bits* p) const {
    const uint32x4_t u = vreinterpretq_u32_f32(reg);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
    const uint32x4_t nan =
        vcgtq_u32(vandq_u32(u, vdupq_n_u32(0x7fffffff)), vdupq_n_u32(0x7f800000));
    vst1_u16(reinterpret_cast<std::uint16_t*>(p), vshrn_n_u32(vbslq_u32(nan, quiet, rounded), 16));
  }
  HEED_INLINE void store(half_bits* p) const {
    vst1_u16(reinterpret_cast<std::uint16_t*>(p), vreinterpret_u16_f16(vcvt_f16_f32(reg)));
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

HEED_INLINE f32 operator+(f32 a, f32 b) { return {vaddq_f32(a.reg, b.reg)}; }
HEED_INLINE f32 operator-(f32 a, f32 b) { return {vsubq_f32(a.reg, b.reg)}; }
HEED_INLINE f32 operator*(f32 a, f32 b) { return {vmulq_f32(a.reg, b.reg)}; }
HEED_INLINE f32 operator/(f32 a, f32 b) { return {vdivq_f32(a.reg, b.reg)}; }
HEED_INLINE f32 fma(f32 a, f32 b, f32 c) { return {vfmaq_f32(c.reg, a.reg, b.reg)}; }
HEED_INLINE f32(max)(f32 a, f32 b) { return {vbslq_f32(vcgtq_f32(a.reg, b.reg), a.reg, b.reg)}; }
HEED_INLINE f32 held(f32 a) {
  __asm__("" : "+w"(a.reg));
  return a;
}
HEED_INLINE f32(abs)(f32 a) { return {vabsq_f32(a.reg)}; }
HEED_INLINE f32 with_sign(f32 a, f32 b) {
  return {vbslq_f32(vdupq_n_u32(0x80000000u), b.reg, a.reg)};
}
HEED_INLINE f32 split(f32 a, f32& rest) {
  const f32 whole = {vrndmq_f32(a.reg)};
  rest = a - whole;
  return whole;
}
HEED_INLINE f32 scale(f32 a, f32 n) {
  return {vreinterpretq_f32_s32(
      vaddq_s32(vreinterpretq_s32_f32(a.reg), vshlq_n_s32(vcvtnq_s32_f32(n.reg), 23)))};
}
// The intrinsics for comparisons are the compiler's own operators, which -ffast-math may turn
// round.
HEED_INLINE f32::mask less(f32 a, f32 b) {
  f32::mask m;
  __asm__("fcmgt %0.4s, %1.4s, %2.4s" : "=w"(m.reg) : "w"(b.reg), "w"(a.reg));
  return m;
}
HEED_INLINE f32::mask not_finite(f32 a) {
  const uint32x4_t exponent = vdupq_n_u32(0x7f800000);
  return {vceqq_u32(vandq_u32(vreinterpretq_u32_f32(a.reg), exponent), exponent)};
}
HEED_INLINE f32::mask operator&(f32::mask a, f32::mask b) { return {vandq_u32(a.reg, b.reg)}; }
HEED_INLINE f32::mask operator|(f32::mask a, f32::mask b) { return {vorrq_u32(a.reg, b.reg)}; }
HEED_INLINE f32::mask operator~(f32::mask a) { return {vmvnq_u32(a.reg)}; }
HEED_INLINE f32::mask not_less(f32 a, f32 b) { return ~less(a, b); }
HEED_INLINE bool any(f32::mask m) { return vmaxvq_u32(m.reg) != 0; }
HEED_INLINE bool all(f32::mask m) { return vminvq_u32(m.reg) != 0; }
HEED_INLINE f32 select(f32::mask m, f32 a, f32 b) { return {vbslq_f32(m.reg, a.reg, b.reg)}; }
HEED_INLINE f32 split(f32::mask m, f32 a, f32& rest) {
  return split(select(m, a, f32::zero()), rest);
}
HEED_INLINE f32 scale(f32::mask m, f32 a, f32 n) { return select(m, scale(a, n), f32::zero()); }

HEED_INLINE void transpose(f32 (&v)[4]) {
  const float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(v[0].reg, v[1].reg)),
                    b = vreinterpretq_f64_f32(vtrn2q_f32(v[0].reg, v[1].reg));
  const float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(v[2].reg, v[3].reg)),
                    d = vreinterpretq_f64_f32(vtrn2q_f32(v[2].reg, v[3].reg));
  v[0].reg = vreinterpretq_f32_f64(vtrn1q_f64(a, c));
  v[1].reg = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
  v[2].reg = vreinterpretq_f32_f64(vtrn2q_f64(a, c));
  v[3].reg = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
}
HEED_INLINE f32 sums(const f32 (&v)[4]) {
  return {vpaddq_f32(vpaddq_f32(v[0].reg, v[1].reg), vpaddq_f32(v[2].reg, v[3].reg))};
}
HEED_INLINE float sum(f32 a) { return vaddvq_f32(a.reg); }

struct f64 {
  using scalar = double;
  static constexpr int lanes = 2, tile_rows = 8, tile_vectors = 3;
  struct mask {
    uint64x2_t reg;
  };
  float64x2_t reg;

  HEED_INLINE static mask bits(bool a, bool b) {
    return {uint64x2_t{a ? ~std::uint64_t(0) : 0, b ? ~std::uint64_t(0) : 0}};
  }
  HEED_INLINE static mask first(size n) { return bits(n > 0, n > 1); }
  HEED_INLINE static mask load_mask(const bool* p, size n) {
    return bits(n > 0 && p[0], n > 1 && p[1]);
  }
  HEED_INLINE static f64 zero() { return {vdupq_n_f64(0.0)}; }
  HEED_INLINE static f64 broadcast(double x) { return {vdupq_n_f64(x)}; }
  HEED_INLINE static f64 load(const double* p) { return {vld1q_f64(p)}; }
  HEED_INLINE static f64 load(const double* p, size n) {
    return n > 1 ? load(p) : n > 0 ? f64{vsetq_lane_f64(*p, vdupq_n_f64(0.0), 0)} : zero();
  }
  HEED_INLINE void store(double* p) const { vst1q_f64(p, reg); }
  HEED_INLINE void store(double* p, size n) const {
    if (n > 1) {
      store(p);
    } else if (n > 0) {
      vst1q_lane_f64(p, reg, 0);
    }
  }
};

HEED_INLINE f64 operator+(f64 a, f64 b) { return {vaddq_f64(a.reg, b.reg)}; }
HEED_INLINE f64 operator-(f64 a, f64 b) { return {vsubq_f64(a.reg, b.reg)}; }
HEED_INLINE f64 operator*(f64 a, f64 b) { return {vmulq_f64(a.reg, b.reg)}; }
HEED_INLINE f64 operator/(f64 a, f64 b) { return {vdivq_f64(a.reg, b.reg)}; }
HEED_INLINE f64 fma(f64 a, f64 b, f64 c) { return {vfmaq_f64(c.reg, a.reg, b.reg)}; }
HEED_INLINE f64(max)(f64 a, f64 b) { return {vbslq_f64(vcgtq_f64(a.reg, b.reg), a.reg, b.reg)}; }
HEED_INLINE f64 held(f64 a) {
  __asm__("" : "+w"(a.reg));
  return a;
}
HEED_INLINE f64(abs)(f64 a) { return {vabsq_f64(a.reg)}; }
HEED_INLINE f64 with_sign(f64 a, f64 b) {
  return {vbslq_f64(vdupq_n_u64(0x8000000000000000u), b.reg, a.reg)};
}
HEED_INLINE f64 split(f64 a, f64& rest) {
  const f64 whole = {vrndmq_f64(a.reg)};
  rest = a - whole;
  return whole;
}
HEED_INLINE f64 scale(f64 a, f64 n) {
  return {vreinterpretq_f64_s64(
      vaddq_s64(vreinterpretq_s64_f64(a.reg), vshlq_n_s64(vcvtnq_s64_f64(n.reg), 52)))};
}
HEED_INLINE f64::mask less(f64 a, f64 b) {
  f64::mask m;
  __asm__("fcmgt %0.2d, %1.2d, %2.2d" : "=w"(m.reg) : "w"(b.reg), "w"(a.reg));
  return m;
}
HEED_INLINE f64::mask not_finite(f64 a) {
  const uint64x2_t exponent = vdupq_n_u64(0x7ff0000000000000u);
  return {vceqq_u64(vandq_u64(vreinterpretq_u64_f64(a.reg), exponent), exponent)};
}
HEED_INLINE f64::mask operator&(f64::mask a, f64::mask b) { return {vandq_u64(a.reg, b.reg)}; }
HEED_INLINE f64::mask operator|(f64::mask a, f64::mask b) { return {vorrq_u64(a.reg, b.reg)}; }
HEED_INLINE f64::mask operator~(f64::mask a) {
  return {vreinterpretq_u64_u32(vmvnq_u32(vreinterpretq_u32_u64(a.reg)))};
}
HEED_INLINE f64::mask not_less(f64 a, f64 b) { return ~less(a, b); }
HEED_INLINE bool any(f64::mask m) { return vmaxvq_u32(vreinterpretq_u32_u64(m.reg)) != 0; }
HEED_INLINE bool all(f64::mask m) { return vminvq_u32(vreinterpretq_u32_u64(m.reg)) != 0; }
HEED_INLINE f64 select(f64::mask m, f64 a, f64 b) { return {vbslq_f64(m.reg, a.reg, b.reg)}; }
HEED_INLINE f64 split(f64::mask m, f64 a, f64& rest) {
  return split(select(m, a, f64::zero()), rest);
}
HEED_INLINE f64 scale(f64::mask m, f64 a, f64 n) { return select(m, scale(a, n), f64::zero()); }

HEED_INLINE void transpose(f64 (&v)[2]) {
  const float64x2_t a = v[0].reg, b = v[1].reg;
  v[0].reg = vtrn1q_f64(a, b);
  v[1].reg = vtrn2q_f64(a, b);
}
HEED_INLINE f64 sums(const f64 (&v)[2]) { return {vpaddq_f64(v[0].reg, v[1].reg)}; }
HEED_INLINE double sum(f64 a) { return vaddvq_f64(a.reg); }

#include <heed/detail/kernel/all.inc>

HEED_END_REGION
HEED_NAMESPACE_END
#endif
