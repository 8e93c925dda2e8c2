#pragma once

#include "memory.hpp"
#include "peak.hpp"

#include <heed/isa.hpp>
#include <heed/types.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace bench {

/// "f32", "f64", "bf16", "f16": how benchmarks are named.
template <typename Scalar>
constexpr const char* name_of() {
  if (std::is_same<Scalar, float>::value) return "f32";
  if (std::is_same<Scalar, double>::value) return "f64";
  return std::is_same<Scalar, Eigen::bfloat16>::value ? "bf16" : "f16";
}

/// Fills memory with numbers of mean 0 and variance 1, the same in every run (a 64-bit linear congruential generator, Knuth's
/// constants).
template <typename Scalar>
void fill(Scalar* data, heed::index count, std::uint64_t seed) {
  std::uint64_t state = seed;
  for (heed::index i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    data[i] = Scalar(float(state >> 40) * float(std::sqrt(12.0) / (1 << 24)) - float(std::sqrt(3.0)));
  }
}

template <typename Scalar>
heed::rows<Scalar> random_rows(heed::index n, heed::index d, std::uint64_t seed) {
  heed::rows<Scalar> matrix(n, d);
  fill(matrix.data(), matrix.size(), seed);
  return matrix;
}

/// The counter extra_bytes: memory that the call takes besides its inputs and outputs (and besides the stacks of threads).
template <typename Call>
void report_extra_bytes(benchmark::State& state, const Call& call) {
  if (heap::counted) state.counters["extra_bytes"] = extra_bytes(call);
}

/// What a call has to do, for the counters.
struct work {
  double operations;  // a multiply-add is two
  int threads = 1;
  heed::isa target = heed::isa::automatic;
};

/// The fastest call in seconds. Calls too short for the clock are timed together.
template <typename Call>
double best_seconds(benchmark::State& state, const Call& call) {
  const auto timed = [&](benchmark::IterationCount calls) {
    const auto start = std::chrono::steady_clock::now();
    for (benchmark::IterationCount i = 0; i < calls; ++i) call();
    return seconds_since(start) / double(calls);
  };
  constexpr double enough = 20e-6;  // a look at the clock is 1/1000 of it
  double once = timed(1);
  if (once < 50 * enough) once = timed(4);  // the first call may have been a cold one
  const auto batch = benchmark::IterationCount(once < enough ? enough / once : 1);
  double best = once;
  while (state.KeepRunningBatch(batch)) best = (std::min)(best, timed(batch));
  return best;
}

/// Runs the benchmark, sets its counters and returns the fastest call's seconds. The rates are those of the fastest call, and the
/// peaks are measured right before and after: on a machine that others use as well, both are what it can do, while the mean time in
/// the table is what it did.
template <typename Scalar, typename Call>
double measure(benchmark::State& state, const work& todo, const Call& call) {
  using Acc = heed::accumulator_t<Scalar>;
  constexpr bool pairs = std::is_same<Scalar, Eigen::bfloat16>::value;
  const double fma_before = fma_peak<Acc>(todo.target), bf16_before = pairs ? bf16_peak() : 0;
  const double best = best_seconds(state, call);
  const double fma = (std::max)(fma_before, fma_peak<Acc>(todo.target));
  const double rate = todo.operations / best;
  state.counters["GFLOP/s"] = rate * 1e-9;
  state.counters["of_fma_peak"] = rate / (fma * todo.threads);
  if (bf16_before > 0) state.counters["of_bf16_peak"] = rate / ((std::max)(bf16_before, bf16_peak()) * todo.threads);
  return best;
}

}  // namespace bench
