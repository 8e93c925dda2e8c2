#pragma once

#include <heed/detail/dispatch.hpp>
#include <heed/detail/make_problem.hpp>
#include <heed/streaming.hpp>
#include <heed/workspace.hpp>

HEED_NAMESPACE_BEGIN
namespace detail {

inline namespace link_heed_kernels_built_with_the_same_flags {
/// Of a scalar that has kernels: how they run, and what they take, is in
/// plan.hpp.
template <typename Scalar, typename Stored>
void run_on_kernels(problem<Scalar, Stored> p, workspace& memory);
template <typename Scalar, typename Stored>
size_type bytes_on_kernels(const problem<Scalar, Stored>& p);
}  // namespace link_heed_kernels_built_with_the_same_flags

/// Runs a checked problem: each sequence on the path that is best for its
/// queries and keys, whatever its neighbours are.
template <typename Scalar, typename Stored>
void forward(const problem<Scalar, Stored>& p, workspace& memory) {
  if constexpr (has_kernels<Scalar, Stored>) {
    run_on_kernels(p, memory);
  } else {
    streaming(p);
  }
}

/// Bytes of the workspace that a checked problem takes.
template <typename Scalar, typename Stored>
size_type bytes_of(const problem<Scalar, Stored>& p) {
  if constexpr (has_kernels<Scalar, Stored>) {
    return bytes_on_kernels(p);
  } else {
    return 0;
  }
}

}  // namespace detail
HEED_NAMESPACE_END

#ifndef HEED_EXTERN_KERNELS  // then it is compiled elsewhere, see instances.hpp
#include <heed/detail/plan.hpp>
#endif
