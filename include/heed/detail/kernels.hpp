#pragma once

// The kernels, once for each instruction set. Everything is a template: what a program does not
// call is not compiled.

#include <heed/detail/simd/avx2.hpp>
#include <heed/detail/simd/avx512.hpp>
#include <heed/detail/simd/avx512_bf16.hpp>
#include <heed/detail/simd/neon.hpp>
#include <heed/detail/simd/portable.hpp>
#include <heed/detail/simd/sse2.hpp>
