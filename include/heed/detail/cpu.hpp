#pragma once

#include <heed/detail/abi.hpp>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

HEED_NAMESPACE_BEGIN
namespace detail {

/// What the CPU has and the operating system saves on a context switch.
struct cpu_features {
  bool avx2 = false;    // AVX2, FMA and F16C
  bool avx512 = false;  // the above and AVX-512 F, DQ, BW, VL
};

inline cpu_features detect_cpu() {
  cpu_features features;
#if defined(__x86_64__) && !defined(HEED_PORTABLE)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return features;
  constexpr unsigned fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
  constexpr unsigned wanted = fma | osxsave | avx | f16c;
  if ((c & wanted) != wanted) return features;
  unsigned xcr0 = 0, high = 0;
  __asm__("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));  // which registers the operating system saves
  constexpr unsigned ymm = 0x6, zmm = 0xe6;
  if ((xcr0 & ymm) != ymm || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return features;
  constexpr unsigned avx2 = 1u << 5, avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
  features.avx2 = (b & avx2) != 0;
  features.avx512 = features.avx2 && (xcr0 & zmm) == zmm && (b & avx512) == avx512;
#endif
  return features;
}

/// Asked once.
inline const cpu_features& cpu() {
  static const cpu_features features = detect_cpu();
  return features;
}

}  // namespace detail
HEED_NAMESPACE_END
