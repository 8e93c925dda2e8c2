#pragma once

#include <heed/detail/architecture.hpp>
#include <heed/detail/backward_params.hpp>
#include <heed/detail/decode_params.hpp>
#include <heed/detail/gemm_params.hpp>
#include <heed/detail/linear_params.hpp>
#include <heed/detail/params.hpp>

#include <type_traits>

// How plans reach kernels: each instruction set has a table of its own, which kernel/all.inc fills.
// A table's full name, and that of the functions that are compiled with the tables
// (run_forward.hpp, run_backward.hpp, run_linear.hpp), is what the linker says where a file leaves
// the kernels to heed::kernels and has other flags than it, or is linked without it; so the name
// says what to do.

#define HEED_KERNEL_TABLE(set)                                 \
  namespace set {                                              \
  struct link_heed_kernels_built_with_the_same_flags {         \
    template <typename In, typename Stored, typename Acc>      \
    static forward_kernel<In, Stored, Acc> attention();        \
    template <typename In, typename Out, typename Acc>         \
    static backward_kernel<In, Out, Acc> gradient();           \
    template <typename Query, typename Stored, typename Acc>   \
    static decode_kernel<Query, Stored, Acc> decoding();       \
    template <typename In>                                     \
    static gemm_kernel<In> product();                          \
    template <typename In, typename Acc>                       \
    static linear_kernel<In, Acc> recurrence();                \
  };                                                           \
  using kernels = link_heed_kernels_built_with_the_same_flags; \
  }

HEED_NAMESPACE_BEGIN
namespace detail {

HEED_KERNEL_TABLE(baseline)
#if HEED_X86
HEED_KERNEL_TABLE(avx2)
HEED_KERNEL_TABLE(avx512)
#endif

#if HEED_X86_BF16
namespace avx512_bf16 {
/// The kernels of AVX-512, but for attention of bfloat16.
struct link_heed_kernels_built_with_the_same_flags : avx512::kernels {
  template <typename In, typename Stored, typename Acc>
  static forward_kernel<In, Stored, Acc> attention() {
    if constexpr (std::is_same<In, bfloat16_bits>::value &&
                  std::is_same<Stored, bfloat16_bits>::value) {
      return attention_in_pairs<In>();
    } else {
      return avx512::kernels::attention<In, Stored, Acc>();
    }
  }
  template <typename In>
  static forward_kernel<In, In, float> attention_in_pairs();
};
using kernels = link_heed_kernels_built_with_the_same_flags;
}  // namespace avx512_bf16
#endif

}  // namespace detail
HEED_NAMESPACE_END
