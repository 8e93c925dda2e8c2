#pragma once

#include <heed/detail/dispatch.hpp>
#include <heed/detail/linear_kernels.hpp>
#include <heed/detail/linear_problem.hpp>
#include <heed/workspace.hpp>

#include <algorithm>
#include <type_traits>

HEED_NAMESPACE_BEGIN
namespace detail {

/// The kernel of one instruction set, and how many rows its register tile has.
template <typename In, typename Acc>
struct linear_kernel {
  void (*run)(const linear_params<In, Acc>&) noexcept;
  size tile_rows;

  /// Tokens of a chunk where the caller leaves it to the library. Within a chunk a token costs chunk / 2 (d_k + d_v) multiply-adds, on
  /// top of 2 d_k d_v for the state: a longer chunk is more work, has longer sums to round and leaves the first-level cache; a shorter
  /// one brings the state through the registers more often. float, d = 64, ns a token: with AVX-512 and 48 KiB of cache 137 at 32, 156
  /// at 48, 166 at 64, 195 at 96; with AVX2 and 32 KiB 232 at 16, 238 at 24, 244 at 32.
  index chunk() const { return index{4 * tile_rows}; }
};

template <typename In, typename Acc>
linear_kernel<In, Acc> select_linear(isa target) {
  constexpr bool wide = std::is_same<Acc, double>::value;
  switch (resolve(target)) {
#if HEED_X86
    case isa::avx512:
    case isa::avx512_bf16: {
      using V = std::conditional_t<wide, avx512::f64, avx512::f32>;
      return {avx512::linear<V, In>, V::tile_rows};
    }
    case isa::avx2: {
      using V = std::conditional_t<wide, avx2::f64, avx2::f32>;
      return {avx2::linear<V, In>, V::tile_rows};
    }
#endif
    default: {
      using V = std::conditional_t<wide, baseline::f64, baseline::f32>;
      return {baseline::linear<V, In>, V::tile_rows};
    }
  }
}

/// The most tokens that a caller gets in one chunk.
constexpr index linear_chunk_most = 48;

/// Runs a checked problem chunk by chunk on the kernels.
template <typename Scalar>
void chunked_on_kernels(const linear_problem<Scalar>& p, workspace& memory) {
  using In = kernel_scalar<Scalar>;
  using Acc = accumulator_t<Scalar>;
  const linear_kernel<In, Acc> kernel = select_linear<In, Acc>(p.options.target);
  const index tokens = p.key.rows, tasks = p.key.batch * p.key.heads;
  const index wanted = p.options.chunk > 0 ? (std::min)(p.options.chunk, linear_chunk_most) : kernel.chunk();
  const index chunk = (std::max)((std::min)(wanted, tokens), index{1});
  const index elements = linear_layout(chunk, p.key.cols, p.state_cols(), kernel.tile_rows).elements;
  const int workers = workers_of(p.options, tasks);
  Acc* const scratch = static_cast<Acc*>(memory.reserve(workers * elements * index{sizeof(Acc)}));

  for_each_task(tasks, workers, p.options.executor, [&](index task, int worker) {
    const linear_head<Scalar> head = p.head(task / p.key.heads, task % p.key.heads);
    linear_params<In, Acc> k;
    k.query = reinterpret_cast<const In*>(head.query.data);
    k.query_head = head.query.head_stride, k.query_row = head.query.row_stride, k.query_col = head.query.col_stride;
    k.key = reinterpret_cast<const In*>(head.key.data);
    k.key_row = head.key.row_stride, k.key_col = head.key.col_stride;
    k.value = reinterpret_cast<const In*>(head.value.data);
    k.value_row = head.value.row_stride, k.value_col = head.value.col_stride;
    k.out = reinterpret_cast<In*>(head.out.data);
    k.out_head = head.out.head_stride, k.out_row = head.out.row_stride, k.out_col = head.out.col_stride;
    k.log_gate = head.log_gate.data;
    k.gate_row = head.log_gate.row_stride, k.gate_col = head.log_gate.col_stride, k.gate_cols = head.log_gate.cols;
    k.beta = head.beta.data, k.beta_row = head.beta.row_stride;
    k.bonus = head.bonus.data, k.bonus_col = head.bonus.col_stride;
    k.state = head.state.data, k.state_row = head.state.row_stride, k.state_col = head.state.col_stride;
    k.query_heads = head.query.heads, k.tokens = tokens, k.d_k = p.key.cols, k.d_v = p.value.cols, k.chunk = chunk;
    k.scale = Acc(p.scale()), k.epsilon = Acc(p.options.epsilon);
    k.elu_plus_one = p.options.feature_map == feature_map::elu_plus_one, k.normalise = p.options.normalise;
    k.scratch = scratch + worker * elements;
    kernel.run(k);
  });
}

/// Runs a checked problem chunk by chunk, or token by token where its scalar has no kernel.
template <typename Scalar>
void chunked(const linear_problem<Scalar>& p, workspace& memory) {
  if constexpr (!has_kernels<Scalar>) {
    recurrent(p);
  } else if (p.group() == 0 || p.key.cols == 0) {  // nothing for the kernels to read, or nothing to read it with
    recurrent(p);
  } else {
    chunked_on_kernels(p, memory);
  }
}

}  // namespace detail
HEED_NAMESPACE_END
