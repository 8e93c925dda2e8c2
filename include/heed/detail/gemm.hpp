#pragma once

#include <heed/detail/dispatch.hpp>
#include <heed/detail/gemm_params.hpp>
#include <heed/executor.hpp>
#include <heed/options.hpp>
#include <heed/tensor.hpp>
#include <heed/workspace.hpp>

#include <algorithm>
#include <type_traits>

HEED_NAMESPACE_BEGIN
namespace detail {

/// One weight (depth x cols) that x is multiplied by, and where the product goes (n x cols).
template <typename Scalar>
struct projection {
  matrix_view<const Scalar> weight;
  matrix_view<Scalar> out;
};

template <typename In>
gemm_kernel<In> select_gemm(isa target) {
  return with_kernels(target, [](auto set) { return decltype(set)::template product<In>(); });
}

/// How x is multiplied by its weights: rows of x are cut into blocks and, where these are too few
/// for the threads, columns into ranges. How they are cut changes no result.
struct gemm_plan {
  bool few = false;
  size_type panels = 0, block = 0, splits = 1, tasks = 0;
  size_type worker_bytes = 0, bytes = 0;  // of scratch; of that of all workers
  int workers = 1;
};

template <typename Scalar, std::size_t Count>
gemm_plan plan_projections(const matrix_view<const Scalar>& x,
                           const projection<Scalar> (&projections)[Count],
                           const attention_options& options) {
  gemm_plan plan;
  if (x.cols == 0) return plan;
  const size panel_cols = select_gemm<kernel_scalar<Scalar>>(options.execution.target).panel_cols;
  plan.few = x.rows <= gemm_few_rows;
  for (const projection<Scalar>& p : projections) {
    plan.panels += gemm_panels(p.weight.cols, panel_cols);
    plan.few = plan.few && (p.weight.row_stride == 1 || p.weight.col_stride == 1);
  }
  if (x.rows == 0 || plan.panels == 0) return plan;
  plan.block = (std::min)(x.rows, gemm_rows);
  if (!std::is_same<Scalar, accumulator_t<Scalar>>::value || x.col_stride != 1)
    plan.block = (std::min)(plan.block, gemm_copied_rows(x.cols));
  const size_type row_blocks = (x.rows + plan.block - 1) / plan.block;
  const size_type wanted = workers_of(options.execution) == 1
                               ? 1
                               : 4 * size_type{workers_of(options.execution)};  // tasks
  plan.splits = (std::min)(plan.panels, (wanted + row_blocks - 1) / row_blocks);
  plan.tasks = row_blocks * plan.splits;
  plan.workers = workers_of(options.execution, plan.tasks);
  plan.worker_bytes = size_type{sizeof(accumulator_t<Scalar>)} *
                      gemm_stride(plan.few ? gemm_few_scratch(plan.block, x.cols)
                                           : gemm_scratch(plan.block, x.cols, panel_cols));
  plan.bytes = plan.workers * plan.worker_bytes;
  return plan;
}

/// x times every weight on the kernels.
template <typename Scalar, std::size_t Count>
void project_on_kernels(const matrix_view<const Scalar>& x,
                        const projection<Scalar> (&projections)[Count],
                        const attention_options& options, workspace& memory) {
  using In = kernel_scalar<Scalar>;
  const gemm_kernel<In> kernel = select_gemm<In>(options.execution.target);
  const gemm_plan plan = plan_projections(x, projections, options);
  if (plan.tasks == 0) return;
  gemm_product<In> products[Count];
  for (std::size_t i = 0; i < Count; ++i) {
    const matrix_view<const Scalar>& w = projections[i].weight;
    const matrix_view<Scalar>& out = projections[i].out;
    products[i] = {reinterpret_cast<const In*>(w.data),
                   reinterpret_cast<In*>(out.data),
                   w.cols,
                   w.row_stride,
                   w.col_stride,
                   out.row_stride,
                   out.col_stride};
  }
  unsigned char* const scratch = static_cast<unsigned char*>(memory.reserve(plan.bytes));
  for_each_task(plan.tasks, plan.workers, options.execution.executor,
                [&](size_type task, int worker) {
                  const size_type row = task / plan.splits * plan.block, split = task % plan.splits;
                  gemm_params<In> p;
                  p.x = reinterpret_cast<const In*>(x.data);
                  p.x_row = x.row_stride;
                  p.x_col = x.col_stride;
                  p.row_begin = row;
                  p.row_end = (std::min)(row + plan.block, x.rows);
                  p.depth = x.cols;
                  p.products = products;
                  p.panel_begin = plan.panels * split / plan.splits;
                  p.panel_end = plan.panels * (split + 1) / plan.splits;
                  p.scratch = scratch + worker * plan.worker_bytes;
                  (plan.few ? kernel.few : kernel.many)(p);
                });
}

/// Bytes of the workspace that checked projections take.
template <typename Scalar, std::size_t Count>
size_type bytes_of(const matrix_view<const Scalar>& x,
                   const projection<Scalar> (&projections)[Count],
                   const attention_options& options) {
  if constexpr (has_kernels<Scalar>) {
    return plan_projections(x, projections, options).bytes;
  } else {
    return 0;
  }
}

/// Rows as columns.
template <typename Scalar>
matrix_view<const Scalar> transposed(const matrix_view<Scalar>& m) {
  return {m.data, m.cols, m.rows, m.col_stride, m.row_stride};
}

/// A strided view as Eigen's own.
template <typename Scalar>
auto as_eigen(const matrix_view<Scalar>& m) {
  using plain = Eigen::Matrix<std::remove_const_t<Scalar>, Eigen::Dynamic, Eigen::Dynamic,
                              Eigen::ColMajor>;  // whatever Eigen's default
  using map = Eigen::Map<std::conditional_t<std::is_const<Scalar>::value, const plain, plain>, 0,
                         Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;
  return map(m.data, m.rows, m.cols, {m.col_stride, m.row_stride});
}

/// out = x weight for every weight, all sizes checked.
template <typename Scalar, std::size_t Count>
void project(const matrix_view<const Scalar>& x, const projection<Scalar> (&projections)[Count],
             const attention_options& options, workspace& memory) {
  if constexpr (!has_kernels<Scalar>) {
    for (const projection<Scalar>& p : projections)
      as_eigen(p.out) = as_eigen(x) * as_eigen(p.weight);
  } else if (x.cols == 0) {
    for (const projection<Scalar>& p : projections) as_eigen(p.out).setZero();
  } else {
    project_on_kernels(x, projections, options, memory);
  }
}

}  // namespace detail
HEED_NAMESPACE_END
