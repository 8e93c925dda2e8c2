// Heads side by side: queries, keys, values and outputs of [B,N,H,D], as projections leave them and
// caches keep them, where the rows of one head are H * D numbers apart; beside the same call on
// [B,H,N,D], whose rows are dense.
#include "layouts.hpp"
#include "suites.hpp"

#include <heed/delta_rule.hpp>
#include <heed/linear_attention.hpp>
#include <heed/multi_head.hpp>
#include <heed/projection.hpp>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

namespace bench {
namespace {

using heed::size_type;

struct shape {
  size_type heads, kv_heads, d, n_q, n_kv;
};

template <typename Scalar>
void layout(benchmark::State& state, shape sizes, bool bnhd) {
  if (quick)
    sizes.n_q = (std::min)(sizes.n_q, size_type{256}),
    sizes.n_kv = (std::min)(sizes.n_kv, size_type{256});
  tensor<Scalar> query(sizes.heads, sizes.n_q, sizes.d, 1), out(sizes.heads, sizes.n_q, sizes.d, 2);
  tensor<Scalar> key(sizes.kv_heads, sizes.n_kv, sizes.d, 3),
      value(sizes.kv_heads, sizes.n_kv, sizes.d, 4);
  heed::attention_options options;
  options.causal = state.range(0) ? heed::causal::bottom_right : heed::causal::none;
  options.execution.threads = int(state.range(1));
  const double hidden =
      options.causal == heed::causal::none ? 0 : double(sizes.n_q) * double(sizes.n_q - 1) / 2;
  const double pairs = double(sizes.n_q) * double(sizes.n_kv) - hidden;
  measure_layout<Scalar>(
      state, bnhd, {4 * double(sizes.d) * double(sizes.heads) * pairs, options.execution.threads},
      [&](bool side_by_side, heed::workspace& memory) {
        heed::multi_head_attention_into(query.view(side_by_side), key.view(side_by_side),
                                        value.view(side_by_side), out.view(side_by_side), {},
                                        options, memory);
        benchmark::DoNotOptimize(out.dense.data());
      });
}

/// Linear attention with a gate per key dimension, or the delta rule with one per token: n tokens
/// of `heads` heads.
template <typename Scalar>
void recurrence_layout(benchmark::State& state, shape sizes, bool bnhd, bool delta) {
  using Acc = heed::accumulator_t<Scalar>;
  if (quick) sizes.n_q = (std::min)(sizes.n_q, size_type{128});
  const size_type heads = sizes.heads, n = sizes.n_q, d = sizes.d;
  tensor<Scalar> query(heads, n, d, 1), key(heads, n, d, 2), value(heads, n, d, 3),
      out(heads, n, d, 4);
  tensor<Acc> gate(heads, n, delta ? 1 : d, 5), beta(heads, n, 1, 6);
  for (auto* gates : {&gate.side_by_side, &gate.dense}) *gates = gates->cwiseAbs() * Acc(-0.05);
  for (auto* keys : {&key.side_by_side, &key.dense})
    *keys = (keys->template cast<Acc>() * Acc(0.1)).template cast<Scalar>();
  for (auto* betas : {&beta.side_by_side, &beta.dense}) betas->setConstant(Acc(0.5));
  const int threads = int(state.range(0));
  const double operations = recurrence_operations<Scalar>(n, d, delta) * double(heads);
  measure_layout<Scalar>(
      state, bnhd, {operations, threads}, [&](bool side_by_side, heed::workspace& memory) {
        if (delta) {
          heed::delta_rule_options options;
          options.execution.threads = threads;
          heed::multi_head_delta_rule_into(query.view(side_by_side), key.view(side_by_side),
                                           value.view(side_by_side), beta.view(side_by_side),
                                           out.view(side_by_side), options, memory,
                                           heed::log_gate(gate.view(side_by_side)));
        } else {
          heed::linear_attention_options options;
          options.execution.threads = threads;
          heed::multi_head_linear_attention_into(
              query.view(side_by_side), key.view(side_by_side), value.view(side_by_side),
              out.view(side_by_side), options, memory, heed::log_gate(gate.view(side_by_side)));
        }
        benchmark::DoNotOptimize(out.dense.data());
      });
}

template <typename Scalar>
void add_recurrence(const std::string& family, bool delta, size_type heads, size_type d,
                    const std::vector<int>& threads) {
  for (const bool bnhd : {false, true}) {
    const std::string name = family + "/layout:" + (bnhd ? "bnhd/" : "bhnd/") + name_of<Scalar>() +
                             "/heads:" + std::to_string(heads) + "/d:" + std::to_string(d) +
                             "/n:2048";
    auto* added = benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
      recurrence_layout<Scalar>(state, {heads, heads, d, 2048, 2048}, bnhd, delta);
    });
    added->ArgName("threads")->Unit(benchmark::kMillisecond);
    for (const int t : threads) added->Arg(t);
  }
}

template <typename Scalar>
void add(const std::string& family, const shape& sizes, const std::vector<bool>& causal,
         const std::vector<int>& threads) {
  for (const bool bnhd : {false, true}) {
    const std::string name = family + "/layout:" + (bnhd ? "bnhd/" : "bhnd/") + name_of<Scalar>() +
                             "/heads:" + std::to_string(sizes.heads) +
                             "/kv_heads:" + std::to_string(sizes.kv_heads) +
                             "/d:" + std::to_string(sizes.d) + "/n_q:" + std::to_string(sizes.n_q) +
                             "/n_kv:" + std::to_string(sizes.n_kv);
    auto* added = benchmark::RegisterBenchmark(
        name.c_str(),
        [sizes, bnhd](benchmark::State& state) { layout<Scalar>(state, sizes, bnhd); });
    added->ArgNames({"causal", "threads"})->Unit(benchmark::kMillisecond);
    for (const int t : threads)
      for (const bool c : causal) added->Args({c, t});
  }
}

/// multi_head_self_attention of 8 heads of 64 beside its parts: the four products, and attention in
/// the layout that is best for it.
void self_attention(benchmark::State& state) {
  const size_type n = length_of(state), heads = 8, d = 64, d_model = heads * d;
  const auto x = random_rows<float>(n, d_model, 1), w_q = random_rows<float>(d_model, d_model, 2),
             w_k = random_rows<float>(d_model, d_model, 3),
             w_v = random_rows<float>(d_model, d_model, 4),
             w_o = random_rows<float>(d_model, d_model, 5);
  tensor<float> query(heads, n, d, 6), key(heads, n, d, 7), value(heads, n, d, 8),
      out(heads, n, d, 9);
  heed::attention_options options;
  options.execution.threads = int(state.range(1));
  heed::workspace memory;
  heed::rows<float> result;
  std::vector<double> of_parts;
  const double products = 4 * 2 * double(n) * double(d_model) * double(d_model),
               attention = 4 * double(n) * double(n) * double(d_model);
  measure<float>(
      state, {products + attention, options.execution.threads},
      [&] {
        result = heed::multi_head_self_attention(x, w_q, w_k, w_v, w_o, {heads, heads}, options);
        benchmark::DoNotOptimize(result.data());
      },
      [&](double seconds) {
        const auto start = std::chrono::steady_clock::now();
        const auto qkv = heed::project_qkv(x, w_q, w_k, w_v, options);
        heed::multi_head_attention_into(query.view(false), key.view(false), value.view(false),
                                        out.view(false), {}, options, memory);
        const auto projected = heed::project(out.side_by_side, w_o, options);
        of_parts.push_back(seconds_since(start) / seconds);
        benchmark::DoNotOptimize(projected.data());
        benchmark::DoNotOptimize(qkv.query.data());
      });
  state.counters["of_parts"] = quantile(of_parts, 0.5);
}

}  // namespace

void register_layout(bool everything) {
  const std::vector<int> one{1},
      threads = std::thread::hardware_concurrency() > 1 ? std::vector<int>{1, 2} : one;
  const std::vector<bool> both{false, true}, full{false};
  add<float>("heads", {16, 16, 64, 2048, 2048}, both, one);
  add<float>("heads", {8, 8, 128, 2048, 2048}, both, one);
  add<float>("decode_heads", {32, 8, 128, 1, 16384}, full, one);
  add_recurrence<float>("linear_heads", false, 16, 64, one);
  add_recurrence<float>("delta_heads", true, 16, 64, one);
  benchmark::RegisterBenchmark("multi_head_self_attention/f32/heads:8/d:64", self_attention)
      ->ArgNames({"n", "threads"})
      ->Unit(benchmark::kMillisecond)
      ->Args({2048, 1});
  if (!everything) return;
  for (const size_type d : {64, 128})
    for (const size_type heads : {8, 16, 32, 64}) {
      for (const bool delta : {false, true}) {
        const std::string family = delta ? "delta_heads" : "linear_heads";
        if (heads * d != 1024 || d != 64) add_recurrence<float>(family, delta, heads, d, threads);
        add_recurrence<Eigen::bfloat16>(family, delta, heads, d, threads);
        if (d == 64) add_recurrence<double>(family, delta, heads, d, threads);
      }
      const auto everyone = [&](const shape& sizes) {
        add<float>("heads", sizes, both, threads);
        add<double>("heads", sizes, both, threads);
        add<Eigen::bfloat16>("heads", sizes, both, threads);
      };
      for (const size_type n_q : {16, 64, 256, 1024}) everyone({heads, heads, d, n_q, 1024});
      if (heads * d != 1024) add<float>("heads", {heads, heads, d, 2048, 2048}, both, threads);
      add<float>("decode_heads", {heads, heads, d, 1, 4096}, full, threads);
      add<Eigen::bfloat16>("decode_heads", {heads, heads, d, 1, 4096}, full, threads);
    }
  add<float>("decode_heads", {32, 8, 128, 4, 16384}, full, threads);
  add<Eigen::bfloat16>("decode_heads", {32, 8, 128, 1, 16384}, full, threads);
}

}  // namespace bench
