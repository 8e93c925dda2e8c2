#pragma once

#include <heed/detail/architecture.hpp>
#include <heed/detail/params.hpp>

// Everything that the text of a kernel may need is included here, before the first region: a header
// that is read inside one would be compiled for another instruction set than the rest of the
// program.
#if HEED_X86
#include <immintrin.h>
#endif
#if HEED_NEON
#include <arm_neon.h>
#endif

// A region compiles its functions for an instruction set that the user's flags need not name. Text
// inside a region is
//   HEED_NAMESPACE_BEGIN
//   HEED_BEGIN_AVX512           (or _AVX512_BF16, _AVX2, _BASELINE; each opens its namespace)
//   ...
//   HEED_END_REGION
//   HEED_NAMESPACE_END
// and keeps to raw pointers and plain structs: no Eigen, no std:: calls, no lambdas, statics,
// allocation or exceptions.
//
// Each namespace has two vector types, f32 and f64 (avx512_bf16 has those of avx512, and
// bf16_pairs). One file an instruction set defines the same operations for both:
//   V::scalar, V::lanes           float or double; how many
//   V::tile_rows, V::tile_vectors the register tile: tile_rows x tile_vectors accumulators,
//                                 tile_vectors operands, a broadcast
//   V::zero()  V::broadcast(x)    every lane the same
//   V::load(p)  V::load(p, n)     lanes side by side, any alignment; with n (0 <= n <= lanes) the
//                                 rest are 0 and memory past them is not touched
//   v.store(p)  v.store(p, n)     the mirror image. f32 also loads and stores bfloat16_bits* and
//                                 half_bits* (stores round to nearest even), and loads
//                                 std::int8_t*, float8_e4m3* and float8_e5m2*
//   V::load_even_odd(p, a, b)     on x86: of 2 lanes numbers of bfloat16 or 8-bit floats those with
//                                 even and those with odd numbers; of e4m3 2^-8 of them, and NaN is
//                                 480
//   V::broadcast_two(p, a, b)     two bfloat16, each in every lane; f32 alone
//   V::load_pairs(p, step, start, low, high)
//                                 start + step * n, with n the lower 4 bits of `lanes` bytes, and
//                                 the upper; step, start the same in every lane; f32 alone
//   a + b  a - b  a * b  a / b    fma(a, b, c) = a * b + c, one rounding where the CPU has it
//   (max)(a, b)                   a > b ? a : b, so b where either is NaN (unless the build
//                                 promises that there are none); in parentheses, because a Windows
//                                 header makes a macro of max
//   (abs)(a)  with_sign(a, b)     |a|; |a| with the sign of b; in parentheses, because Arduino.h
//                                 makes a macro of abs
//   n = split(a, rest)            a = n + rest, n an integer and rest in [0, 1]; |a| < 2^22. n is
//                                 for scale alone
//   n = split(m, a, rest)         the same where m is true; elsewhere a may be anything, and raises
//                                 nothing
//   scale(a, n)  scale(m, a, n)   a * 2^n for n from split, and 0 where m is false; a and the
//                                 result are normal numbers
//   V::mask                       a truth value a lane: & | ~, any(m), all(m)
//   less(a, b)  not_less(a, b)    compares; with a NaN less is false and not_less true, whatever
//                                 the compiler may assume about NaN
//   not_finite(a)                 infinite or NaN, from the bits
//   V::first(n)                   a mask of lanes 0 .. n - 1, for any n
//   V::load_mask(p, n)            a mask from n bools (0 <= n <= lanes), the rest false
//   select(m, a, b)               m ? a : b
//   transpose(v)                  v[lanes], in place
//   sum(a)                        of all lanes
//   held(a)                       a, in a register: g++ loads what comes from memory once more for
//                                 every use
//   sums(v)                       v[lanes] -> one vector, lane i the sum of v[i]
// and prefetch(p), which brings a cache line to the second level, and prefetch_first<Write>(p),
// which brings it to the first, there to be written or not.

#if defined(__clang__)
// Regions, for clang: attributes that are pushed onto all functions up to the region's end. Files
// may be compiled for any CPU; a function of a region runs only where its instruction set is
// there, which the dispatcher looks up.
//
// A pragma's text is one string, which no line may cut: the preprocessor makes it of tokens.
#define HEED_PRAGMA(...) _Pragma(#__VA_ARGS__)
#define HEED_CLANG_TARGET(set) \
  HEED_PRAGMA(clang attribute push(__attribute__((target(set))), apply_to = function))
#define HEED_TARGET_AVX2 HEED_CLANG_TARGET("avx2,fma,f16c")
#define HEED_TARGET_AVX512 HEED_CLANG_TARGET("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c")
#define HEED_TARGET_AVX512_BF16 \
  HEED_CLANG_TARGET("avx512bf16,avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c")
#define HEED_TARGET_BASELINE _Pragma("clang attribute push")
#define HEED_TARGET_POP _Pragma("clang attribute pop")
#else
// g++ 12 takes the undefined vector inside its own AVX-512 intrinsics for a mistake of whoever
// calls them.
#define HEED_GCC_TARGET_PUSH                                 \
  _Pragma("GCC push_options") _Pragma("GCC diagnostic push") \
      _Pragma("GCC diagnostic ignored \"-Wuninitialized\"")  \
          _Pragma("GCC diagnostic ignored \"-Wmaybe-uninitialized\"")
#define HEED_TARGET_AVX2 HEED_GCC_TARGET_PUSH _Pragma("GCC target(\"avx2,fma,f16c\")")
#define HEED_TARGET_AVX512 \
  HEED_GCC_TARGET_PUSH _Pragma("GCC target(\"avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c\")")
#define HEED_TARGET_AVX512_BF16 \
  HEED_GCC_TARGET_PUSH _Pragma( \
      "GCC target(\"avx512bf16,avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c\")")
#define HEED_TARGET_BASELINE HEED_GCC_TARGET_PUSH
#define HEED_TARGET_POP _Pragma("GCC diagnostic pop") _Pragma("GCC pop_options")
#endif

#define HEED_BEGIN_BASELINE               \
  HEED_TARGET_BASELINE namespace detail { \
    namespace baseline {
#define HEED_BEGIN_AVX2               \
  HEED_TARGET_AVX2 namespace detail { \
    namespace avx2 {
#define HEED_BEGIN_AVX512               \
  HEED_TARGET_AVX512 namespace detail { \
    namespace avx512 {
#define HEED_BEGIN_AVX512_BF16               \
  HEED_TARGET_AVX512_BF16 namespace detail { \
    namespace avx512_bf16 {
#define HEED_END_REGION \
  }                     \
  }                     \
  HEED_TARGET_POP

// Unrolls a loop whose constant trip count is at most 16; the inner loop of a register tile by 4,
// so that its end is foreseen.
#if defined(__clang__)
#define HEED_UNROLL _Pragma("unroll")
#define HEED_UNROLL_BY_4 _Pragma("unroll(4)")
#else
#define HEED_UNROLL _Pragma("GCC unroll 16")
#define HEED_UNROLL_BY_4 _Pragma("GCC unroll 4")
#endif

HEED_NAMESPACE_BEGIN
namespace detail {
HEED_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }
template <bool Write>
HEED_INLINE void prefetch_first(const void* p) {
  __builtin_prefetch(p, Write ? 1 : 0, 3);
}
}  // namespace detail
HEED_NAMESPACE_END
