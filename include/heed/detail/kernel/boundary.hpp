#pragma once

// What kernels are written with: the tables they are reached by, the parameters that plans hand
// them, the rule of a score, and the macros of their regions.

#include <heed/detail/kernel_tables.hpp>
#include <heed/detail/score.hpp>
#include <heed/detail/simd/region.hpp>

#include <limits>
#include <type_traits>
