#pragma once

#include <heed/detail/kernels.hpp>
#include <heed/detail/plan_instances.hpp>

// The kernels of a program, and the plans by which calls run on them, may be compiled once instead
// of in every file that calls them. Files built with -DHEED_EXTERN_KERNELS do not even read their
// text; one file, or one for each line, has
//   #include <heed/detail/instances.hpp>
//   HEED_DEFINE_PLANS
//   HEED_DEFINE_KERNELS(baseline)
//   HEED_DEFINE_KERNELS(avx2)
//   HEED_DEFINE_KERNELS(avx512)       (and the one kernel of avx512_bf16)
// at namespace scope, of which the last two are nothing on other CPUs than x86-64. The target
// heed::kernels is these files. All are built with the same compiler flags; other flags are another
// ABI namespace, and the linker says what is missing (kernel_tables.hpp).

#define HEED_DEFINE_ATTENTION(set, In, Stored, Acc)                                    \
  template forward_kernel<In, Stored, Acc> set::kernels::attention<In, Stored, Acc>(); \
  template decode_kernel<In, Stored, Acc> set::kernels::decoding<In, Stored, Acc>();
#define HEED_DEFINE_GRADIENT(set, In, Out, Acc) \
  template backward_kernel<In, Out, Acc> set::kernels::gradient<In, Out, Acc>();
#define HEED_DEFINE_OTHERS(set, In, Acc)                \
  template gemm_kernel<In> set::kernels::product<In>(); \
  template linear_kernel<In, Acc> set::kernels::recurrence<In, Acc>();
#define HEED_DEFINE_SET(set)                                                \
  HEED_EACH_ATTENTION(HEED_DEFINE_ATTENTION, set, half_bits, bfloat16_bits) \
  HEED_EACH_GRADIENT(HEED_DEFINE_GRADIENT, set, half_bits, bfloat16_bits)   \
  HEED_EACH_SCALAR(HEED_DEFINE_OTHERS, set, half_bits, bfloat16_bits)

#define HEED_DEFINE_SET_baseline HEED_DEFINE_SET(baseline)
#if HEED_X86
#define HEED_DEFINE_SET_avx2 HEED_DEFINE_SET(avx2)
#else
#define HEED_DEFINE_SET_avx2
#endif
#if HEED_X86_BF16
#define HEED_DEFINE_SET_avx512                                 \
  HEED_DEFINE_SET(avx512)                                      \
  template forward_kernel<bfloat16_bits, bfloat16_bits, float> \
  avx512_bf16::kernels::attention_in_pairs<bfloat16_bits>();
#elif HEED_X86
#define HEED_DEFINE_SET_avx512 HEED_DEFINE_SET(avx512)
#else
#define HEED_DEFINE_SET_avx512
#endif

#define HEED_DEFINE_KERNELS(set) \
  HEED_NAMESPACE_BEGIN           \
  namespace detail {             \
  HEED_DEFINE_SET_##set          \
  }                              \
  HEED_NAMESPACE_END
