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

/// The kernels of one instruction set; panel_cols is the width of the register tile.
template <typename In>
struct gemm_kernel {
  void (*many)(const gemm_params<In>&) noexcept;
  void (*few)(const gemm_params<In>&) noexcept;
  size panel_cols;
};

template <typename In>
gemm_kernel<In> select_gemm(isa target) {
  constexpr bool wide = std::is_same<In, double>::value;
  switch (resolve(target)) {
#if HEED_X86
    case isa::avx512:
    case isa::avx512_bf16: {
      using V = std::conditional_t<wide, avx512::f64, avx512::f32>;
      return {avx512::gemm<V, In>, avx512::gemm_few<V, In>, V::lanes * V::tile_vectors};
    }
    case isa::avx2: {
      using V = std::conditional_t<wide, avx2::f64, avx2::f32>;
      return {avx2::gemm<V, In>, avx2::gemm_few<V, In>, V::lanes * V::tile_vectors};
    }
#endif
    default: {
      using V = std::conditional_t<wide, baseline::f64, baseline::f32>;
      return {baseline::gemm<V, In>, baseline::gemm_few<V, In>, V::lanes * V::tile_vectors};
    }
  }
}

/// x times every weight on the kernels: rows of x are cut into blocks and, where these are too few for the threads, columns into
/// ranges. How they are cut changes no result.
template <typename Scalar, std::size_t Count>
void project_on_kernels(const matrix_view<const Scalar>& x, const projection<Scalar> (&projections)[Count],
                        const attention_options& options, workspace& memory) {
  using In = kernel_scalar<Scalar>;
  const gemm_kernel<In> kernel = select_gemm<In>(options.target);
  gemm_product<In> products[Count];
  index panels = 0;
  bool few = x.rows <= gemm_few_rows;
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
    panels += gemm_panels(w.cols, kernel.panel_cols);
    few = few && (w.row_stride == 1 || w.col_stride == 1);
  }
  if (x.rows == 0 || panels == 0) return;

  const index block = (std::min)(x.rows, gemm_rows), row_blocks = (x.rows + block - 1) / block;
  const index wanted = workers_of(options) == 1 ? 1 : 4 * index{workers_of(options)};  // tasks
  const index splits = (std::min)(panels, (wanted + row_blocks - 1) / row_blocks);
  const index tasks = row_blocks * splits;
  const int workers = workers_of(options, tasks);
  const index bytes = index{sizeof(accumulator_t<Scalar>)} *
                      gemm_stride(few ? gemm_few_scratch(block, x.cols) : gemm_scratch(block, x.cols, kernel.panel_cols));
  unsigned char* const scratch = static_cast<unsigned char*>(memory.reserve(workers * bytes));
  for_each_task(tasks, workers, options.executor, [&](index task, int worker) {
    const index row = task / splits * block, split = task % splits;
    gemm_params<In> p;
    p.x = reinterpret_cast<const In*>(x.data);
    p.x_row = x.row_stride;
    p.x_col = x.col_stride;
    p.row_begin = row;
    p.row_end = (std::min)(row + block, x.rows);
    p.depth = x.cols;
    p.products = products;
    p.panel_begin = panels * split / splits;
    p.panel_end = panels * (split + 1) / splits;
    p.scratch = scratch + worker * bytes;
    (few ? kernel.few : kernel.many)(p);
  });
}

/// A strided view as Eigen's own.
template <typename Scalar>
auto as_eigen(const matrix_view<Scalar>& m) {
  using plain = Eigen::Matrix<std::remove_const_t<Scalar>, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;  // whatever Eigen's default
  using map = Eigen::Map<std::conditional_t<std::is_const<Scalar>::value, const plain, plain>, 0,
                         Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;
  return map(m.data, m.rows, m.cols, {m.col_stride, m.row_stride});
}

/// out = x weight for every weight, all sizes checked.
template <typename Scalar, std::size_t Count>
void project(const matrix_view<const Scalar>& x, const projection<Scalar> (&projections)[Count], const attention_options& options,
             workspace& memory) {
  if constexpr (!has_kernels<Scalar>) {
    for (const projection<Scalar>& p : projections) as_eigen(p.out) = as_eigen(x) * as_eigen(p.weight);
  } else if (x.cols == 0) {
    for (const projection<Scalar>& p : projections) as_eigen(p.out).setZero();
  } else {
    project_on_kernels(x, projections, options, memory);
  }
}

}  // namespace detail
HEED_NAMESPACE_END
