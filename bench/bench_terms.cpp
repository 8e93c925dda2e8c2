// What masks, biases and functions of the user cost: one head, f32, d = 64, each beside the call
// without them.
#include "measure.hpp"
#include "suites.hpp"

#include <heed/attention.hpp>
#include <heed/position.hpp>

#include <cmath>
#include <string>
#include <vector>

namespace bench {
namespace {

using heed::size_type;

constexpr size_type d = 64;

struct inputs {
  explicit inputs(size_type n)
      : query(random_rows<float>(n, d, 1)),
        key(random_rows<float>(n, d, 2)),
        value(random_rows<float>(n, d, 3)),
        out(n, d) {}

  template <typename... Terms>
  void run(const heed::attention_options& options, const Terms&... terms) {
    heed::attention_into(query, key, value, out, {}, options, memory, terms...);
    benchmark::DoNotOptimize(out.data());
  }
  heed::rows<float> query, key, value, out;
  heed::workspace memory;
};

/// A full call with terms beside the full call without.
template <typename... Terms>
void beside_plain(benchmark::State& state, inputs& in, const heed::attention_options& options,
                  const Terms&... terms) {
  compare(
      state, "of_plain", [&] { in.run(options, terms...); }, [&] { in.run({}); });
}

void bias(inputs& in, size_type n, benchmark::State& state) {
  const heed::rows<float> numbers = random_rows<float>(n, n, 4);
  beside_plain(state, in, {}, heed::bias(numbers));
}
void bias_in_columns(inputs& in, size_type n, benchmark::State& state) {
  const Eigen::MatrixXf numbers = random_rows<float>(n, n, 4);
  beside_plain(state, in, {}, heed::bias(numbers));
}
void bias_of_keys(inputs& in, size_type n, benchmark::State& state) {
  const heed::rows<float> numbers = random_rows<float>(1, n, 4);
  beside_plain(state, in, {}, heed::bias(numbers));
}
void keep(inputs& in, size_type n, benchmark::State& state) {
  const Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> mask =
      random_rows<float>(n, n, 4).array() > -1;
  beside_plain(state, in, {}, heed::keep(mask));
}
void alibi(inputs& in, size_type, benchmark::State& state) {
  const auto slopes = heed::alibi_slopes<float>(1);
  beside_plain(state, in, {}, heed::alibi(slopes));
}
void softcap(inputs& in, size_type, benchmark::State& state) {
  heed::attention_options options;
  options.softcap = 20;
  beside_plain(state, in, options);
}
void score_function(inputs& in, size_type, benchmark::State& state) {
  const auto fade = [](float score, size_type, size_type, size_type i, size_type j) {
    return score - 0.02f * float(i - j);
  };
  beside_plain(state, in, {}, heed::score_function(fade));
}
void mask_function(inputs& in, size_type, benchmark::State& state) {
  const auto same_document = [](size_type, size_type, size_type i, size_type j) {
    return i / 512 == j / 512;
  };
  beside_plain(state, in, {}, heed::mask_function(same_document));
}
void dropout(inputs& in, size_type, benchmark::State& state) {
  beside_plain(state, in, {}, heed::dropout(0.1, 1));
}

/// A window to the left beside the causal call. Ideal is the share of the pairs.
void window(benchmark::State& state) {
  const size_type n = length_of(state), w = state.range(1);
  inputs in(n);
  heed::attention_options causal, windowed;
  causal.causal = windowed.causal = heed::causal::top_left;
  windowed.window_left = w - 1;
  compare(
      state, "of_causal", [&] { in.run(windowed); }, [&] { in.run(causal); });
  state.counters["pairs_of_causal"] =
      (double(n - w) * double(w) + double(w) * double(w + 1) / 2) / (double(n) * double(n + 1) / 2);
  state.SetComplexityN(n);
}

/// A block mask that shows blocks of 128 x 128 at random beside the full call. Ideal is the share
/// of the blocks.
void blocks(benchmark::State& state) {
  const size_type n = length_of(state), block = 128;
  inputs in(n);
  heed::block_mask mask(1, 1, n, n, block, block);
  const heed::rows<float> draws =
      random_rows<float>(mask.q_blocks(), mask.kv_blocks(), 5);  // uniform in [-sqrt(3), sqrt(3)]
  const float level = (2 * float(state.range(1)) / 100 - 1) * std::sqrt(3.0f);
  for (size_type q = 0; q < mask.q_blocks(); ++q)
    for (size_type kv = 0; kv < mask.kv_blocks(); ++kv)
      if (draws(q, kv) < level) mask.show(0, 0, q, kv);
  compare(
      state, "of_plain", [&] { in.run({}, heed::blocks(mask)); }, [&] { in.run({}); });
  state.counters["blocks_shown"] = mask.density();
}

}  // namespace

void register_terms(bool everything) {
  const auto add = [&](const char* name, void (*run)(inputs&, size_type, benchmark::State&)) {
    auto* added = benchmark::RegisterBenchmark((std::string("terms/") + name + "/f32/d:64").c_str(),
                                               [run](benchmark::State& state) {
                                                 inputs in(length_of(state));
                                                 run(in, length_of(state), state);
                                               });
    added->ArgNames({"n"})->Unit(benchmark::kMillisecond)->UseManualTime();
    for (const size_type n :
         everything ? std::vector<size_type>{1024, 2048} : std::vector<size_type>{1024})
      added->Args({n});
  };
  add("bias", bias);
  add("bias_in_columns", bias_in_columns);
  add("bias_of_keys", bias_of_keys);
  add("keep", keep);
  add("alibi", alibi);
  add("softcap", softcap);
  add("score_function", score_function);
  add("mask_function", mask_function);
  add("dropout", dropout);

  auto* windows = benchmark::RegisterBenchmark("terms/window/f32/d:64", window);
  windows->ArgNames({"n", "w"})->Unit(benchmark::kMillisecond)->UseManualTime();
  for (const size_type w : {256, 1024})
    for (const size_type n :
         everything ? std::vector<size_type>{2048, 4096, 8192} : std::vector<size_type>{4096})
      windows->Args({n, w});
  auto* sparse = benchmark::RegisterBenchmark("terms/blocks/f32/d:64", blocks);
  sparse->ArgNames({"n", "percent"})->Unit(benchmark::kMillisecond)->UseManualTime();
  for (const size_type percent : {10, 25, 50}) sparse->Args({4096, percent});
}

}  // namespace bench
