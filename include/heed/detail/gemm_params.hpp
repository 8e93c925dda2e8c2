#pragma once

#include <heed/detail/params.hpp>

HEED_NAMESPACE_BEGIN
namespace detail {

/// One product out = x weight: weight depth x cols, out n x cols. Strides count elements.
template <typename In>
struct gemm_product {
  const In* weight = nullptr;
  In* out = nullptr;
  size cols = 0;
  size weight_row = 0, weight_col = 1;
  size out_row = 0, out_col = 1;
};

/// Rows [row_begin, row_end) of x (n x depth) times several weights. The columns of each product
/// are cut into panels, which are numbered through: a call computes the panels [panel_begin,
/// panel_end).
template <typename In>
struct gemm_params {
  const In* x = nullptr;
  size x_row = 0, x_col = 1;
  size row_begin = 0, row_end = 0, depth = 0;
  const gemm_product<In>* products = nullptr;
  size panel_begin = 0, panel_end = 0;
  void* scratch = nullptr;  // 64-byte aligned, gemm_scratch elements of the accumulator type
};

/// Terms of each sum that are added before the sums go back to memory: so much of x and of a panel
/// stays in the first two cache levels (256 was 0 to 2 % slower on a Xeon with 48 KiB and 2 MiB).
constexpr size gemm_depth = 512;

/// Rows of x that a call of the kernel has at a time: enough for the packing of a weight to be
/// small compared with the multiplications.
constexpr size gemm_rows = 256;

/// The most where rows of x are copied first, as those of a transposed x are: rows of a number for
/// each token may be long. The copy is 4 MiB of floats at most, or 32 rows.
constexpr size gemm_copied_rows(size depth) {
  const size rows = (size{1} << 20) / depth / 32 * 32;
  return rows < 32 ? 32 : rows;
}

/// Up to so many rows reading the weights is the work, and gemm_few is the faster kernel.
constexpr size gemm_few_rows = 4;

/// How many panels a product of `cols` columns has.
constexpr size gemm_panels(size cols, size panel_cols) {
  return (cols + panel_cols - 1) / panel_cols;
}

/// Every row in scratch starts on a cache line.
constexpr size gemm_stride(size cols) { return (cols + 15) / 16 * 16; }

/// Elements of scratch for `rows` rows of x: the block of x, a panel of a weight, a panel of the
/// output, each as dense accumulators.
constexpr size gemm_scratch(size rows, size depth, size panel_cols) {
  return rows * gemm_stride(depth) + gemm_depth * panel_cols + rows * panel_cols;
}

/// The same for gemm_few, which takes more columns at a time and copies no weight.
constexpr size gemm_few_cols = 512;
constexpr size gemm_few_scratch(size rows, size depth) {
  return rows * (gemm_stride(depth) + gemm_few_cols);
}

/// The kernels of one instruction set; panel_cols is the width of the register tile.
template <typename In>
struct gemm_kernel {
  void (*many)(const gemm_params<In>&) noexcept;
  void (*few)(const gemm_params<In>&) noexcept;
  size panel_cols;
};

}  // namespace detail
HEED_NAMESPACE_END
