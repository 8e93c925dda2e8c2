// Linear attention and the delta rule over n: O(n); causal softmax attention of the same sizes,
// which is O(n^2); and the n at which the one overtakes the other.
#include "measure.hpp"
#include "suites.hpp"

#include <heed/attention.hpp>
#include <heed/delta_rule.hpp>
#include <heed/linear_attention.hpp>
#include <heed/multi_head.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>

namespace bench {
namespace {

enum class gate { none, token, key };

template <typename Scalar>
struct sequence {
  using accumulator = heed::accumulator_t<Scalar>;

  sequence(heed::size_type n, heed::size_type d)
      : query(random_rows<Scalar>(n, d, 1)),
        key(random_rows<accumulator>(n, d, 2).rowwise().normalized().template cast<Scalar>()),
        value(random_rows<Scalar>(n, d, 3)),
        out(heed::rows<Scalar>::Constant(n, d, Scalar(0))),
        log_gate(random_rows<accumulator>(n, d, 4).cwiseAbs() * accumulator(-0.05)),
        beta(heed::rows<accumulator>::Constant(n, 1, accumulator(0.5))),
        state(heed::rows<accumulator>::Zero(d, d)) {}

  heed::tensor_view<const accumulator> gates(gate g) const {
    if (g == gate::none) return {};
    heed::tensor_view<const accumulator> view = heed::view(log_gate);
    if (g == gate::token) view.cols = 1;
    return view;
  }

  heed::rows<Scalar> query, key, value, out;
  heed::rows<accumulator> log_gate, beta, state;
};

template <typename Scalar>
void linear(benchmark::State& state, gate g) {
  const heed::size_type n = length_of(state), d = state.range(1);
  sequence<Scalar> in(n, d);
  heed::workspace memory;
  const auto call = [&] {
    heed::multi_head_linear_attention_into(
        heed::view(in.query), heed::view(in.key), heed::view(in.value), heed::writable_view(in.out),
        {}, memory, heed::when(g != gate::none, heed::log_gate(in.gates(g))),
        heed::carry(in.state));
    benchmark::DoNotOptimize(in.out.data());
  };
  report_extra_bytes(state, call);
  measure<Scalar>(state, {recurrence_operations<Scalar>(n, d, false)}, call);
  state.SetComplexityN(n);
}

template <typename Scalar>
void delta(benchmark::State& state, gate g) {
  const heed::size_type n = length_of(state), d = state.range(1);
  sequence<Scalar> in(n, d);
  heed::workspace memory;
  const auto call = [&] {
    heed::multi_head_delta_rule_into(heed::view(in.query), heed::view(in.key), heed::view(in.value),
                                     heed::view(in.beta), heed::writable_view(in.out), {}, memory,
                                     heed::when(g != gate::none, heed::log_gate(in.gates(g))),
                                     heed::carry(in.state));
    benchmark::DoNotOptimize(in.out.data());
  };
  report_extra_bytes(state, call);
  measure<Scalar>(state, {recurrence_operations<Scalar>(n, d, true)}, call);
  state.SetComplexityN(n);
}

void softmax(benchmark::State& state) {
  const heed::size_type n = length_of(state), d = state.range(1);
  sequence<float> in(n, d);
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  heed::workspace memory;
  const auto call = [&] {
    heed::attention_into(in.query, in.key, in.value, in.out, {}, options, memory);
    benchmark::DoNotOptimize(in.out.data());
  };
  report_extra_bytes(state, call);
  measure<float>(state, {2 * double(n) * double(n + 1) * double(d)}, call);
  state.SetComplexityN(n);
}

/// Finds the n from which on linear attention is faster than causal softmax attention, on a grid of
/// three sizes to a doubling.
void crossover(benchmark::State& state, gate g) {
  constexpr heed::size_type d = 64, longest = 4096;
  sequence<float> in(longest, d);
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  heed::workspace memory;
  const auto best_of = [](const auto& call) {
    double best = 1;
    for (const auto start = std::chrono::steady_clock::now(); seconds_since(start) < 0.01;) {
      const auto turn = std::chrono::steady_clock::now();
      for (int i = 0; i < 8; ++i) call();
      best = (std::min)(best, seconds_since(turn) / 8);
    }
    return best;
  };
  double at = 0, linear_seconds = 0, softmax_seconds = 0;
  for (auto _ : state) {
    at = 0;
    for (double size = 16; size <= double(longest); size *= std::cbrt(2.0)) {
      const heed::size_type n = heed::size_type(std::lround(size));
      heed::tensor_view<const float> query = heed::view(in.query), key = heed::view(in.key),
                                     value = heed::view(in.value);
      heed::tensor_view<const float> gates = in.gates(g);
      heed::tensor_view<float> out = heed::writable_view(in.out);
      query.rows = key.rows = value.rows = out.rows = n;
      if (gates.data) gates.rows = n;
      const double linear_now = best_of([&] {
        heed::multi_head_linear_attention_into(query, key, value, out, {}, memory,
                                               heed::when(g != gate::none, heed::log_gate(gates)),
                                               heed::carry(in.state));
      });
      const double softmax_now = best_of(
          [&] { heed::multi_head_attention_into(query, key, value, out, {}, options, memory); });
      if (linear_now >= softmax_now) {
        at = 0;
      } else if (at == 0) {
        at = double(n), linear_seconds = linear_now, softmax_seconds = softmax_now;
      }
    }
  }
  if (at == 0) return state.SkipWithError("softmax attention was faster at every n");
  state.counters["from_n"] = at;
  state.counters["linear_us"] = linear_seconds * 1e6;
  state.counters["softmax_us"] = softmax_seconds * 1e6;
}

/// One family, over n at head_dim 64.
template <typename Function>
void add(const std::string& name, heed::size_type longest, benchmark::BigO growth,
         const Function& function) {
  auto* added = benchmark::RegisterBenchmark(name.c_str(), function);
  added->ArgNames({"n", "d"})->Unit(benchmark::kMicrosecond)->Complexity(growth);
  for (heed::size_type n = 16; n <= longest; n *= 4) added->Args({n, 64});
}

template <typename Scalar>
void add_gates(const std::string& suffix, heed::size_type longest) {
  for (const auto& [g, name] : {std::pair(gate::none, "none"), std::pair(gate::token, "token"),
                                std::pair(gate::key, "key")}) {
    add("linear/" + suffix + "/gate:" + name, longest, benchmark::oN,
        [g = g](benchmark::State& state) { linear<Scalar>(state, g); });
    add("delta/" + suffix + "/gate:" + name, longest, benchmark::oN,
        [g = g](benchmark::State& state) { delta<Scalar>(state, g); });
  }
}

}  // namespace

void register_linear(bool everything) {
  if (everything) {
    add_gates<float>("f32", 65536);
    add_gates<double>("f64", 16384);
    add_gates<Eigen::bfloat16>("bf16", 16384);
  } else {
    add("linear/f32/gate:token", 65536, benchmark::oN,
        [](benchmark::State& state) { linear<float>(state, gate::token); });
    add("delta/f32/gate:token", 65536, benchmark::oN,
        [](benchmark::State& state) { delta<float>(state, gate::token); });
  }
  for (const auto& [g, name] : {std::pair(gate::none, "none"), std::pair(gate::token, "token"),
                                std::pair(gate::key, "key")})
    if (everything || g == gate::token)
      benchmark::RegisterBenchmark((std::string("linear_crossover/f32/gate:") + name).c_str(),
                                   [g = g](benchmark::State& state) { crossover(state, g); })
          ->Iterations(1);
  add("linear_softmax/f32", everything ? 16384 : 4096, benchmark::oNSquared, softmax);
}

}  // namespace bench
