#pragma once

#include <heed/detail/cpu.hpp>
#include <heed/detail/decode_plan.hpp>
#include <heed/detail/dispatch.hpp>
#include <heed/detail/run_forward.hpp>
#include <heed/executor.hpp>
#include <heed/workspace.hpp>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <numeric>

HEED_NAMESPACE_BEGIN
namespace detail {

template <typename Scalar, typename Stored>
auto kernel_head(const head_problem<Scalar, Stored>& head) {
  using In = kernel_scalar<Scalar>;
  return forward_head<In, kernel_scalar<Stored>, accumulator_t<Scalar>>{
      reinterpret_cast<const In*>(head.query.data),
      reinterpret_cast<In*>(head.out.data),
      head.lse.data,
      head.largest,
      kernel_rows(head.key),
      kernel_rows(head.value),
      head.score,
      0};
}

/// Whether a kernel can read rows in place.
template <typename Acc, typename Stored>
bool reads_in_place(const stored_tensor<Stored>& rows) {
  return std::is_same<Acc, Stored>::value && rows.elements.col_stride == 1 && !rows.paged;
}

/// Whether the rows of a head are so far apart, as where heads are side by side, that a copy of a
/// block of them pays. Each is then on a page of its own, and distances of a power of two fall into
/// few sets of the nearest cache, over which each register tile of the second product sweeps.
/// Measured: from twice the length of a row on, for more keys than a block, and where they span
/// more than half a MiB.
template <typename Stored>
bool far_apart(const stored_tensor<Stored>& rows) {
  const size_type distance = (std::abs)(rows.elements.row_stride), span = size_type{512} << 10;
  return rows.rows > forward_block && distance >= 2 * rows.cols &&
         distance >= span / rows.rows / size_type{sizeof(Stored)};
}

/// How a problem runs on the forward kernel. It follows from shapes and strides alone.
struct forward_plan {
  size_type task_rows = 0, tasks_per_head = 1;  // query rows of a task
  size_type heads = 1,
            bundles = 0;  // query heads of a task, of one sequence; how many such make all heads
  size_type tasks = 0;
  size_type query_blocks = 1, kv_heads = 1;  // see forward_params
  bool gather_key = false, gather_value = false;
  size_type head_bytes = 0,
            worker_bytes =
                0;      // for what a kernel has to know of its heads; for that and its scratch
  size_type bytes = 0;  // of all workers
  int workers = 1;
};

/// For the sequences b that are `chosen`, and a kernel that takes `width` queries at a time.
template <typename Scalar, typename Stored, typename Chosen>
forward_plan plan_forward(const problem<Scalar, Stored>& p, size_type width, const Chosen& chosen) {
  using Acc = accumulator_t<Scalar>;
  using head_type = forward_head<kernel_scalar<Scalar>, kernel_scalar<Stored>, Acc>;
  forward_plan plan;
  size_type longest = 0;
  for (size_type b = 0; b < p.batch(); ++b)
    if (chosen(b)) longest = (std::max)(longest, p.n_q(b));
  if (longest == 0 || p.num_heads() == 0) return plan;
  const size_type d_k = p.query.cols, d_v = p.value.cols, element = size_type{sizeof(Acc)};
  const size_type blocks = (longest + width - 1) / width, level2 = level2_cache();
  const auto& terms = p.terms;
  const size_type relative_keys = terms.relative_keys ? terms.relative_keys->view.rows : 0,
                  relative_values = terms.relative_values ? terms.relative_values->view.rows : 0;

  plan.gather_value = far_apart(p.value);
  plan.gather_key =
      far_apart(p.key) && blocks >= 4;  // a tile of the first product takes each row once
  const bool gathers = plan.gather_key || plan.gather_value;
  const bool copies = gathers || !reads_in_place<Acc>(p.key) || !reads_in_place<Acc>(p.value);

  // Keys and values that stay in the second-level cache are as near for the next block of queries
  // as the queries would be; others, and those that must be copied, are shared by as many blocks of
  // queries as keep some of it free.
  size_type most = 1;
  if (copies || p.key.rows * (d_k + d_v) * element > level2 / 2) {
    const size_type each = (width * (padded_row(d_k) + padded_row(d_v)) +
                            size_of_places(width, relative_keys) +
                            size_of_places(width, relative_values)) *
                           element,
                    room = size_type{320} << 10;
    if (each > 0) most = (gathers ? (std::max)(room, level2 / 16 * 9) : room) / each;
    most = (std::max)(size_type{1}, (std::min)(most, gathers ? forward_blocks_limit : 8));
    const size_type passes = (blocks + most - 1) / most;
    plan.query_blocks = (blocks + passes - 1) / passes;
  }

  // Rows of a task: all of a head where one thread runs or the heads are many; else a few blocks,
  // the heaviest (with causal, the last) first, but as many as share a copy.
  const size_type most_workers = workers_of(p.options.execution), heads = p.batch() * p.num_heads();
  plan.task_rows = longest;
  if (most_workers > 1) {
    // A block of queries keeps within a block of the mask; the cuts of tasks add none, where the
    // mask's are of one size.
    const block_cuts cuts =
        p.terms.sparse() ? p.terms.sparse()->params(0, 0).queries : block_cuts();
    const size_type unit = cuts.block_of ? width : std::lcm(width, size_type{cuts.each});
    const size_type units = (longest + unit - 1) / unit;
    const auto units_of = [&](size_type tasks) {
      return (std::max)(size_type{1}, units * heads / tasks);
    };  // a task, if there are so many
    size_type task_units = units_of(8 * most_workers);
    if (copies)
      task_units = (std::max)(
          task_units, (std::min)(plan.query_blocks * width / unit, units_of(4 * most_workers)));
    plan.task_rows = (std::min)(task_units, units) * unit;
    plan.tasks_per_head = (longest + plan.task_rows - 1) / plan.task_rows;
  }

  // Heads go together, so that the next one's rows can be prefetched in time. Where their queries
  // are few, a copy serves all query heads of a group, and rows that are side by side, on the same
  // pages, are prefetched together.
  if (copies && plan.tasks_per_head == 1 && !p.terms.sparse()) {
    const size_type share = most_workers > 1 ? heads / (4 * most_workers) : forward_heads_limit;
    plan.heads = (std::max)(size_type{1}, (std::min)({share, forward_heads_limit, p.num_heads()}));
    const size_type shared = blocks * p.group();
    if (gathers && p.heads_adjoin())
      plan.kv_heads = (std::max)(size_type{1}, (std::min)(plan.heads / p.group(), most / shared));
    if (shared <= most) plan.query_blocks = shared * plan.kv_heads;
  }
  plan.bundles = plan.heads == 1 ? p.num_heads() : (p.num_heads() + plan.heads - 1) / plan.heads;
  plan.tasks = plan.tasks_per_head * p.batch() * plan.bundles;
  plan.workers = workers_of(p.options.execution, plan.tasks);
  plan.head_bytes = padded_bytes(plan.heads * size_type{sizeof(head_type)});
  plan.worker_bytes =
      plan.head_bytes + forward_layout<Acc>(width, plan.query_blocks, d_k, d_v, p.key.rows, copies,
                                            relative_keys, relative_values)
                            .bytes();
  if (plan.tasks > 0) plan.bytes = plan.worker_bytes * plan.workers;
  return plan;
}

/// How a call runs, and all that it takes of its workspace.
struct call_plan {
  decode_plan decode;
  forward_plan blocks;
  size_type largest = 0;  // where the largest score of each query is; not wanted: nowhere
  size_type bytes = 0;
};

template <typename Scalar, typename Stored>
call_plan plan_call(const problem<Scalar, Stored>& p) {
  using Acc = accumulator_t<Scalar>;
  const size_type width =
      select_forward<kernel_scalar<Scalar>, kernel_scalar<Stored>, Acc>(p.options.execution.target)
          .block_rows;
  call_plan plan;
  plan.decode = plan_decode_now(p, [&](size_type b) { return is_decode(p, b); });
  plan.blocks = plan_forward(p, width, [&](size_type b) { return !is_decode(p, b); });
  plan.bytes = (std::max)(plan.decode.bytes, plan.blocks.bytes);
  if (p.grows() && p.batch() > 0) {
    plan.bytes = (std::max)(plan.bytes, plan_longest_decode(p).bytes);
    if (!is_decode(p, 0, 0)) {  // short sequences, which all have as many queries, are not decoded
      problem<Scalar, Stored> longest = p;
      longest.key.rows = longest.value.rows = p.key.capacity;
      plan.bytes = (std::max)(plan.bytes,
                              plan_forward(longest, width, [](size_type) { return true; }).bytes);
    }
  }
  plan.largest = padded_bytes(plan.bytes);
  if (p.terms.max_logits)
    plan.bytes =
        plan.largest + p.query.batch * p.query.heads * p.query.rows * size_type{sizeof(Acc)};
  return plan;
}

/// Runs a problem on the forward kernel as planned: a task is some blocks of queries of one head,
/// or of some. Blocks are cut at the same rows whatever the number of threads, and each is computed
/// alone, so the result is the same to the bit.
template <typename Scalar, typename Stored>
void forward_blocks(const problem<Scalar, Stored>& p, const forward_plan& plan, void* memory) {
  using In = kernel_scalar<Scalar>;
  using Acc = accumulator_t<Scalar>;
  using head_type = forward_head<In, kernel_scalar<Stored>, Acc>;
  if (plan.tasks == 0) return;
  const auto kernel = select_forward<In, kernel_scalar<Stored>, Acc>(p.options.execution.target);
  char* const base = static_cast<char*>(memory);

  for_each_task(
      plan.tasks, plan.workers, p.options.execution.executor, [&](size_type task, int worker) {
        const size_type bundle = task % (p.batch() * plan.bundles),
                        piece = plan.tasks_per_head - 1 - task / (p.batch() * plan.bundles);
        const size_type b = bundle / plan.bundles, first = bundle % plan.bundles * plan.heads;
        if (is_decode(p, b)) return;
        char* const own = base + plan.worker_bytes * worker;
        auto* const heads = reinterpret_cast<head_type*>(own);
        forward_params<In, kernel_scalar<Stored>, Acc> params;
        params.num_heads = (std::min)(plan.heads, p.num_heads() - first);
        for (size_type h = 0; h < params.num_heads; ++h) {
          new (heads + h) head_type(kernel_head(p.head(b, first + h)));
          heads[h].key.gather = plan.gather_key;
          heads[h].value.gather = plan.gather_value;
          heads[h].kv_head = (first + h) / p.group();
        }
        params.heads = heads;
        params.query_row = p.query.row_stride;
        params.query_col = p.query.col_stride;
        params.out_row = p.out.row_stride;
        params.out_col = p.out.col_stride;
        params.lse_row = p.lse.row_stride;
        params.row_begin = piece * plan.task_rows;
        params.row_end = (std::min)(params.row_begin + plan.task_rows, p.n_q(b));
        params.n_kv = p.n_kv(b);
        params.d_k = p.query.cols;
        params.d_v = p.value.cols;
        params.query_blocks = plan.query_blocks;
        params.kv_heads = plan.kv_heads;
        params.scratch = own + plan.head_bytes;
        kernel.run(params);
      });
}

inline namespace link_heed_kernels_built_with_the_same_flags {
template <typename Scalar, typename Stored>
void run_on_kernels(problem<Scalar, Stored> p, workspace& memory) {
  const call_plan plan = plan_call(p);
  void* const scratch = memory.reserve(plan.bytes);
  p.gathers = p.terms.gathers_keys();
  if (p.terms.max_logits) p.largest = scratch_at<accumulator_t<Scalar>>(scratch, plan.largest);
  decode(p, plan.decode, scratch, [&p](size_type b) { return is_decode(p, b); });
  forward_blocks(p, plan.blocks, scratch);
  p.write_other_rows();
  p.write_max_logits();
  p.rethrow();
}

template <typename Scalar, typename Stored>
size_type bytes_on_kernels(const problem<Scalar, Stored>& p) {
  return plan_call(p).bytes;
}
}  // namespace link_heed_kernels_built_with_the_same_flags

}  // namespace detail
HEED_NAMESPACE_END
