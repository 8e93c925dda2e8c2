#pragma once

#include <heed/detail/kernel/boundary.hpp>

#if !HEED_X86 && !HEED_NEON
HEED_NAMESPACE_BEGIN
HEED_BEGIN_BASELINE

// Vectors for CPUs without a file of their own: short loops, which a compiler turns into whatever
// vectors the CPU has. The operations are described in region.hpp. Truth values and compares go
// through the bits, because -ffast-math may turn a compare with NaN round.

HEED_INLINE std::uint32_t vector_bits(float x) {
  std::uint32_t u;
  __builtin_memcpy(&u, &x, sizeof u);
  return u;
}
HEED_INLINE std::uint64_t vector_bits(double x) {
  std::uint64_t u;
  __builtin_memcpy(&u, &x, sizeof u);
  return u;
}
template <typename Scalar, typename Bits>
HEED_INLINE Scalar from_vector_bits(Bits u) {
  Scalar x;
  __builtin_memcpy(&x, &u, sizeof x);
  return x;
}
HEED_INLINE std::uint32_t exponent_bits(float) { return 0x7f800000u; }
HEED_INLINE std::uint64_t exponent_bits(double) { return 0x7ff0000000000000u; }
template <typename Scalar>
constexpr int mantissa_bits = sizeof(Scalar) == 4 ? 23 : 52;

template <typename Scalar>
HEED_INLINE bool is_nan(Scalar x) {
  return (vector_bits(x) & ~vector_bits(Scalar(-0.0))) > exponent_bits(Scalar());
}
/// Integers in the order of the numbers; both zeros are 0.
HEED_INLINE std::int64_t ordered(float x) {
  const std::int64_t magnitude = vector_bits(x) & 0x7fffffffu;
  return vector_bits(x) >> 31 ? -magnitude : magnitude;
}
HEED_INLINE std::int64_t ordered(double x) {
  const std::int64_t magnitude = static_cast<std::int64_t>(vector_bits(x) & 0x7fffffffffffffffu);
  return vector_bits(x) >> 63 ? -magnitude : magnitude;
}
template <typename Scalar>
HEED_INLINE std::int32_t exponent_in_range(Scalar n) {
  const std::int64_t limit = ordered(Scalar(2048)), at = ordered(n);
  return at < limit && at > -limit ? static_cast<std::int32_t>(n) : 0;
}

HEED_INLINE float widen(float x) { return x; }
HEED_INLINE double widen(double x) { return x; }
HEED_INLINE float widen(std::int8_t x) { return static_cast<float>(x); }
HEED_INLINE float widen(bfloat16_bits x) {
  return from_vector_bits<float>(std::uint32_t(x.bits) << 16);
}
HEED_INLINE float widen(half_bits x) {
  const std::uint32_t magnitude = x.bits & 0x7fffu, sign = std::uint32_t(x.bits & 0x8000u) << 16;
  if (magnitude < 0x400u)
    return from_vector_bits<float>(vector_bits(static_cast<float>(magnitude) * 0x1p-24f) | sign);
  const std::uint32_t rebias =
      112u << 23;  // the exponent's bias goes from 15 to 127; twice that makes 31 to 255
  return from_vector_bits<float>(
      ((magnitude << 13) + rebias + (magnitude >= 0x7c00u ? rebias : 0u)) | sign);
}
HEED_INLINE float widen(float8_e5m2 x) {
  return widen(half_bits{static_cast<std::uint16_t>(x.bits << 8)});
}
HEED_INLINE float widen(float8_e4m3 x) {
  // As a half it is 2^-8 of itself; only NaN, all ones, carries into the bit below the sign, and is
  // NaN with it.
  const std::uint32_t half = (x.bits & 0x7fu) << 7, nan = (half + 0x80u) & 0x4000u,
                      sign = (x.bits & 0x80u) << 8;
  return 256 * widen(half_bits{static_cast<std::uint16_t>(half | nan | sign)});
}
HEED_INLINE void narrow(float x, float& to) { to = x; }
HEED_INLINE void narrow(double x, double& to) { to = x; }
HEED_INLINE void narrow(float x, bfloat16_bits& to) {
  const std::uint32_t u = vector_bits(x);
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  to.bits = static_cast<std::uint16_t>((nan ? u | 0x400000u : u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
HEED_INLINE void narrow(float x, half_bits& to) {
  const std::uint32_t u = vector_bits(x), magnitude = u & 0x7fffffffu, sign = (u ^ magnitude) >> 16;
  std::uint32_t bits;
  if (magnitude >= 143u << 23) {
    bits = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  } else if (magnitude < 113u << 23) {  // subnormal, in units of 2^-24, the last bit of 0.5f: the
                                        // addition rounds
    bits = vector_bits(from_vector_bits<float>(magnitude) + 0.5f) - vector_bits(0.5f);
  } else {
    bits = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  }
  to.bits = static_cast<std::uint16_t>(bits | sign);
}

// A vector or mask of type `type`, lane i of which is `...`.
#define HEED_EACH_LANE(type, ...)                                     \
  type result;                                                        \
  for (int i = 0; i < type::lanes; ++i) result.lane[i] = __VA_ARGS__; \
  return result

template <int Lanes>
struct portable_mask {
  static constexpr int lanes = Lanes;
  bool lane[unsigned(Lanes)];
};

template <typename Scalar, int Lanes>
struct portable_vector {
  using scalar = Scalar;
  using mask = portable_mask<Lanes>;
  static constexpr int lanes = Lanes, tile_rows = 4, tile_vectors = 2;
  Scalar lane[unsigned(Lanes)];

  HEED_INLINE static mask first(size n) { HEED_EACH_LANE(mask, i < n); }
  HEED_INLINE static mask load_mask(const bool* p, size n) { HEED_EACH_LANE(mask, i < n && p[i]); }
  HEED_INLINE static portable_vector broadcast(Scalar x) { HEED_EACH_LANE(portable_vector, x); }
  HEED_INLINE static portable_vector zero() { return broadcast(Scalar(0)); }
  template <typename In>
  HEED_INLINE static portable_vector load(const In* p) {
    HEED_EACH_LANE(portable_vector, widen(p[i]));
  }
  template <typename In>
  HEED_INLINE static portable_vector load(const In* p, size n) {
    HEED_EACH_LANE(portable_vector, i < n ? widen(p[i]) : Scalar(0));
  }
  HEED_INLINE static void broadcast_two(const std::uint16_t* p, portable_vector& a,
                                        portable_vector& b) {
    a = broadcast(widen(bfloat16_bits{p[0]}));
    b = broadcast(widen(bfloat16_bits{p[1]}));
  }
  HEED_INLINE static void load_pairs(const std::uint8_t* p, portable_vector step,
                                     portable_vector start, portable_vector& low,
                                     portable_vector& high) {
    for (int i = 0; i < Lanes; ++i) {
      low.lane[i] = step.lane[i] * static_cast<Scalar>(p[i] & 15) + start.lane[i];
      high.lane[i] = step.lane[i] * static_cast<Scalar>(p[i] >> 4) + start.lane[i];
    }
  }
  template <typename Out>
  HEED_INLINE void store(Out* p) const {
    for (int i = 0; i < Lanes; ++i) narrow(lane[i], p[i]);
  }
  template <typename Out>
  HEED_INLINE void store(Out* p, size n) const {
    for (size i = 0; i < n; ++i) narrow(lane[i], p[i]);
  }

  HEED_INLINE friend portable_vector operator+(portable_vector a, portable_vector b) {
    HEED_EACH_LANE(portable_vector, a.lane[i] + b.lane[i]);
  }
  HEED_INLINE friend portable_vector operator-(portable_vector a, portable_vector b) {
    HEED_EACH_LANE(portable_vector, a.lane[i] - b.lane[i]);
  }
  HEED_INLINE friend portable_vector operator*(portable_vector a, portable_vector b) {
    HEED_EACH_LANE(portable_vector, a.lane[i] * b.lane[i]);
  }
  HEED_INLINE friend portable_vector operator/(portable_vector a, portable_vector b) {
    HEED_EACH_LANE(portable_vector, a.lane[i] / b.lane[i]);
  }
};

using f32 = portable_vector<float, 4>;
using f64 = portable_vector<double, 2>;

template <typename S, int N>
HEED_INLINE portable_vector<S, N> fma(portable_vector<S, N> a, portable_vector<S, N> b,
                                      portable_vector<S, N> c) {
  return a * b + c;
}
template <typename S, int N>
HEED_INLINE portable_vector<S, N>(max)(portable_vector<S, N> a, portable_vector<S, N> b) {
  using V = portable_vector<S, N>;
  HEED_EACH_LANE(V, a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]);
}
template <typename S, int N>
HEED_INLINE portable_vector<S, N> held(portable_vector<S, N> a) {
  return a;
}
template <typename S, int N>
HEED_INLINE portable_vector<S, N>(abs)(portable_vector<S, N> a) {
  using V = portable_vector<S, N>;
  HEED_EACH_LANE(V, from_vector_bits<S>(vector_bits(a.lane[i]) & ~vector_bits(S(-0.0))));
}
template <typename S, int N>
HEED_INLINE portable_vector<S, N> with_sign(portable_vector<S, N> a, portable_vector<S, N> b) {
  using V = portable_vector<S, N>;
  HEED_EACH_LANE(V, from_vector_bits<S>((vector_bits(a.lane[i]) & ~vector_bits(S(-0.0))) |
                                        (vector_bits(b.lane[i]) & vector_bits(S(-0.0)))));
}
template <typename S, int N>
HEED_INLINE portable_vector<S, N> split(portable_vector<S, N> a, portable_vector<S, N>& rest) {
  portable_vector<S, N> whole;
  for (int i = 0; i < N; ++i)
    whole.lane[i] = static_cast<S>(__builtin_floor(static_cast<double>(a.lane[i])));
  rest = a - whole;
  return whole;
}
template <typename S, int N>
HEED_INLINE portable_vector<S, N> scale(portable_vector<S, N> a, portable_vector<S, N> n) {
  using V = portable_vector<S, N>;
  using bits = decltype(vector_bits(S()));
  // Where n is no number, exp2 throws the result away, but the conversion must be one that C++
  // allows.
  HEED_EACH_LANE(V, from_vector_bits<S>(
                        vector_bits(a.lane[i]) +
                        (static_cast<bits>(exponent_in_range(n.lane[i])) << mantissa_bits<S>)));
}
template <typename S, int N>
HEED_INLINE portable_mask<N> not_finite(portable_vector<S, N> a) {
  HEED_EACH_LANE(portable_mask<N>,
                 (vector_bits(a.lane[i]) & exponent_bits(S())) == exponent_bits(S()));
}
template <typename S, int N>
HEED_INLINE portable_mask<N> less(portable_vector<S, N> a, portable_vector<S, N> b) {
  HEED_EACH_LANE(portable_mask<N>, !is_nan(a.lane[i]) && !is_nan(b.lane[i]) &&
                                       ordered(a.lane[i]) < ordered(b.lane[i]));
}
template <typename S, int N>
HEED_INLINE portable_mask<N> not_less(portable_vector<S, N> a, portable_vector<S, N> b) {
  return ~less(a, b);
}
template <int N>
HEED_INLINE portable_mask<N> operator&(portable_mask<N> a, portable_mask<N> b) {
  HEED_EACH_LANE(portable_mask<N>, a.lane[i] && b.lane[i]);
}
template <int N>
HEED_INLINE portable_mask<N> operator|(portable_mask<N> a, portable_mask<N> b) {
  HEED_EACH_LANE(portable_mask<N>, a.lane[i] || b.lane[i]);
}
template <int N>
HEED_INLINE portable_mask<N> operator~(portable_mask<N> a) {
  HEED_EACH_LANE(portable_mask<N>, !a.lane[i]);
}
template <int N>
HEED_INLINE bool any(portable_mask<N> m) {
  bool found = false;
  for (int i = 0; i < N; ++i) found = found || m.lane[i];
  return found;
}
template <int N>
HEED_INLINE bool all(portable_mask<N> m) {
  return !any(~m);
}
template <typename S, int N>
HEED_INLINE portable_vector<S, N> select(portable_mask<N> m, portable_vector<S, N> a,
                                         portable_vector<S, N> b) {
  using V = portable_vector<S, N>;
  HEED_EACH_LANE(V, m.lane[i] ? a.lane[i] : b.lane[i]);
}
template <typename S, int N>
HEED_INLINE portable_vector<S, N> split(portable_mask<N> m, portable_vector<S, N> a,
                                        portable_vector<S, N>& rest) {
  return split(select(m, a, portable_vector<S, N>::zero()), rest);
}
template <typename S, int N>
HEED_INLINE portable_vector<S, N> scale(portable_mask<N> m, portable_vector<S, N> a,
                                        portable_vector<S, N> n) {
  return select(m, scale(a, n), portable_vector<S, N>::zero());
}
template <typename S, int N>
HEED_INLINE void transpose(portable_vector<S, N> (&v)[unsigned(N)]) {
  for (int i = 0; i < N; ++i)
    for (int j = 0; j < i; ++j) {
      const S x = v[i].lane[j];
      v[i].lane[j] = v[j].lane[i];
      v[j].lane[i] = x;
    }
}
template <typename S, int N>
HEED_INLINE S sum(portable_vector<S, N> a) {
  S total = a.lane[0];
  for (int i = 1; i < N; ++i) total += a.lane[i];
  return total;
}
template <typename S, int N>
HEED_INLINE portable_vector<S, N> sums(const portable_vector<S, N> (&v)[unsigned(N)]) {
  using V = portable_vector<S, N>;
  HEED_EACH_LANE(V, sum(v[i]));
}

#undef HEED_EACH_LANE

#include <heed/detail/kernel/all.inc>

HEED_END_REGION
HEED_NAMESPACE_END
#endif
