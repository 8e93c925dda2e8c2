#pragma once

#include <heed/detail/linear_problem.hpp>
#include <heed/workspace.hpp>

HEED_NAMESPACE_BEGIN
namespace detail {

template <typename Scalar>
void chunked(const linear_problem<Scalar>& p, workspace&) {
  recurrent(p);
}

}  // namespace detail
HEED_NAMESPACE_END
