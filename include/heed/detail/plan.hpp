#pragma once

#include <heed/detail/problem.hpp>
#include <heed/executor.hpp>
#include <heed/streaming.hpp>
#include <heed/workspace.hpp>

HEED_NAMESPACE_BEGIN
namespace detail {

/// Runs a checked problem on the best path that its scalar type has.
template <typename Scalar, typename Stored>
void forward(const problem<Scalar, Stored>& p, workspace&) {
  streaming(p);
}

}  // namespace detail
HEED_NAMESPACE_END
