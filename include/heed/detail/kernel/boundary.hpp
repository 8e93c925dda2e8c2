#pragma once

// What kernels are written with: the parameters that plans hand them, the rule of a score, and the
// macros of their regions.

#include <heed/detail/backward_params.hpp>
#include <heed/detail/decode_params.hpp>
#include <heed/detail/gemm_params.hpp>
#include <heed/detail/linear_params.hpp>
#include <heed/detail/params.hpp>
#include <heed/detail/score.hpp>
#include <heed/detail/simd/region.hpp>

#include <limits>
#include <type_traits>
