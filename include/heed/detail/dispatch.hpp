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

/// The forward kernel of one instruction set.
template <typename In, typename Stored, typename Acc>
struct forward_kernel {
  void (*run)(const forward_params<In, Stored, Acc>&) noexcept;
  size block_rows;  // queries that it takes at a time
};

template <typename In, typename Stored, typename Acc>
forward_kernel<In, Stored, Acc> select_forward(isa target) {
  constexpr bool wide = std::is_same<Acc, double>::value;
  switch (resolve(target)) {
#if HEED_X86
    case isa::avx512_bf16:
#if HEED_X86_BF16
      if constexpr (std::is_same<In, bfloat16_bits>::value && std::is_same<Stored, bfloat16_bits>::value)
        return {avx512_bf16::forward<avx512::f32, In, Stored>, avx512::forward_width<avx512::f32>};
#endif
      [[fallthrough]];
    case isa::avx512: {
      using V = std::conditional_t<wide, avx512::f64, avx512::f32>;
      return {avx512::forward<V, In, Stored>, avx512::forward_width<V>};
    }
    case isa::avx2: {
      using V = std::conditional_t<wide, avx2::f64, avx2::f32>;
      return {avx2::forward<V, In, Stored>, avx2::forward_width<V>};
    }
#endif
    default: {
      using V = std::conditional_t<wide, baseline::f64, baseline::f32>;
      return {baseline::forward<V, In, Stored>, baseline::forward_width<V>};
    }
  }
}

}  // namespace detail
HEED_NAMESPACE_END
