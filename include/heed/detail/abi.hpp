#pragma once

#include <heed/version.hpp>

#include <Eigen/Core>

// Everything lives in an inline namespace whose name spells the compiler flags that change the code of an inline function:
// instruction set, Eigen's alignment, relaxed arithmetic, exceptions. Two translation units built with different flags then
// hold different symbols, and link and run side by side.

/// HEED_PORTABLE, if a user defines it, leaves out all that is written for one kind of CPU: the kernels are plain loops.
#if defined(HEED_PORTABLE)
#define HEED_ABI_ISA portable
#elif defined(__AVX512F__)
#define HEED_ABI_ISA avx512
#elif defined(__AVX2__)
#define HEED_ABI_ISA avx2
#elif defined(__AVX__)
#define HEED_ABI_ISA avx
#elif defined(__x86_64__) || defined(_M_X64)
#define HEED_ABI_ISA x86_64
#elif defined(__aarch64__) || defined(_M_ARM64)
#define HEED_ABI_ISA aarch64
#else
#define HEED_ABI_ISA generic
#endif

#if defined(__FAST_MATH__)
#define HEED_ABI_MATH fast
#else
#define HEED_ABI_MATH ieee
#endif

/// 1 where the translation unit is built with exceptions. Without them a wrong argument goes to HEED_FAIL (see detail/check.hpp).
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS) || defined(_CPPUNWIND)
#define HEED_EXCEPTIONS 1
#define HEED_ABI_EXCEPTIONS throws
#else
#define HEED_EXCEPTIONS 0
#define HEED_ABI_EXCEPTIONS aborts
#endif

#define HEED_ABI_JOIN(major, minor, isa, align, math, exceptions) v##major##_##minor##_##isa##_a##align##_##math##_##exceptions
#define HEED_ABI_EXPAND(major, minor, isa, align, math, exceptions) HEED_ABI_JOIN(major, minor, isa, align, math, exceptions)
#define HEED_ABI                                                                                                                  \
  HEED_ABI_EXPAND(HEED_VERSION_MAJOR, HEED_VERSION_MINOR, HEED_ABI_ISA, EIGEN_MAX_ALIGN_BYTES, HEED_ABI_MATH, HEED_ABI_EXCEPTIONS)

#define HEED_NAMESPACE_BEGIN \
  namespace heed {           \
  inline namespace HEED_ABI {
#define HEED_NAMESPACE_END \
  }                        \
  }
