#pragma once

// Which sets of kernels there are.

#if defined(__x86_64__) && !defined(HEED_PORTABLE)
#define HEED_X86 1
#else
#define HEED_X86 0
#endif
// The first compilers that know AVX512-BF16 are g++ 10 and clang++ 9.
#if HEED_X86 && (defined(__clang__) || __GNUC__ >= 10)
#define HEED_X86_BF16 1
#else
#define HEED_X86_BF16 0
#endif
#if defined(__aarch64__) && !defined(HEED_PORTABLE)
#define HEED_NEON 1
#else
#define HEED_NEON 0
#endif
