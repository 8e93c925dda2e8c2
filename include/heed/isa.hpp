#pragma once

#include <heed/detail/abi.hpp>

HEED_NAMESPACE_BEGIN

/// The instruction set a call's kernels are compiled for; `automatic` is the best one this CPU has.
enum class isa : unsigned char { automatic, baseline, avx2, avx512 };

HEED_NAMESPACE_END
