#pragma once

#include <heed/detail/backward_plan.hpp>
#include <heed/detail/kernels.hpp>
#include <heed/detail/linear_plan.hpp>
#include <heed/detail/plan.hpp>

#include <cstdint>

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

// Queries of one type against keys and values of each type that they are stored in.
#define HEED_EACH_STORED(define, set, In, half, bfloat16)                                     \
  define(set, In, float, float) define(set, In, half, float) define(set, In, bfloat16, float) \
      define(set, In, std::int8_t, float) define(set, In, int8_block, float)                  \
          define(set, In, int4_block, float) define(set, In, float8_e4m3, float)              \
              define(set, In, float8_e5m2, float)
#define HEED_EACH_ATTENTION(define, set, half, bfloat16)  \
  HEED_EACH_STORED(define, set, float, half, bfloat16)    \
  HEED_EACH_STORED(define, set, half, half, bfloat16)     \
  HEED_EACH_STORED(define, set, bfloat16, half, bfloat16) \
  define(set, double, double, double)

// A gradient is stored in the type of its inputs, or in float.
#define HEED_EACH_GRADIENT(define, set, half, bfloat16)                      \
  define(set, float, float, float) define(set, half, half, float)            \
      define(set, bfloat16, bfloat16, float) define(set, half, float, float) \
          define(set, bfloat16, float, float) define(set, double, double, double)

#define HEED_EACH_SCALAR(define, set, half, bfloat16)                             \
  define(set, float, float) define(set, half, float) define(set, bfloat16, float) \
      define(set, double, double)

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

#define HEED_DEFINE_FORWARD_PLAN(set, Scalar, Stored, Acc)           \
  template void run_on_kernels(problem<Scalar, Stored>, workspace&); \
  template size_type bytes_on_kernels(const problem<Scalar, Stored>&);
#define HEED_DEFINE_BACKWARD_PLAN(set, Scalar, Out, Acc)                          \
  template void run_on_kernels(const backward_problem<Scalar, Out>&, workspace&); \
  template size_type bytes_on_kernels(const backward_problem<Scalar, Out>&);
#define HEED_DEFINE_LINEAR_PLAN(set, Scalar, Acc)                          \
  template void run_on_kernels(const linear_problem<Scalar>&, workspace&); \
  template size_type bytes_on_kernels(const linear_problem<Scalar>&);
#define HEED_DEFINE_PLANS                                                       \
  HEED_NAMESPACE_BEGIN                                                          \
  namespace detail {                                                            \
  HEED_EACH_ATTENTION(HEED_DEFINE_FORWARD_PLAN, , Eigen::half, Eigen::bfloat16) \
  HEED_EACH_GRADIENT(HEED_DEFINE_BACKWARD_PLAN, , Eigen::half, Eigen::bfloat16) \
  HEED_EACH_SCALAR(HEED_DEFINE_LINEAR_PLAN, , Eigen::half, Eigen::bfloat16)     \
  }                                                                             \
  HEED_NAMESPACE_END
