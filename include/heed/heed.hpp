#pragma once

/// heed: scaled dot-product attention on the CPU. This header includes every job; each may be
/// included alone.

#include <heed/attention.hpp>
#include <heed/backward.hpp>
#include <heed/block_mask.hpp>
#include <heed/cached_attention.hpp>
#include <heed/carry.hpp>
#include <heed/causal_conv.hpp>
#include <heed/delta_rule.hpp>
#include <heed/dropout.hpp>
#include <heed/execution.hpp>
#include <heed/executor.hpp>
#include <heed/failure.hpp>
#include <heed/float8.hpp>
#include <heed/gradient_terms.hpp>
#include <heed/isa.hpp>
#include <heed/kv_cache.hpp>
#include <heed/latent.hpp>
#include <heed/latent_backward.hpp>
#include <heed/linear_attention.hpp>
#include <heed/linear_options.hpp>
#include <heed/merge.hpp>
#include <heed/multi_head.hpp>
#include <heed/options.hpp>
#include <heed/paged_kv_cache.hpp>
#include <heed/position.hpp>
#include <heed/projection.hpp>
#include <heed/projection_backward.hpp>
#include <heed/quantised.hpp>
#include <heed/ragged.hpp>
#include <heed/reference.hpp>
#include <heed/reference_backward.hpp>
#include <heed/result.hpp>
#include <heed/rwkv7.hpp>
#include <heed/selective_scan.hpp>
#include <heed/softmax.hpp>
#include <heed/streaming.hpp>
#include <heed/tensor.hpp>
#include <heed/terms.hpp>
#include <heed/types.hpp>
#include <heed/version.hpp>
#include <heed/weights.hpp>
#include <heed/when.hpp>
#include <heed/workspace.hpp>
