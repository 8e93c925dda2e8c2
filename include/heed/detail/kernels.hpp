#pragma once

#include <heed/detail/decode_params.hpp>
#include <heed/detail/gemm_params.hpp>
#include <heed/detail/params.hpp>
#include <heed/detail/score.hpp>
#include <heed/detail/simd/avx2.hpp>
#include <heed/detail/simd/avx512.hpp>
#include <heed/detail/simd/avx512_bf16.hpp>
#include <heed/detail/simd/neon.hpp>
#include <heed/detail/simd/portable.hpp>
#include <heed/detail/simd/sse2.hpp>

// The kernels, once for each instruction set. Everything is a template: what a program does not call is not compiled.

HEED_NAMESPACE_BEGIN

HEED_BEGIN_BASELINE
#include <heed/detail/kernel/block.inc>
#include <heed/detail/kernel/exp.inc>
#include <heed/detail/kernel/score.inc>

#include <heed/detail/kernel/forward.inc>

#include <heed/detail/kernel/decode.inc>
#include <heed/detail/kernel/gemm.inc>
HEED_END_REGION

#if HEED_X86
HEED_BEGIN_AVX2
#include <heed/detail/kernel/block.inc>
#include <heed/detail/kernel/exp.inc>
#include <heed/detail/kernel/score.inc>

#include <heed/detail/kernel/forward.inc>

#include <heed/detail/kernel/decode.inc>
#include <heed/detail/kernel/gemm.inc>
HEED_END_REGION

HEED_BEGIN_AVX512
#include <heed/detail/kernel/block.inc>
#include <heed/detail/kernel/exp.inc>
#include <heed/detail/kernel/score.inc>

#include <heed/detail/kernel/forward.inc>

#include <heed/detail/kernel/decode.inc>
#include <heed/detail/kernel/gemm.inc>
HEED_END_REGION
#endif

#if HEED_X86_BF16
HEED_BEGIN_AVX512_BF16
#include <heed/detail/kernel/pair_form.inc>
HEED_END_REGION
#endif

HEED_NAMESPACE_END
