// Why decoders keep a cache of keys and values. Without it, each new token needs the keys and
// values of all tokens before it again, and with more than one layer their attention too: O(n^2).
// With it, a token projects itself, appends, and attends once: O(n). What it costs is memory;
// grouped-query, multi-query and latent attention are ways to pay less of it.

#include <heed/heed.hpp>

#include "support/command_line.hpp"
#include "support/points.hpp"
#include "support/progress.hpp"
#include "support/table.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

namespace {

using heed::size_type;
using matrix = heed::rows<float>;
using support::bytes;
using support::fixed;

constexpr size_type d_model = 512, num_heads = 8, num_kv_heads = 2, head_dim = 64;

/// The shortest of some runs, in seconds.
template <typename Call>
double time_of(const Call& call, int runs) {
  double best = 1e9;
  for (int run = 0; run < runs; ++run) {
    const auto start = std::chrono::steady_clock::now();
    call();
    best = (std::min)(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

/// A layer's projections; a step of 1 / sqrt(d_model) keeps their numbers near those of x.
struct layer {
  const float size = 1 / std::sqrt(float(d_model));
  matrix w_q = size * matrix::Random(d_model, num_heads* head_dim);
  matrix w_k = size * matrix::Random(d_model, num_kv_heads* head_dim);
  matrix w_v = size * matrix::Random(d_model, num_kv_heads* head_dim);
};

heed::attention_options causal() {
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  return options;
}

/// The newest token of x, everything before it computed anew.
matrix without_cache(const layer& w, const matrix& x) {
  const auto p = heed::project_qkv(x, w.w_q, w.w_k, w.w_v);
  return heed::packed_multi_head_attention(p.query, p.key, p.value, {num_heads, num_kv_heads},
                                           causal())
      .bottomRows(1);
}

/// Appends tokens to the cache and attends to all that it holds.
template <typename Stored>
matrix with_cache(const layer& w, const matrix& x, heed::kv_cache<Stored>& cache,
                  heed::workspace& memory) {
  const auto p = heed::project_qkv(x, w.w_q, w.w_k, w.w_v);
  cache.append(heed::split_heads(heed::view(p.key), num_kv_heads),
               heed::split_heads(heed::view(p.value), num_kv_heads));
  matrix out(x.rows(), num_heads * head_dim);
  heed::cached_attention_into(heed::split_heads(heed::view(p.query), num_heads), cache,
                              heed::split_heads(heed::writable_view(out), num_heads), {}, causal(),
                              memory);
  return out;
}

/// A cache that has been given the first n - 1 tokens, and what the next one costs.
template <typename Stored>
struct decoder {
  decoder(const layer& weights, const matrix& x)
      : w(weights),
        before(x.rows() - 1),
        newest(x.bottomRows(1)),
        cache(1, num_kv_heads, head_dim, head_dim, x.rows()) {
    with_cache(w, x.topRows(before), cache, memory);
  }
  /// The newest token; taking it back first makes the step repeatable.
  void step() {
    cache.truncate(0, before);
    out = with_cache(w, newest, cache, memory);
  }
  const layer& w;
  const size_type before;
  matrix newest, out;
  heed::kv_cache<Stored> cache;
  heed::workspace memory;
};

double difference(const matrix& a, const matrix& b) {
  return double((a - b).cwiseAbs().maxCoeff());
}

/// The time of a token with the cache and without, over n. The largest difference between the two.
double costs(const layer& w, size_type longest, std::vector<support::point>& points) {
  support::table table(
      {"tokens before", "with the cache", "growth", "without", "growth", "without / with"});
  int steps = 0;
  for (size_type n = 256; n <= longest; n *= 2) ++steps;
  support::progress progress(steps);
  double largest = 0, last_with = 0, last_without = 0;
  for (size_type n = 256; n <= longest; n *= 2) {
    progress.step(std::to_string(n) + " tokens");
    const matrix x = matrix::Random(n + 1, d_model);
    decoder<float> cached(w, x);
    matrix direct;
    const double with = time_of([&] { cached.step(); }, 20),
                 without = time_of([&] { direct = without_cache(w, x); }, n > 2048 ? 2 : 3);
    largest = (std::max)(largest, difference(cached.out, direct));
    const auto growth = [](double now, double last) {
      return last > 0 ? "x " + fixed(now / last, 1) : std::string();
    };
    table.add({std::to_string(n), support::seconds(with), growth(with, last_with),
               support::seconds(without), growth(without, last_without),
               fixed(without / with, 0) + " x"});
    last_with = with, last_without = without;
    points.push_back({"with a cache", n, with, 0});
    points.push_back({"without", n, without, 0});
  }
  progress.clear();
  table.print(std::cout);
  return largest;
}

/// One line of the table of stored types. The largest difference from a cache of float.
template <typename Stored>
double stored_as(const char* name, const layer& w, const matrix& x, const matrix& exact,
                 size_type row_bytes, support::table& table, bool& right) {
  decoder<Stored> cached(w, x);
  const double time = time_of([&] { cached.step(); }, 20), error = difference(cached.out, exact);
  right = right &&
          cached.cache.bytes() == heed::kv_cache_bytes(1, num_kv_heads, 1, x.rows(), row_bytes);
  table.add({name, bytes(double(cached.cache.bytes())), support::seconds(time),
             support::scientific(error)});
  return error;
}

/// The shape of a published model, as its configuration file or paper gives it.
struct model {
  const char* name;
  const char* kind;
  size_type layers, heads, kv_heads, head_dim;
  size_type elements, multi_head_elements;  // numbers to keep of a token in one layer
};

void models() {
  const auto heads = [](const char* name, const char* kind, size_type layers, size_type q,
                        size_type kv, size_type dim) {
    return model{name,
                 kind,
                 layers,
                 q,
                 kv,
                 dim,
                 heed::kv_cache_bytes(1, kv, dim, 1, 1),
                 heed::kv_cache_bytes(1, q, dim, 1, 1)};
  };
  // Latent attention caches one vector of 512 numbers and one rotated key of 64 for all heads; its
  // heads have keys of 192 and values of 128.
  const auto latent = [](const char* name, size_type layers) {
    return model{name, "latent", layers, 128, 1, 576, 512 + 64, 128 * (192 + 128)};
  };
  support::table table({"model", "kind", "layers", "heads", "kv heads", "head_dim", "a token", "8K",
                        "128K", "of multi-head"});
  for (const model& m : {heads("GPT-2", "multi-head", 12, 12, 12, 64),
                         heads("GPT-3 175B", "multi-head", 96, 96, 96, 128),
                         heads("Llama 2 7B", "multi-head", 32, 32, 32, 128),
                         heads("SmolLM2 135M", "grouped", 30, 9, 3, 64),
                         heads("Qwen2.5 7B", "grouped", 28, 28, 4, 128),
                         heads("Llama 3.1 8B", "grouped", 32, 32, 8, 128),
                         heads("Llama 3.1 70B", "grouped", 80, 64, 8, 128),
                         heads("Llama 3.1 405B", "grouped", 126, 128, 8, 128),
                         heads("Gemma 2B", "multi-query", 18, 8, 1, 256),
                         heads("Falcon 7B", "multi-query", 32, 71, 1, 64),
                         latent("DeepSeek-V2", 60), latent("DeepSeek-V3", 61)}) {
    const double token = double(m.layers * m.elements) * sizeof(Eigen::bfloat16);
    table.add({m.name, m.kind, std::to_string(m.layers), std::to_string(m.heads),
               std::to_string(m.kv_heads), std::to_string(m.head_dim), bytes(token),
               bytes(token * 8192), bytes(token * 131072),
               fixed(100 * double(m.elements) / double(m.multi_head_elements), 1) + " %"});
  }
  table.print(std::cout);
}

}  // namespace

int main(int argc, char** argv) {
  using heed::size_type;  // not the one of <strings.h>
  bool quick = false;
  std::string json;
  support::command_line command(
      "04_kv_cache",
      "what a token costs with a cache of keys and values and without, and what the cache weighs");
  command.flag("--quick", "fewer tokens", quick);
  command.option("--json", "FILE", "write the times for bench/plot.py --filter .", json);
  if (const auto status = command.parse(argc, argv)) return *status;

  const layer w;
  std::cout << "\nOne more token through a layer: d_model " << d_model << ", " << num_heads
            << " heads, " << num_kv_heads << " key/value heads of " << head_dim << ".\n\n";
  std::vector<support::point> points;
  const double largest = costs(w, quick ? 1024 : 8192, points);
  if (!json.empty() && !support::write_points(json, points)) {
    std::cerr << "04_kv_cache: cannot write the file that --json names\n";
    return 1;
  }
  std::cout << "\nA doubling doubles the attention with the cache and quadruples it without; the "
               "projections, the same for every n "
               "with the\n"
               "cache, are what small n pays. Largest difference between the two: "
            << support::scientific(largest) << ".\n";

  const matrix x = matrix::Random(quick ? 1024 : 8192, d_model);
  decoder<float> exact(w, x);
  exact.step();
  bool right = true;
  support::table stored(
      {"stored as", "bytes of " + std::to_string(x.rows()) + " tokens", "a token", "error"});
  stored_as<float>("float", w, x, exact.out, 4 * head_dim, stored, right);
  const double half = stored_as<Eigen::half>("half", w, x, exact.out, 2 * head_dim, stored, right);
  const double bfloat16 =
      stored_as<Eigen::bfloat16>("bfloat16", w, x, exact.out, 2 * head_dim, stored, right);
  const double int8 =
      stored_as<std::int8_t>("int8, a scale a row", w, x, exact.out, head_dim + 4, stored, right);
  const double int8_block = stored_as<heed::int8_block>(
      "int8, a scale for each 32", w, x, exact.out, head_dim / 32 * 36, stored, right);
  const double int4 = stored_as<heed::int4_block>("4 bits, a range for each 32", w, x, exact.out,
                                                  head_dim / 32 * 20, stored, right);
  std::cout << "\n";
  stored.print(std::cout);
  std::cout << "\nCaches of published models, bfloat16, one sequence; the last column compares "
               "with a key and a value for every head.\n\n";
  models();

  // Values here are below 2. Stored, one is off by at most 2^-11 of itself as half, 2^-8 as
  // bfloat16 and, half a step, 2^-8 of the row's largest as int8, and a 30th of the range, twice
  // the largest, in 4 bits; scores are below 1, so the rounding of keys adds no more than that
  // again.
  right = right && largest < 1e-4 && half < 4 * 0x1p-11 && bfloat16 < 4 * 0x1p-8 &&
          int8 < 4 * 0x1p-8 && int8_block < 4 * 0x1p-8 && int4 < 4.0 / 14;
  if (!right) std::cout << "\nBUT a result or a size here is not what this page says.\n";
  return right ? 0 : 1;
}
