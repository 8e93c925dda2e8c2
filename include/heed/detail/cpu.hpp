#pragma once

#include <heed/detail/architecture.hpp>
#include <heed/types.hpp>

#if HEED_X86
#include <cpuid.h>
#endif

HEED_NAMESPACE_BEGIN
namespace detail {

/// What the CPU has and the operating system saves on a context switch.
struct cpu_features {
  bool avx2 = false;         // AVX2, FMA and F16C
  bool avx512 = false;       // the above and AVX-512 F, DQ, BW, VL
  bool avx512_bf16 = false;  // the above and AVX512-BF16
  bool fast_bf16 = false;    // the above, and vdpbf16ps runs as often as an fma of floats
};

/// Bytes of a core's second-level cache; 512 KiB where the CPU does not say.
inline size_type detect_level2_cache() {
  size_type kib = 512;
#if HEED_X86
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0x80000006u, &a, &b, &c, &d) && c >> 16 != 0)
    kib = static_cast<size_type>(c >> 16);
#endif
  return kib * 1024;
}

inline cpu_features detect_cpu() {
  cpu_features features;
#if HEED_X86
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return features;
  constexpr unsigned fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
  constexpr unsigned wanted = fma | osxsave | avx | f16c;
  if ((c & wanted) != wanted) return features;
  unsigned xcr0 = 0, high = 0;
  __asm__("xgetbv"
          : "=a"(xcr0), "=d"(high)
          : "c"(0));  // which registers the operating system saves
  constexpr unsigned ymm = 0x6, zmm = 0xe6;
  if ((xcr0 & ymm) != ymm || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return features;
  constexpr unsigned avx2 = 1u << 5,
                     avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
  features.avx2 = (b & avx2) != 0;
  features.avx512 = features.avx2 && (xcr0 & zmm) == zmm && (b & avx512) == avx512;

  constexpr unsigned avx512_bf16 = 1u << 5;
  features.avx512_bf16 = HEED_X86_BF16 && features.avx512 &&
                         __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & avx512_bf16) != 0;
  // vdpbf16ps does twice the work of an fma. AMD's run it as often (Zen 4: products in twice the
  // speed of float, in IREE's pull request 15089); Intel's so seldom that floats are faster
  // (measured on a core of Emerald Rapids: 86 GFLOP/s against 178).
  constexpr unsigned amd = 0x68747541;  // "Auth", of "AuthenticAMD"
  features.fast_bf16 = features.avx512_bf16 && __get_cpuid(0, &a, &b, &c, &d) && b == amd;
#endif
  return features;
}

/// Asked once.
inline const cpu_features& cpu() {
  static const cpu_features features = detect_cpu();
  return features;
}

inline size_type level2_cache() {
  static const size_type bytes = detect_level2_cache();
  return bytes;
}

}  // namespace detail
HEED_NAMESPACE_END
