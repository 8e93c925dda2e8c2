#pragma once

#include <heed/detail/backward_problem.hpp>
#include <heed/detail/dispatch.hpp>
#include <heed/reference_backward.hpp>
#include <heed/workspace.hpp>

HEED_NAMESPACE_BEGIN
namespace detail {

inline namespace link_heed_kernels_built_with_the_same_flags {
/// Of a scalar that has kernels: how they run, and what they take, is in
/// backward_plan.hpp.
template <typename Scalar, typename Out>
void run_on_kernels(const backward_problem<Scalar, Out>& p, workspace& memory);
template <typename Scalar, typename Out>
size_type bytes_on_kernels(const backward_problem<Scalar, Out>& p);
}  // namespace link_heed_kernels_built_with_the_same_flags

template <typename Scalar, typename Out>
void backward(const backward_problem<Scalar, Out>& p, workspace& memory) {
  if constexpr (has_kernels<Scalar>) {
    run_on_kernels(p, memory);
  } else {
    reference_backward(p);
  }
}

/// Bytes of the workspace that a checked backward call takes.
template <typename Scalar, typename Out>
size_type bytes_of(const backward_problem<Scalar, Out>& p) {
  if constexpr (has_kernels<Scalar>) {
    return bytes_on_kernels(p);
  } else {
    return 0;
  }
}

}  // namespace detail
HEED_NAMESPACE_END

#ifndef HEED_EXTERN_KERNELS  // then it is compiled elsewhere, see instances.hpp
#include <heed/detail/backward_plan.hpp>
#endif
