// The gradient: backward alone, and forward and backward together as a training step has them. What
// is needed is counted: five products backward and two forward, of visible pairs.
#include "layouts.hpp"
#include "suites.hpp"

#include <heed/backward.hpp>
#include <heed/multi_head.hpp>

#include <string>
#include <thread>
#include <vector>

namespace bench {
namespace {

constexpr double forward_products = 2, backward_products = 5;

/// Visible pairs of n queries and keys: each query sees so many keys up to its own; -1 is all, and
/// without `causal` the later ones too.
double pairs_of(size_type n, bool causal, size_type window = -1) {
  if (!causal) return double(n) * double(n);
  const double seen = double(window < 0 || window >= n ? n : window + 1);
  return seen * (seen + 1) / 2 + (double(n) - seen) * seen;
}

/// One training step of some heads, in one of two layouts.
template <typename Scalar>
struct step {
  using Acc = heed::accumulator_t<Scalar>;
  step(size_type heads, size_type n, size_type d)
      : query(heads, n, d, 1),
        key(heads, n, d, 2),
        value(heads, n, d, 3),
        out(heads, n, d, 4),
        grad_out(heads, n, d, 5),
        grad_query(heads, n, d, 6),
        grad_key(heads, n, d, 7),
        grad_value(heads, n, d, 8),
        lse(heads, n, 1, 9) {}

  template <typename... Terms>
  void forward(bool bnhd, const Terms&... terms) {
    heed::multi_head_attention_into(query.view(bnhd), key.view(bnhd), value.view(bnhd),
                                    out.view(bnhd), lse.view(bnhd), options, memory, terms...);
    benchmark::DoNotOptimize(out.dense.data());
  }
  template <typename... Terms>
  void backward(bool bnhd, heed::workspace& mine, const Terms&... terms) {
    heed::multi_head_attention_backward_into(query.view(bnhd), key.view(bnhd), value.view(bnhd),
                                             out.view(bnhd), lse.view(bnhd), grad_out.view(bnhd),
                                             grad_query.view(bnhd), grad_key.view(bnhd),
                                             grad_value.view(bnhd), options, mine, terms...);
    benchmark::DoNotOptimize(grad_query.dense.data());
  }
  template <typename... Terms>
  void backward(const Terms&... terms) {
    backward(false, memory, terms...);
  }

  heed::attention_options options;
  tensor<Scalar> query, key, value, out, grad_out, grad_query, grad_key, grad_value;
  tensor<Acc> lse;
  heed::workspace memory;
};

template <typename Scalar>
void one_head(benchmark::State& state, size_type d, bool with_forward, heed::isa target) {
  const size_type n = length_of(state);
  const bool causal = state.range(1) != 0;
  step<Scalar> s(1, n, d);
  s.options.causal = causal ? heed::causal::top_left : heed::causal::none;
  s.options.execution.threads = int(state.range(2));
  s.options.execution.target = target;
  s.forward(false);
  report_extra_bytes(state, [&] {
    heed::workspace fresh;
    s.backward(false, fresh);
  });
  const double products = backward_products + (with_forward ? forward_products : 0);
  measure<Scalar>(
      state, {2 * products * double(d) * pairs_of(n, causal), s.options.execution.threads, target},
      [&] {
        if (with_forward) s.forward(false);
        s.backward();
      });
  state.SetComplexityN(n);
}

void heads(benchmark::State& state, size_type num_heads, size_type d, bool bnhd) {
  const size_type n = length_of(state);
  const bool causal = state.range(1) != 0;
  step<float> s(num_heads, n, d);
  s.options.causal = causal ? heed::causal::top_left : heed::causal::none;
  s.options.execution.threads = int(state.range(2));
  s.forward(true);
  s.forward(false);
  measure_layout<float>(
      state, bnhd,
      {2 * backward_products * double(d) * double(num_heads) * pairs_of(n, causal),
       s.options.execution.threads},
      [&](bool side_by_side, heed::workspace& memory) { s.backward(side_by_side, memory); });
}

void bias(benchmark::State& state) {
  const size_type n = length_of(state);
  step<float> plain(1, n, 64), s(1, n, 64);
  const heed::rows<float> numbers = random_rows<float>(n, n, 4);
  heed::rows<float> gradient(n, n);
  plain.forward(false);
  s.forward(false, heed::bias(numbers));
  compare(
      state, "of_plain", [&] { s.backward(heed::bias(numbers), heed::grad_bias(gradient)); },
      [&] { plain.backward(); });
}
void softcap(benchmark::State& state) {
  const size_type n = length_of(state);
  step<float> plain(1, n, 64), s(1, n, 64);
  s.options.softcap = 20;
  plain.forward(false);
  s.forward(false);
  compare(
      state, "of_plain", [&] { s.backward(); }, [&] { plain.backward(); });
}
/// of_share: the time beside causal, over the share of the pairs.
void window(benchmark::State& state) {
  const size_type n = length_of(state), seen = 255;
  step<float> causal(1, n, 64), s(1, n, 64);
  causal.options.causal = s.options.causal = heed::causal::top_left;
  s.options.window_left = seen;
  causal.forward(false);
  s.forward(false);
  compare(
      state, "of_causal", [&] { s.backward(); }, [&] { causal.backward(); });
  state.counters["of_share"] =
      state.counters["of_causal"] * pairs_of(n, true) / pairs_of(n, true, seen);
}

template <typename Scalar>
void add_one_head(size_type d, const std::vector<size_type>& all_n, int threads,
                  heed::isa target = heed::isa::automatic) {
  for (const bool with_forward : {false, true}) {
    std::string name = with_forward ? "forward_backward" : "backward";
    if (target != heed::isa::automatic) name += std::string("_") + heed::name(target);
    name += std::string("/") + name_of<Scalar>() + "/d:" + std::to_string(d);
    auto* added = benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
      one_head<Scalar>(state, d, with_forward, target);
    });
    added->ArgNames({"n", "causal", "threads"})->Unit(benchmark::kMillisecond);
    for (const int causal : {0, 1})
      for (const size_type n : all_n) added->Args({n, causal, threads});
  }
}

void add_heads(size_type num_heads, size_type d) {
  for (const bool bnhd : {false, true}) {
    const std::string name = std::string("backward_heads/layout:") + (bnhd ? "bnhd" : "bhnd") +
                             "/f32/heads:" + std::to_string(num_heads) + "/d:" + std::to_string(d);
    auto* added = benchmark::RegisterBenchmark(
        name.c_str(), [=](benchmark::State& state) { heads(state, num_heads, d, bnhd); });
    added->ArgNames({"n", "causal", "threads"})->Unit(benchmark::kMillisecond);
    for (const int causal : {0, 1}) added->Args({1024, causal, 1});
  }
}

void add_term(const char* name, void (*run)(benchmark::State&), size_type n) {
  benchmark::RegisterBenchmark((std::string("backward_terms/") + name).c_str(), run)
      ->ArgName("n")
      ->Arg(n)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

}  // namespace

void register_backward(bool everything) {
  using sizes = std::vector<size_type>;
  const sizes all_n = everything ? sizes{512, 1024, 2048, 4096} : sizes{512, 2048};
  add_one_head<float>(64, all_n, 1);
  add_one_head<float>(128, everything ? sizes{512, 2048} : sizes{2048}, 1);
  add_one_head<double>(64, {2048}, 1);
  add_one_head<Eigen::bfloat16>(64, {2048}, 1);
  if (everything) {
    add_one_head<double>(128, {2048}, 1);
    add_one_head<Eigen::bfloat16>(128, {2048}, 1);
    add_one_head<Eigen::half>(64, {2048}, 1);
  }
  const int cores = int(std::thread::hardware_concurrency());
  for (int threads = 2; threads <= cores; threads *= 2) add_one_head<float>(64, {4096}, threads);
  for (const heed::isa target : heed::available_isas()) {
    if (!everything || target == heed::best_isa() || target == heed::isa::avx512_bf16) continue;
    add_one_head<float>(64, {512, 2048, 4096}, 1, target);
    add_one_head<float>(128, {512, 2048}, 1, target);
  }
  add_heads(16, 64);
  add_heads(8, 128);
  add_term("bias", bias, 2048);
  add_term("softcap", softcap, 2048);
  add_term("window", window, 8192);
}

}  // namespace bench
