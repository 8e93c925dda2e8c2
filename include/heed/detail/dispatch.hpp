#pragma once

#include <heed/detail/kernel_tables.hpp>
#include <heed/detail/storage.hpp>
#include <heed/detail/stored.hpp>
#include <heed/isa.hpp>
#include <heed/types.hpp>

#include <cstdint>
#include <type_traits>

#ifndef HEED_EXTERN_KERNELS  // then they are compiled elsewhere, see instances.hpp
#include <heed/detail/kernels.hpp>
#endif

HEED_NAMESPACE_BEGIN
namespace detail {

/// Whether there are kernels for queries of one type against keys and values of another.
template <typename Scalar, typename Stored = Scalar>
constexpr bool has_kernels =
    std::is_same<Scalar, double>::value
        ? std::is_same<Stored, double>::value
        : std::is_same<accumulator_t<Scalar>, float>::value &&
              !std::is_same<Stored, double>::value && !std::is_void<kernel_scalar<Stored>>::value;

/// The same rows with their elements as a kernel sees them.
template <typename Stored>
stored_rows<kernel_scalar<Stored>> kernel_rows(const stored_rows<Stored>& from) {
  stored_rows<kernel_scalar<Stored>> to;
  to.data = reinterpret_cast<const kernel_scalar<Stored>*>(from.data);
  to.rows = from.rows, to.cols = from.cols, to.row = from.row, to.col = from.col;
  to.pages = from.pages, to.first = from.first, to.page_rows = from.page_rows;
  to.page_stride = from.page_stride;
  to.scales = from.scales, to.scale_row = from.scale_row,
  to.scale_page_stride = from.scale_page_stride;
  to.selected = from.selected;
  return to;
}

/// The one place that goes from an instruction set to its kernels: choose(kernels of it), see
/// kernel_tables.hpp.
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
  return with_kernels(
      target, [](auto set) { return decltype(set)::template attention<In, Stored, Acc>(); });
}

}  // namespace detail
HEED_NAMESPACE_END
