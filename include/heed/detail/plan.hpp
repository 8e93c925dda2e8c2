#pragma once

#include <heed/detail/cpu.hpp>
#include <heed/detail/decode_plan.hpp>
#include <heed/detail/dispatch.hpp>
#include <heed/detail/problem.hpp>
#include <heed/executor.hpp>
#include <heed/streaming.hpp>
#include <heed/workspace.hpp>

#include <algorithm>
#include <numeric>

HEED_NAMESPACE_BEGIN
namespace detail {

template <typename Scalar, typename Stored>
auto params_of(const head_problem<Scalar, Stored>& head) {
  using In = kernel_scalar<Scalar>;
  forward_params<In, kernel_scalar<Stored>, accumulator_t<Scalar>> params;
  params.query = reinterpret_cast<const In*>(head.query.data);
  params.query_row = head.query.row_stride;
  params.query_col = head.query.col_stride;
  params.key = source_of(head.key);
  params.value = source_of(head.value);
  params.out = reinterpret_cast<In*>(head.out.data);
  params.out_row = head.out.row_stride;
  params.out_col = head.out.col_stride;
  params.lse = head.lse.data;
  params.lse_row = head.lse.row_stride;
  params.n_kv = head.key.rows;
  params.d_k = head.query.cols;
  params.d_v = head.value.cols;
  params.score = head.score;
  return params;
}

/// Whether a kernel reads rows where they lie.
template <typename Acc, typename Stored>
bool reads_in_place(const stored_tensor<Stored>& rows) {
  return std::is_same<Acc, Stored>::value && rows.elements.col_stride == 1 && !rows.table;
}

/// Runs a problem on the forward kernel: a task is some blocks of queries of one head. Blocks are cut at the same rows whatever the
/// number of threads, and each is computed alone, so the result is the same to the bit.
template <typename Scalar, typename Stored>
void forward_blocks(const problem<Scalar, Stored>& p, workspace& memory) {
  using Acc = accumulator_t<Scalar>;
  const auto kernel = select_forward<kernel_scalar<Scalar>, kernel_scalar<Stored>, Acc>(p.options.target);
  index longest = 0;
  for (index b = 0; b < p.batch(); ++b) longest = (std::max)(longest, p.n_q(b));

  // Rows of a task: all of a head for one thread; else a few blocks, the heaviest (with causal, the last) first.
  const int most_workers = workers_of(p.options);
  index unit = kernel.block_rows;
  if (p.terms.sparse()) unit = std::lcm(unit, p.terms.sparse()->params(0, 0).block_q);
  const index units = (longest + unit - 1) / unit;
  const index task_units = most_workers == 1 ? (std::max)(units, index(1)) : (std::max)(index(1), units / (8 * index(most_workers)));
  const index task_rows = task_units * unit, tasks_per_head = (longest + task_rows - 1) / task_rows;

  const bool copies = !reads_in_place<Acc>(p.key) || !reads_in_place<Acc>(p.value);
  const index group =
      (std::min)(forward_group(kernel.block_rows, sizeof(Acc), p.query.cols, p.value.cols, p.key.rows, copies, level2_cache()),
                 (longest + kernel.block_rows - 1) / kernel.block_rows);
  const index scratch =
      forward_scratch(kernel.block_rows, (std::max)(group, index(1)), p.query.cols, p.value.cols, p.key.rows, copies) *
      index(sizeof(Acc));
  const index padded = (scratch + 63) / 64 * 64;
  const index heads = p.batch() * p.num_heads();
  const int workers = workers_of(p.options, heads * tasks_per_head);
  char* const base = static_cast<char*>(memory.reserve(padded * workers));

  for_each_task(heads * tasks_per_head, workers, p.options.executor, [&](index task, int worker) {
    const index head = task % heads, piece = tasks_per_head - 1 - task / heads;
    auto params = params_of(p.head(head / p.num_heads(), head % p.num_heads()));
    params.row_begin = piece * task_rows;
    params.row_end = (std::min)(params.row_begin + task_rows, p.n_q(head / p.num_heads()));
    params.group = (std::max)(group, index(1));
    params.scratch = base + padded * worker;
    kernel.run(params);
  });
}

/// Runs a checked problem on the best path that its types have.
template <typename Scalar, typename Stored>
void forward(const problem<Scalar, Stored>& p, workspace& memory) {
  if constexpr (has_kernels<Scalar, Stored>) {
    is_decode(p) ? decode(p, memory) : forward_blocks(p, memory);
    p.rethrow();
  } else {
    streaming(p);
  }
}

}  // namespace detail
HEED_NAMESPACE_END
