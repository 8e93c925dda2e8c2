#pragma once

#include <heed/detail/instances.hpp>
#include <heed/detail/kernels.hpp>
#include <heed/detail/stored.hpp>
#include <heed/isa.hpp>
#include <heed/types.hpp>

#include <cstdint>
#include <type_traits>

HEED_NAMESPACE_BEGIN
namespace detail {

/// How kernels see a scalar of Eigen's; void: there are no kernels for it.
template <typename Scalar>
struct kernel_scalar_of {
  using type = void;
};
template <>
struct kernel_scalar_of<float> {
  using type = float;
};
template <>
struct kernel_scalar_of<double> {
  using type = double;
};
template <>
struct kernel_scalar_of<Eigen::half> {
  using type = half_bits;
};
template <>
struct kernel_scalar_of<Eigen::bfloat16> {
  using type = bfloat16_bits;
};
template <>
struct kernel_scalar_of<std::int8_t> {
  using type = std::int8_t;
};
template <typename Scalar>
using kernel_scalar = typename kernel_scalar_of<Scalar>::type;

/// Whether there are kernels for queries of one type against keys and values of another.
template <typename Scalar, typename Stored = Scalar>
constexpr bool has_kernels = std::is_same<Scalar, double>::value
                                 ? std::is_same<Stored, double>::value
                                 : std::is_same<accumulator_t<Scalar>, float>::value && !std::is_same<Stored, double>::value &&
                                       !std::is_void<kernel_scalar<Stored>>::value;

/// Rows as a kernel reads them.
template <typename Stored>
row_source<kernel_scalar<Stored>> source_of(const stored_rows<Stored>& rows) {
  return {reinterpret_cast<const kernel_scalar<Stored>*>(rows.data),
          rows.row_stride,
          rows.col_stride,
          rows.pages,
          rows.page_rows,
          rows.page_stride,
          rows.scales,
          rows.scale_stride,
          rows.scale_page_stride,
          false};
}

/// The one place that goes from an instruction set to its kernels: choose(kernels of it), see kernel/all.inc.
template <typename Choose>
auto with_kernels(isa target, const Choose& choose) {
  switch (resolve(target)) {
#if HEED_X86
    case isa::avx512_bf16:
#if HEED_X86_BF16
      return choose(avx512_bf16::kernels());
#endif
    case isa::avx512:
      return choose(avx512::kernels());
    case isa::avx2:
      return choose(avx2::kernels());
#endif
    default:
      return choose(baseline::kernels());
  }
}

template <typename In, typename Stored, typename Acc>
forward_kernel<In, Stored, Acc> select_forward(isa target) {
  return with_kernels(target, [](auto set) { return decltype(set)::template attention<In, Stored, Acc>(); });
}

}  // namespace detail
HEED_NAMESPACE_END
