#pragma once

#include "measure.hpp"

#include <heed/tensor.hpp>
#include <heed/workspace.hpp>

#include <algorithm>
#include <chrono>
#include <vector>

// The same operands with heads side by side and with dense rows.

namespace bench {

using heed::size_type;

/// One of the operands in both layouts, the same numbers in each.
template <typename Scalar>
struct tensor {
  tensor(size_type heads, size_type n, size_type d, std::uint64_t seed)
      : side_by_side(random_rows<Scalar>(n, heads * d, seed)),
        dense(heads * n, d),
        num_heads(heads) {
    for (size_type h = 0; h < heads; ++h)
      dense.middleRows(h * n, n) = side_by_side.middleCols(h * d, d);
  }
  auto view(bool bnhd) {
    const size_type n = side_by_side.rows(), d = dense.cols();
    return bnhd ? heed::bnhd(side_by_side.data(), 1, n, num_heads, d)
                : heed::bhnd(dense.data(), 1, num_heads, n, d);
  }
  heed::rows<Scalar> side_by_side, dense;
  size_type num_heads;
};

/// Measures call(bnhd, memory). Where `bnhd`, the counter of_dense is the time of a dense call over
/// that of the call before it, the median of all turns.
template <typename Scalar, typename Call>
void measure_layout(benchmark::State& state, bool bnhd, const work& done, const Call& call) {
  report_extra_bytes(state, [&] {
    heed::workspace fresh;
    call(bnhd, fresh);
  });
  heed::workspace memory, memory_of_dense;
  std::vector<double> of_dense;
  call(false, memory_of_dense);
  measure<Scalar>(
      state, done, [&] { call(bnhd, memory); },
      [&](double seconds) {
        if (!bnhd) return;
        const int calls = (std::max)(1, int(20e-6 / seconds));
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < calls; ++i) call(false, memory_of_dense);
        of_dense.push_back(seconds_since(start) / calls / seconds);
      });
  if (!of_dense.empty()) state.counters["of_dense"] = quantile(of_dense, 0.5);
}

}  // namespace bench
