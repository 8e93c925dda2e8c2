#pragma once

#include <heed/detail/kernels.hpp>

#include <cstdint>

// The kernels of a program may be compiled once instead of in every file that calls them: build
// every file with -DHEED_EXTERN_KERNELS, and let one (or one for each set) say, at namespace scope
// after #include <heed/heed.hpp>,
//   HEED_DEFINE_KERNELS(baseline)
//   HEED_DEFINE_KERNELS(avx2)
//   HEED_DEFINE_KERNELS(avx512)       (and the one kernel of avx512_bf16)
// where the last two are nothing on other CPUs than x86-64.
// All with the same compiler flags; other flags are another ABI namespace, and the linker says what
// is missing.

#define HEED_FORWARD_KERNELS(keyword, set, In)                     \
  keyword template void set::forward<set::f32, In, float>(         \
      const forward_params<In, float, float>&) noexcept;           \
  keyword template void set::forward<set::f32, In, bfloat16_bits>( \
      const forward_params<In, bfloat16_bits, float>&) noexcept;   \
  keyword template void set::forward<set::f32, In, half_bits>(     \
      const forward_params<In, half_bits, float>&) noexcept;       \
  keyword template void set::forward<set::f32, In, std::int8_t>(   \
      const forward_params<In, std::int8_t, float>&) noexcept;     \
  keyword template void set::forward<set::f32, In, int8_block>(    \
      const forward_params<In, int8_block, float>&) noexcept;      \
  keyword template void set::forward<set::f32, In, int4_block>(    \
      const forward_params<In, int4_block, float>&) noexcept;      \
  keyword template void set::forward<set::f32, In, float8_e4m3>(   \
      const forward_params<In, float8_e4m3, float>&) noexcept;     \
  keyword template void set::forward<set::f32, In, float8_e5m2>(   \
      const forward_params<In, float8_e5m2, float>&) noexcept;

#define HEED_PRODUCT_KERNELS(keyword, set, V, In)                               \
  keyword template void set::gemm<set::V, In>(const gemm_params<In>&) noexcept; \
  keyword template void set::gemm_few<set::V, In>(const gemm_params<In>&) noexcept;

#define HEED_MERGE_KERNEL(keyword, set, V, Out, Acc)                                          \
  keyword template void set::merge_row<set::V, Out>(const Acc*, const Acc*, size, size, size, \
                                                    Out*, size) noexcept;

#define HEED_DECODE_KERNELS(keyword, set, V, Stored, Acc)                                      \
  keyword template void set::load_block<set::V, Stored>(const Stored*, size, size, size, size, \
                                                        Acc*, size) noexcept;                  \
  keyword template void set::decode<set::V, Stored>(const decode_params<Stored, Acc>*, size,   \
                                                    const decode_copies<Acc>&) noexcept;

#define HEED_BACKWARD_ROWS_KERNEL(keyword, set, V, In, Out, Acc) \
  keyword template void set::measure_rows<set::V, In, Out>(      \
      const row_statistics<In, Out, Acc>&) noexcept;

#define HEED_BACKWARD_KERNELS(keyword, set, V, In, Acc)                                       \
  HEED_BACKWARD_ROWS_KERNEL(keyword, set, V, In, In, Acc)                                     \
  keyword template void set::begin_keys<set::V, In>(const backward_task<In, Acc>&) noexcept;  \
  keyword template void set::add_key_grads<set::V, In>(                                       \
      const backward_task<In, Acc>&, const backward_head<In, Acc>&, size) noexcept;           \
  keyword template void set::add_query_grads<set::V, In>(                                     \
      const backward_task<In, Acc>&, const backward_head<In, Acc>&, size) noexcept;           \
  keyword template void set::end_keys<set::V, In>(const backward_task<In, Acc>&) noexcept;    \
  keyword template void set::store_block<set::V, In>(const Acc*, size, size, size, In*, size, \
                                                     size) noexcept;

#define HEED_LINEAR_KERNEL(keyword, set, V, In, Acc) \
  keyword template size set::linear<set::V, In>(const linear_params<In, Acc>&) noexcept;

// What a set has besides.
#define HEED_OTHER_KERNELS_baseline(keyword)
#define HEED_OTHER_KERNELS_avx2(keyword)
#if HEED_X86_BF16
#define HEED_OTHER_KERNELS_avx512(keyword)                                               \
  keyword template void avx512_bf16::forward<avx512::f32, bfloat16_bits, bfloat16_bits>( \
      const forward_params<bfloat16_bits, bfloat16_bits, float>&) noexcept;
#else
#define HEED_OTHER_KERNELS_avx512(keyword)
#endif

#define HEED_KERNELS(keyword, set)                                          \
  namespace heed {                                                          \
  inline namespace HEED_ABI {                                               \
  namespace detail {                                                        \
  HEED_FORWARD_KERNELS(keyword, set, float)                                 \
  HEED_FORWARD_KERNELS(keyword, set, bfloat16_bits)                         \
  HEED_FORWARD_KERNELS(keyword, set, half_bits)                             \
  keyword template void set::forward<set::f64, double, double>(             \
      const forward_params<double, double, double>&) noexcept;              \
  HEED_DECODE_KERNELS(keyword, set, f32, float, float)                      \
  HEED_DECODE_KERNELS(keyword, set, f32, bfloat16_bits, float)              \
  HEED_DECODE_KERNELS(keyword, set, f32, half_bits, float)                  \
  HEED_DECODE_KERNELS(keyword, set, f32, std::int8_t, float)                \
  HEED_DECODE_KERNELS(keyword, set, f32, int8_block, float)                 \
  HEED_DECODE_KERNELS(keyword, set, f32, int4_block, float)                 \
  HEED_DECODE_KERNELS(keyword, set, f32, float8_e4m3, float)                \
  HEED_DECODE_KERNELS(keyword, set, f32, float8_e5m2, float)                \
  HEED_DECODE_KERNELS(keyword, set, f64, double, double)                    \
  HEED_MERGE_KERNEL(keyword, set, f32, float, float)                        \
  HEED_MERGE_KERNEL(keyword, set, f32, bfloat16_bits, float)                \
  HEED_MERGE_KERNEL(keyword, set, f32, half_bits, float)                    \
  HEED_MERGE_KERNEL(keyword, set, f64, double, double)                      \
  HEED_BACKWARD_KERNELS(keyword, set, f32, float, float)                    \
  HEED_BACKWARD_KERNELS(keyword, set, f32, bfloat16_bits, float)            \
  HEED_BACKWARD_KERNELS(keyword, set, f32, half_bits, float)                \
  HEED_BACKWARD_KERNELS(keyword, set, f64, double, double)                  \
  HEED_BACKWARD_ROWS_KERNEL(keyword, set, f32, bfloat16_bits, float, float) \
  HEED_BACKWARD_ROWS_KERNEL(keyword, set, f32, half_bits, float, float)     \
  HEED_PRODUCT_KERNELS(keyword, set, f32, float)                            \
  HEED_PRODUCT_KERNELS(keyword, set, f32, bfloat16_bits)                    \
  HEED_PRODUCT_KERNELS(keyword, set, f32, half_bits)                        \
  HEED_PRODUCT_KERNELS(keyword, set, f64, double)                           \
  HEED_LINEAR_KERNEL(keyword, set, f32, float, float)                       \
  HEED_LINEAR_KERNEL(keyword, set, f32, bfloat16_bits, float)               \
  HEED_LINEAR_KERNEL(keyword, set, f32, half_bits, float)                   \
  HEED_LINEAR_KERNEL(keyword, set, f64, double, double)                     \
  HEED_OTHER_KERNELS_##set(keyword)                                         \
  }                                                                         \
  }                                                                         \
  }

#define HEED_KERNELS_baseline(keyword) HEED_KERNELS(keyword, baseline)
#if HEED_X86
#define HEED_KERNELS_avx2(keyword) HEED_KERNELS(keyword, avx2)
#define HEED_KERNELS_avx512(keyword) HEED_KERNELS(keyword, avx512)
#else
#define HEED_KERNELS_avx2(keyword)
#define HEED_KERNELS_avx512(keyword)
#endif

#define HEED_DEFINE_KERNELS(set) HEED_KERNELS_##set()

#ifdef HEED_EXTERN_KERNELS
HEED_KERNELS_baseline(extern) HEED_KERNELS_avx2(extern) HEED_KERNELS_avx512(extern)
#endif
