#pragma once

#include <heed/detail/dispatch.hpp>
#include <heed/detail/linear_problem.hpp>
#include <heed/workspace.hpp>

HEED_NAMESPACE_BEGIN
namespace detail {

inline namespace link_heed_kernels_built_with_the_same_flags {
/// Chunk by chunk, of a scalar that has kernels: how they run, and what they
/// take, is in linear_plan.hpp.
template <typename Scalar>
void run_on_kernels(const linear_problem<Scalar>& p, workspace& memory);
template <typename Scalar>
size_type bytes_on_kernels(const linear_problem<Scalar>& p);
}  // namespace link_heed_kernels_built_with_the_same_flags

/// Whether there is something for the kernels to read, and something to read it
/// with.
template <typename Scalar>
bool is_chunked(const linear_problem<Scalar>& p) {
  return p.group() > 0 && p.heads() > 0 && p.key.cols > 0;
}

/// Runs a checked problem chunk by chunk, or token by token where its scalar
/// has no kernel.
template <typename Scalar>
void chunked(const linear_problem<Scalar>& p, workspace& memory) {
  if constexpr (has_kernels<Scalar>)
    if (is_chunked(p)) return run_on_kernels(p, memory);
  recurrent(p);
}

/// Bytes of the workspace that a checked problem takes.
template <typename Scalar>
size_type bytes_of(const linear_problem<Scalar>& p) {
  if constexpr (has_kernels<Scalar>) {
    return is_chunked(p) ? bytes_on_kernels(p) : 0;
  } else {
    return 0;
  }
}

}  // namespace detail
HEED_NAMESPACE_END

#ifndef HEED_EXTERN_KERNELS  // then it is compiled elsewhere, see instances.hpp
#include <heed/detail/linear_plan.hpp>
#endif
