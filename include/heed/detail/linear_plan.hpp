#pragma once

#include <heed/detail/cpu.hpp>
#include <heed/detail/run_linear.hpp>
#include <heed/workspace.hpp>

#include <algorithm>
#include <new>
#include <type_traits>

HEED_NAMESPACE_BEGIN
namespace detail {

template <typename In, typename Acc>
linear_kernel<In, Acc> select_linear(isa target) {
  return with_kernels(target,
                      [](auto set) { return decltype(set)::template recurrence<In, Acc>(); });
}

/// The most tokens that a caller gets in one chunk.
constexpr size_type linear_chunk_most = 48;

/// Heads that are side by side take turns, chunk by chunk: their rows share pages, and the next
/// head's are prefetched meanwhile. So many at most, whose states stay in the second-level cache.
constexpr size_type linear_heads_limit = 16;

/// How a problem runs on the kernels of linear attention. It follows from shapes and strides alone.
template <typename Acc>
struct linear_plan {
  linear_plan(size_type tokens_of_chunk, size_type d_k, size_type state_cols, size_type tile_rows)
      : chunk(tokens_of_chunk), layout(tokens_of_chunk, d_k, state_cols, tile_rows) {}

  size_type chunk;
  linear_layout<Acc> layout;
  size_type heads = 1, bundles = 0;  // key/value heads of a task; how many such make all heads
  size_type head_bytes = 0, worker_bytes = 0;  // for what the kernel has to know of its heads; for
                                               // that, their states and scratch
  int workers = 1;
};

template <typename Scalar>
linear_plan<accumulator_t<Scalar>> plan_linear(
    const linear_problem<Scalar>& p,
    const linear_kernel<kernel_scalar<Scalar>, accumulator_t<Scalar>>& kernel) {
  using Acc = accumulator_t<Scalar>;
  using head_type = linear_params<kernel_scalar<Scalar>, Acc>;
  const size_type wanted =
      p.options.chunk > 0 ? (std::min)(p.options.chunk, linear_chunk_most) : kernel.chunk();
  linear_plan<Acc> plan((std::max)((std::min)(wanted, p.key.rows), size_type{1}), p.key.cols,
                        p.state_cols(), kernel.tile_rows);
  if (p.heads_interleave()) {
    const size_type bytes =
        (std::max)(plan.layout.state_elements * size_type{sizeof(Acc)}, size_type{1});
    const size_type most =
        (std::max)((std::min)(level2_cache() / 4 / bytes, linear_heads_limit), size_type{1});
    plan.heads = (std::min)(
        most, (p.heads() + workers_of(p.options.execution) - 1) / workers_of(p.options.execution));
  }
  plan.bundles = (p.heads() + plan.heads - 1) / plan.heads;
  plan.workers = workers_of(p.options.execution, p.sequences.count() * plan.bundles);
  plan.head_bytes = padded_bytes(plan.heads * size_type{sizeof(head_type)});
  plan.worker_bytes =
      plan.head_bytes + plan.layout.bytes() +
      padded_bytes(plan.heads * plan.layout.state_elements * size_type{sizeof(Acc)});
  return plan;
}

/// One head as the kernel knows it.
template <typename Scalar>
auto kernel_head(const linear_problem<Scalar>& p, const linear_head<Scalar>& head) {
  using In = kernel_scalar<Scalar>;
  using Acc = accumulator_t<Scalar>;
  linear_params<In, Acc> k;
  k.query = reinterpret_cast<const In*>(head.query.data);
  k.query_head = head.query.head_stride, k.query_row = head.query.row_stride,
  k.query_col = head.query.col_stride;
  k.key = reinterpret_cast<const In*>(head.key.data);
  k.key_row = head.key.row_stride, k.key_col = head.key.col_stride;
  k.value = reinterpret_cast<const In*>(head.value.data);
  k.value_row = head.value.row_stride, k.value_col = head.value.col_stride;
  k.out = reinterpret_cast<In*>(head.out.data);
  k.out_head = head.out.head_stride, k.out_row = head.out.row_stride,
  k.out_col = head.out.col_stride;
  k.log_gate = head.log_gate.data;
  k.gate_row = head.log_gate.row_stride, k.gate_col = head.log_gate.col_stride,
  k.gate_cols = head.log_gate.cols;
  k.beta = head.beta.data, k.beta_row = head.beta.row_stride;
  k.bonus = head.bonus.data, k.bonus_col = head.bonus.col_stride;
  k.state = head.state.data, k.state_row = head.state.row_stride,
  k.state_col = head.state.col_stride;
  k.query_heads = head.query.heads, k.tokens = head.key.rows, k.d_k = p.key.cols,
  k.d_v = p.value.cols;
  k.scale = Acc(p.scale()), k.epsilon = Acc(p.options.epsilon);
  k.elu_plus_one = p.options.feature_map == feature_map::elu_plus_one,
  k.normalise = p.options.normalise;
  return k;
}

/// Runs `count` heads of one sequence. Each is cut into the same chunks whether or not others take
/// turns with it.
template <typename In, typename Acc>
void run_in_turns(const linear_kernel<In, Acc>& kernel, linear_params<In, Acc>* heads,
                  size_type count) {
  for (size_type h = 0; h < count; ++h) {
    const bool last = h + 1 == count;
    const linear_params<In, Acc>& next = heads[last ? 0 : h + 1];
    heads[h].ahead = {next.query, next.key, next.value, next.log_gate, next.out, count > 1, last};
  }
  const size_type tokens = heads[0].tokens, turn = count == 1 ? tokens : heads[0].chunk;
  for (size_type begin = 0; begin < tokens; begin += turn)
    for (size_type h = 0; h < count; ++h) {
      heads[h].end = (std::min)(begin + turn, tokens);
      heads[h].begin = kernel.run(heads[h]);
    }
}

inline namespace link_heed_kernels_built_with_the_same_flags {
template <typename Scalar>
void run_on_kernels(const linear_problem<Scalar>& p, workspace& memory) {
  using In = kernel_scalar<Scalar>;
  using Acc = accumulator_t<Scalar>;
  const linear_kernel<In, Acc> kernel = select_linear<In, Acc>(p.options.execution.target);
  const linear_plan<Acc> plan = plan_linear(p, kernel);
  char* const base = static_cast<char*>(memory.reserve(plan.workers * plan.worker_bytes));

  for_each_task(p.sequences.count() * plan.bundles, plan.workers, p.options.execution.executor,
                [&](size_type task, int worker) {
                  char* const own = base + worker * plan.worker_bytes;
                  auto* const heads = reinterpret_cast<linear_params<In, Acc>*>(own);
                  Acc* const states = reinterpret_cast<Acc*>(own + plan.head_bytes);
                  const size_type b = task / plan.bundles, first = task % plan.bundles * plan.heads,
                                  count = (std::min)(plan.heads, p.heads() - first);
                  p.for_each_part(b, first, count, [&](const linear_part& part) {
                    for (size_type h = 0; h < count; ++h) {
                      new (heads + h)
                          linear_params<In, Acc>(kernel_head(p, p.head(b, first + h, part)));
                      heads[h].chunk = plan.chunk;
                      heads[h].own_state = states + h * plan.layout.state_elements;
                      heads[h].scratch = states + plan.heads * plan.layout.state_elements;
                    }
                    run_in_turns(kernel, heads, count);
                  });
                });
}

template <typename Scalar>
size_type bytes_on_kernels(const linear_problem<Scalar>& p) {
  const auto plan = plan_linear(
      p, select_linear<kernel_scalar<Scalar>, accumulator_t<Scalar>>(p.options.execution.target));
  return plan.workers * plan.worker_bytes;
}
}  // namespace link_heed_kernels_built_with_the_same_flags

}  // namespace detail
HEED_NAMESPACE_END
