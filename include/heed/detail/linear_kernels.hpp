#pragma once

#include <heed/detail/kernels.hpp>
#include <heed/detail/linear_params.hpp>

// The kernels of linear attention, in a file of their own so that attention alone does not pay for them.
HEED_NAMESPACE_BEGIN

HEED_BEGIN_BASELINE
#include <heed/detail/kernel/linear.inc>
HEED_END_REGION

#if HEED_X86
HEED_BEGIN_AVX2
#include <heed/detail/kernel/linear.inc>
HEED_END_REGION

HEED_BEGIN_AVX512
#include <heed/detail/kernel/linear.inc>
HEED_END_REGION
#endif

HEED_NAMESPACE_END
