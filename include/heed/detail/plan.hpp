#pragma once

#include <heed/detail/cpu.hpp>
#include <heed/detail/decode_plan.hpp>
#include <heed/detail/dispatch.hpp>
#include <heed/detail/problem.hpp>
#include <heed/executor.hpp>
#include <heed/streaming.hpp>
#include <heed/workspace.hpp>

#include <algorithm>
#include <cstdlib>
#include <numeric>

HEED_NAMESPACE_BEGIN
namespace detail {

template <typename Scalar, typename Stored>
auto kernel_head(const head_problem<Scalar, Stored>& head) {
  using In = kernel_scalar<Scalar>;
  forward_head<In, kernel_scalar<Stored>, accumulator_t<Scalar>> one;
  one.query = reinterpret_cast<const In*>(head.query.data);
  one.key = source_of(head.key);
  one.value = source_of(head.value);
  one.out = reinterpret_cast<In*>(head.out.data);
  one.lse = head.lse.data;
  one.score = head.score;
  return one;
}

/// Whether a kernel can read rows where they lie.
template <typename Acc, typename Stored>
bool reads_in_place(const stored_tensor<Stored>& rows) {
  return std::is_same<Acc, Stored>::value && rows.elements.col_stride == 1 && !rows.table;
}

/// Whether the rows of a head lie far apart, as where heads lie side by side. Each is then on pages of its own, and rows whose
/// distance is a power of two fall into few sets of the nearest cache. A register tile of the second product sweeps over all rows of a
/// block, so from a distance of twice a row on it pays to copy a block once for the queries that go through it together.
template <typename Stored>
bool lie_apart(const stored_tensor<Stored>& rows) {
  return std::abs(rows.elements.row_stride) >= 2 * rows.cols;
}

/// How a problem runs on the forward kernel. It follows from shapes and strides alone.
struct forward_plan {
  index task_rows = 0, tasks_per_head = 0;  // query rows of a task
  index heads = 1;                          // query heads of a task, of one sequence
  index tasks = 0;
  index group = 1, kv_heads = 1;  // see forward_params
  bool gather_key = false, gather_value = false;
  index worker_bytes = 0;
  int workers = 1;
};

template <typename Scalar, typename Stored>
forward_plan plan_forward(const problem<Scalar, Stored>& p) {
  using Acc = accumulator_t<Scalar>;
  const auto kernel = select_forward<kernel_scalar<Scalar>, kernel_scalar<Stored>, Acc>(p.options.target);
  index longest = 0;
  for (index b = 0; b < p.batch(); ++b)
    if (!is_decode(p, b)) longest = (std::max)(longest, p.n_q(b));
  const index d_k = p.query.cols, d_v = p.value.cols, width = kernel.block_rows, element = index(sizeof(Acc));
  const index blocks = (longest + width - 1) / width, level2 = level2_cache();

  forward_plan plan;
  plan.gather_value = lie_apart(p.value);
  plan.gather_key = lie_apart(p.key) && blocks >= 4;  // a tile of the first product takes each row once
  const bool gathers = plan.gather_key || plan.gather_value;
  const bool copies = gathers || !reads_in_place<Acc>(p.key) || !reads_in_place<Acc>(p.value);

  // Keys and values that stay in the second-level cache are as near for the next block of queries as the queries would be; others, and
  // those that must be copied, are shared by as many blocks of queries as keep some of it free.
  const index each = width * (padded_row(d_k) + padded_row(d_v)) * element;
  const index room = gathers ? (std::max)(index(320) << 10, level2 / 16 * 9) : index(320) << 10;
  const index most = (std::max)(index(1), (std::min)(each > 0 ? room / each : 1, gathers ? forward_group_limit : 8));
  const index passes = (std::max)(index(1), (blocks + most - 1) / most);
  if (copies || p.key.rows * (d_k + d_v) * element > level2 / 2) plan.group = (std::max)(index(1), (blocks + passes - 1) / passes);

  // Rows of a task: all of a head where one thread runs or the heads are many; else a few blocks, the heaviest (with causal, the last)
  // first, but as many as share a copy.
  const int most_workers = workers_of(p.options);
  const index heads = p.batch() * p.num_heads();
  index unit = width;
  if (p.terms.sparse()) unit = std::lcm(unit, p.terms.sparse()->params(0, 0).block_q);
  const index units = (std::max)(index(1), (longest + unit - 1) / unit);
  const auto units_of = [&](index tasks) { return (std::max)(index(1), units * heads / tasks); };  // of a task, if there are so many
  index task_units = most_workers == 1 ? units : (std::min)(units, units_of(8 * index(most_workers)));
  if (copies && most_workers > 1)
    task_units = (std::max)(task_units, (std::min)({units, plan.group * width / unit, units_of(4 * index(most_workers))}));
  plan.task_rows = task_units * unit;
  plan.tasks_per_head = (longest + plan.task_rows - 1) / plan.task_rows;

  // Heads go together, so that the next one's rows can be asked for in time. Where their queries are few, a copy serves all query
  // heads of a group, and rows that lie side by side, on the same pages, are copied together.
  if (copies && plan.tasks_per_head == 1 && !p.terms.sparse()) {
    index together = forward_heads_limit;
    if (most_workers > 1) together = (std::min)(together, heads / (4 * index(most_workers)));
    plan.heads = (std::max)(index(1), (std::min)(together, p.num_heads()));
    const index shared = blocks * p.group();
    if (gathers && p.key.elements.head_stride == d_k && p.value.elements.head_stride == d_v)
      plan.kv_heads = (std::max)(index(1), (std::min)(plan.heads / p.group(), most / shared));
    if (shared <= most) plan.group = shared * plan.kv_heads;
  }
  plan.tasks = plan.tasks_per_head * p.batch() * ((p.num_heads() + plan.heads - 1) / plan.heads);
  plan.workers = workers_of(p.options, plan.tasks);
  plan.worker_bytes = (forward_scratch(width, plan.group, d_k, d_v, p.key.rows, copies) * element + 63) / 64 * 64;
  return plan;
}

/// Runs a problem on the forward kernel: a task is some blocks of queries of one head, or of some. Blocks are cut at the same rows
/// whatever the number of threads, and each is computed alone, so the result is the same to the bit.
template <typename Scalar, typename Stored>
void forward_blocks(const problem<Scalar, Stored>& p, workspace& memory) {
  using In = kernel_scalar<Scalar>;
  using Acc = accumulator_t<Scalar>;
  const auto kernel = select_forward<In, kernel_scalar<Stored>, Acc>(p.options.target);
  const forward_plan plan = plan_forward(p);
  if (plan.tasks == 0) return;
  char* const base = static_cast<char*>(memory.reserve(plan.worker_bytes * plan.workers));
  const index bundles = (p.num_heads() + plan.heads - 1) / plan.heads;

  for_each_task(plan.tasks, plan.workers, p.options.executor, [&](index task, int worker) {
    const index bundle = task % (p.batch() * bundles), piece = plan.tasks_per_head - 1 - task / (p.batch() * bundles);
    const index b = bundle / bundles, first = bundle % bundles * plan.heads;
    if (is_decode(p, b)) return;
    forward_head<In, kernel_scalar<Stored>, Acc> heads[forward_heads_limit];
    forward_params<In, kernel_scalar<Stored>, Acc> params;
    params.num_heads = (std::min)(plan.heads, p.num_heads() - first);
    for (index h = 0; h < params.num_heads; ++h) {
      heads[h] = kernel_head(p.head(b, first + h));
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
    params.group = plan.group;
    params.kv_heads = plan.kv_heads;
    params.scratch = base + plan.worker_bytes * worker;
    kernel.run(params);
  });
}

/// Runs a checked problem: each sequence on the path that is best for its queries and keys, whatever its neighbours are.
template <typename Scalar, typename Stored>
void forward(const problem<Scalar, Stored>& p, workspace& memory) {
  if constexpr (has_kernels<Scalar, Stored>) {
    decode(p, memory, [&p](index b) { return is_decode(p, b); });
    forward_blocks(p, memory);
  } else {
    streaming(p);
  }
}

}  // namespace detail
HEED_NAMESPACE_END
