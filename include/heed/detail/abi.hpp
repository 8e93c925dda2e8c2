#pragma once

#include <heed/version.hpp>

#include <Eigen/Core>

#if !EIGEN_VERSION_AT_LEAST(3, 4, 0)
#error "heed needs Eigen 3.4 or 5"
#endif

// Everything lives in an inline namespace whose name spells the compiler flags that change the code
// of an inline function, as the compiler and Eigen tell them by macros. Two translation units built
// with different flags then hold different symbols, and link and run side by side:
// v0_1_x86_64_c3s12_a16_16_m_er is version 0.1 for an x86-64 CPU with SSE3, SSSE3, SSE4.1 and
// SSE4.2, Eigen's alignments 16 and 16, plain arithmetic, exceptions and RTTI. (Assertions are not
// in it: they change neither a layout nor a result.) Functions of Eigen and of the standard library
// that both compile are theirs: the linker keeps the first, so link the oldest CPU's file first.

/// HEED_PORTABLE, if a user defines it, leaves out all that is written for one kind of CPU: the
/// kernels are plain loops.
#if defined(HEED_PORTABLE)
#define HEED_ABI_CPU portable
#elif defined(__x86_64__)
#define HEED_ABI_CPU x86_64
#elif defined(__aarch64__)
#define HEED_ABI_CPU aarch64
#else
#define HEED_ABI_CPU generic
#endif

/// 1 where the translation unit is built with exceptions. Without them a wrong argument goes to the
/// failure handler (see check.hpp).
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
#define HEED_EXCEPTIONS 1
#else
#define HEED_EXCEPTIONS 0
#endif

#define HEED_INLINE __attribute__((always_inline)) inline

// HEED_ABI_IF(flag, letter) is the letter where the macro `flag` is 1, and nothing where it is 0 or
// not defined.
#define HEED_ABI_PAIR_1 ~,
#define HEED_ABI_SECOND(first, second, ...) second
#define HEED_ABI_CHOOSE(...) HEED_ABI_SECOND(__VA_ARGS__)
#define HEED_ABI_IF_VALUE(value, letter) HEED_ABI_CHOOSE(HEED_ABI_PAIR_##value letter, , ~)
#define HEED_ABI_IF(flag, letter) HEED_ABI_IF_VALUE(flag, letter)

#define HEED_ABI_JOIN_TEXT(a, b, c, d, e, f, g, h, ...) a##b##c##d##e##f##g##h
#define HEED_ABI_JOIN(...) HEED_ABI_JOIN_TEXT(__VA_ARGS__, , , , , , , , ~)

// Instructions that a compiler uses of its own accord.
#define HEED_ABI_SSE                                                                             \
  HEED_ABI_JOIN(HEED_ABI_IF(__SSE3__, 3), HEED_ABI_IF(__SSSE3__, s), HEED_ABI_IF(__SSE4_1__, 1), \
                HEED_ABI_IF(__SSE4_2__, 2), HEED_ABI_IF(__POPCNT__, p),                          \
                HEED_ABI_IF(__GCC_HAVE_SYNC_COMPARE_AND_SWAP_16, c), HEED_ABI_IF(__SSE4A__, 4))
#define HEED_ABI_AVX                                                                         \
  HEED_ABI_JOIN(HEED_ABI_IF(__AVX__, a), HEED_ABI_IF(__AVX2__, A), HEED_ABI_IF(__FMA__, f),  \
                HEED_ABI_IF(__F16C__, h), HEED_ABI_IF(__FMA4__, F), HEED_ABI_IF(__XOP__, x), \
                HEED_ABI_IF(__AVXVNNI__, y), HEED_ABI_IF(__GFNI__, G))
#define HEED_ABI_SCALAR                                                                       \
  HEED_ABI_JOIN(HEED_ABI_IF(__BMI__, b), HEED_ABI_IF(__BMI2__, B), HEED_ABI_IF(__LZCNT__, l), \
                HEED_ABI_IF(__MOVBE__, m), HEED_ABI_IF(__TBM__, t), HEED_ABI_IF(__ADX__, u),  \
                HEED_ABI_IF(__APX_F__, X))
#define HEED_ABI_AVX512                                                       \
  HEED_ABI_JOIN(HEED_ABI_IF(__AVX512F__, 5), HEED_ABI_IF(__AVX512CD__, C),    \
                HEED_ABI_IF(__AVX512BW__, w), HEED_ABI_IF(__AVX512DQ__, d),   \
                HEED_ABI_IF(__AVX512VL__, v), HEED_ABI_IF(__AVX512IFMA__, i), \
                HEED_ABI_IF(__AVX512ER__, e), HEED_ABI_IF(__EVEX512__, z))
#define HEED_ABI_AVX512_LATER                                                        \
  HEED_ABI_JOIN(HEED_ABI_IF(__AVX512VBMI__, o), HEED_ABI_IF(__AVX512VBMI2__, O),     \
                HEED_ABI_IF(__AVX512VNNI__, n), HEED_ABI_IF(__AVX512BITALG__, g),    \
                HEED_ABI_IF(__AVX512VPOPCNTDQ__, P), HEED_ABI_IF(__AVX512BF16__, r), \
                HEED_ABI_IF(__AVX512FP16__, H), HEED_ABI_IF(__AVX10_2__, T))
#define HEED_ABI_ARM                                                                       \
  HEED_ABI_JOIN(HEED_ABI_IF(__ARM_FEATURE_ATOMICS, a), HEED_ABI_IF(__ARM_FEATURE_RCPC, c), \
                HEED_ABI_IF(__ARM_FEATURE_FP16_SCALAR_ARITHMETIC, h),                      \
                HEED_ABI_IF(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC, H),                      \
                HEED_ABI_IF(__ARM_FEATURE_DOTPROD, d), HEED_ABI_IF(__ARM_FEATURE_SVE, s),  \
                HEED_ABI_IF(__ARM_FEATURE_SVE2, S))
#define HEED_ABI_ARM_LATER                                                                   \
  HEED_ABI_JOIN(HEED_ABI_IF(__ARM_FEATURE_QRDMX, q), HEED_ABI_IF(__ARM_FEATURE_FP16_FML, f), \
                HEED_ABI_IF(__ARM_FEATURE_FRINT, r), HEED_ABI_IF(__ARM_FEATURE_JCVT, j),     \
                HEED_ABI_IF(__ARM_FEATURE_COMPLEX, C),                                       \
                HEED_ABI_IF(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC, b),                        \
                HEED_ABI_IF(__ARM_FEATURE_MATMUL_INT8, i), HEED_ABI_IF(__ARM_FEATURE_MOPS, m))
#if defined(__x86_64__) || defined(__aarch64__)
#define HEED_ABI_OTHER
#else
#define HEED_ABI_OTHER                                                                         \
  HEED_ABI_JOIN(HEED_ABI_IF(__SSE__, k), HEED_ABI_IF(__SSE2__, K), HEED_ABI_IF(__ARM_NEON, N), \
                HEED_ABI_IF(__ALTIVEC__, V), HEED_ABI_IF(__VSX__, W),                          \
                HEED_ABI_IF(__POWER8_VECTOR__, 8), HEED_ABI_IF(__POWER9_VECTOR__, 9),          \
                HEED_ABI_IF(__riscv_vector, R))
#endif
#define HEED_ABI_INSTRUCTIONS                                                 \
  HEED_ABI_JOIN(HEED_ABI_SSE, HEED_ABI_AVX, HEED_ABI_SCALAR, HEED_ABI_AVX512, \
                HEED_ABI_AVX512_LATER, HEED_ABI_ARM, HEED_ABI_ARM_LATER, HEED_ABI_OTHER)

// What -ffast-math and its parts allow.
#define HEED_ABI_MATH                                                                      \
  HEED_ABI_JOIN(HEED_ABI_IF(__FAST_MATH__, f), HEED_ABI_IF(__FINITE_MATH_ONLY__, i),       \
                HEED_ABI_IF(__ASSOCIATIVE_MATH__, a), HEED_ABI_IF(__RECIPROCAL_MATH__, r), \
                HEED_ABI_IF(__NO_SIGNED_ZEROS__, z), HEED_ABI_IF(__NO_TRAPPING_MATH__, t), \
                HEED_ABI_IF(__NO_MATH_ERRNO__, e), HEED_ABI_IF(__ROUNDING_MATH__, m))

#define HEED_ABI_LANGUAGE HEED_ABI_JOIN(HEED_ABI_IF(HEED_EXCEPTIONS, e), HEED_ABI_IF(__GXX_RTTI, r))

#define HEED_ABI_NAME_TEXT(major, minor, cpu, instructions, align, static_align, math, language) \
  v##major##_##minor##_##cpu##_c##instructions##_a##align##_##static_align##_m##math##_##language
#define HEED_ABI_NAME(major, minor, cpu, instructions, align, static_align, math, language) \
  HEED_ABI_NAME_TEXT(major, minor, cpu, instructions, align, static_align, math, language)
#define HEED_ABI                                                                             \
  HEED_ABI_NAME(HEED_VERSION_MAJOR, HEED_VERSION_MINOR, HEED_ABI_CPU, HEED_ABI_INSTRUCTIONS, \
                EIGEN_MAX_ALIGN_BYTES, EIGEN_MAX_STATIC_ALIGN_BYTES, HEED_ABI_MATH,          \
                HEED_ABI_LANGUAGE)

#define HEED_NAMESPACE_BEGIN \
  namespace heed {           \
  inline namespace HEED_ABI {
#define HEED_NAMESPACE_END \
  }                        \
  }
