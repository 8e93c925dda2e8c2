#pragma once

#include "memory.hpp"
#include "peak.hpp"

#include <heed/detail/linear_plan.hpp>
#include <heed/isa.hpp>
#include <heed/types.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace bench {

/// "f32", "f64", "bf16", "f16": how benchmarks are named.
template <typename Scalar>
constexpr const char* name_of() {
  if (std::is_same<Scalar, float>::value) return "f32";
  if (std::is_same<Scalar, double>::value) return "f64";
  return std::is_same<Scalar, Eigen::bfloat16>::value ? "bf16" : "f16";
}

/// A run that only shows that every row works: its numbers mean nothing.
inline bool quick = false;

/// How many tokens or keys a row is about, its first argument.
inline heed::size_type length_of(const benchmark::State& state) {
  return quick ? (std::min)(heed::size_type(state.range(0)), heed::size_type(256))
               : heed::size_type(state.range(0));
}

/// Fills memory with numbers of mean 0 and variance 1, the same in every run (a 64-bit linear
/// congruential generator, Knuth's constants).
template <typename Scalar>
void fill(Scalar* data, heed::size_type count, std::uint64_t seed) {
  std::uint64_t state = seed;
  for (heed::size_type i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    data[i] =
        Scalar(float(state >> 40) * float(std::sqrt(12.0) / (1 << 24)) - float(std::sqrt(3.0)));
  }
}

template <typename Scalar>
heed::rows<Scalar> random_rows(heed::size_type n, heed::size_type d, std::uint64_t seed) {
  heed::rows<Scalar> matrix(n, d);
  fill(matrix.data(), matrix.size(), seed);
  return matrix;
}

/// The counter extra_bytes: memory that the call takes besides its inputs and outputs (and besides
/// the stacks of threads).
template <typename Call>
void report_extra_bytes(benchmark::State& state, const Call& call) {
  if (heap::counted) state.counters["extra_bytes"] = extra_bytes(call);
}

/// The number that a share of the others is below: 0.5 is the median.
inline double quantile(std::vector<double>& numbers, double share) {
  const auto at = numbers.begin() + std::ptrdiff_t(double(numbers.size()) * share);
  std::nth_element(numbers.begin(), at, numbers.end());
  return *at;
}

/// Multiply-adds of the chunk algorithm, times two: within its chunk a token meets half the others,
/// as query and key (for the delta rule also as key and key) and as weight and value; the state is
/// read (for the delta rule twice) and updated.
template <typename Scalar>
double recurrence_operations(heed::size_type n, heed::size_type d, bool delta) {
  const auto kernel =
      heed::detail::select_linear<heed::detail::kernel_scalar<Scalar>, heed::accumulator_t<Scalar>>(
          heed::isa::automatic);
  const double met = double(kernel.chunk() + 1) / 2, dim = double(d);
  return 2 * double(n) * (delta ? 4 * met * dim + 3 * dim * dim : 2 * met * dim + 2 * dim * dim);
}

/// What a call has to do, for the counters.
struct work {
  double operations;  // a multiply-add is two
  int threads = 1;
  heed::isa target = heed::isa::automatic;
};

/// The fastest call in seconds. Calls too short for the clock are timed together. after(seconds a
/// call) runs after each, off the clock.
template <typename Call, typename After>
double best_seconds(benchmark::State& state, const Call& call, const After& after) {
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
  // Exactly as many calls as the state says: repetitions of a benchmark must have the same number.
  benchmark::IterationCount left = state.max_iterations, calls = (std::min)(batch, left);
  while (state.KeepRunningBatch((std::max)(calls, benchmark::IterationCount(1)))) {
    const double seconds = timed(calls);
    state.PauseTiming();
    if (calls == batch ||
        left == state.max_iterations) {  // else it is a rest, too short for the clock
      best = (std::min)(best, seconds);
      after(seconds);
    }
    state.ResumeTiming();
    left -= calls;
    calls = (std::min)(batch, left);
  }
  return best;
}

/// Runs the benchmark, sets its counters and returns the fastest call's seconds. GFLOP/s is that of
/// the fastest call. The share of the peak compares each call with the peak right after it, for the
/// clock of a core varies by a tenth within seconds, and is that of the best tenth of the calls:
/// the others are those that something else on the machine disturbed. after(seconds a call) runs
/// after each, off the clock.
template <typename Scalar, typename Call, typename After>
double measure(benchmark::State& state, const work& todo, const Call& call, const After& after) {
  const burst peak = fma_burst<heed::accumulator_t<Scalar>>(todo.target);
  std::vector<double> shares;
  const double best = best_seconds(state, call, [&](double seconds) {
    shares.push_back(todo.operations / seconds / (best_rate(peak, 50e-6) * todo.threads));
    after(seconds);
  });
  const double share = quantile(shares, 0.9), rate = todo.operations / best;
  state.counters["GFLOP/s"] = rate * 1e-9;
  state.counters["of_fma_peak"] = share;
  if (std::is_same<Scalar, Eigen::bfloat16>::value && has_bf16_pairs()) {
    const double fma = best_rate(peak), pairs = bf16_peak();
    state.counters["of_bf16_peak"] = share * fma / pairs;
  }
  return best;
}
template <typename Scalar, typename Call>
double measure(benchmark::State& state, const work& todo, const Call& call) {
  return measure<Scalar>(state, todo, call, [](double) {});
}

/// Times two calls in turns, so that both see the same machine. The counter `name` is the time of
/// the fastest `call` over that of the fastest `other`; the table has the time of `call`.
template <typename Call, typename Other>
void compare(benchmark::State& state, const char* name, const Call& call, const Other& other) {
  const auto seconds = [](const auto& run) {
    const auto start = std::chrono::steady_clock::now();
    run();
    return seconds_since(start);
  };
  double best = seconds(call), best_other = seconds(other);
  for (auto _ : state) {
    const double now = seconds(call);
    state.SetIterationTime(now);
    best = (std::min)(best, now);
    best_other = (std::min)(best_other, seconds(other));
  }
  state.counters[name] = best / best_other;
}

}  // namespace bench
