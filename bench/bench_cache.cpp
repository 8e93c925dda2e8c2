// What a decode step costs with keys and values in fewer bits: one token of 32 query heads against
// a cache of 8 key/value heads, beside the same with a cache of float.
#include "measure.hpp"
#include "suites.hpp"

#include <heed/cached_attention.hpp>
#include <heed/kv_cache.hpp>

#include <string>

namespace bench {
namespace {

using heed::size_type;

constexpr size_type heads = 32, kv_heads = 8, d = 128;

/// A cache of `length` tokens and a step of decoding from it.
template <typename Stored>
struct step {
  heed::kv_cache<Stored> cache{1, kv_heads, d, d};
  heed::rows<float> query = random_rows<float>(heads, d, 2), out{heads, d};
  heed::attention_options options;
  heed::workspace memory;

  step(size_type length, heed::isa target) {
    const heed::rows<float> tokens = random_rows<float>(256, kv_heads * d, 1);
    const auto some = heed::split_heads(heed::view(tokens), kv_heads);
    cache.reserve(length);
    for (size_type n = 0; n < length; n += 256) cache.append(some, some);
    options.causal = heed::causal::bottom_right;
    options.execution.threads = 1;
    options.execution.target = target;
  }
  void operator()() {
    heed::cached_attention_into(heed::bhnd(query.data(), 1, heads, 1, d), cache,
                                heed::bhnd(out.data(), 1, heads, 1, d), {}, options, memory);
    benchmark::DoNotOptimize(out.data());
  }
};

template <typename Stored>
void cache(benchmark::State& state, heed::isa target) {
  step<Stored> fewer(length_of(state), target);
  step<float> full(length_of(state), target);
  compare(
      state, "of_f32", [&] { fewer(); }, [&] { full(); });
  state.counters["bytes_a_token"] = double(fewer.cache.bytes()) / double(fewer.cache.capacity());
}

template <typename Stored>
void add(const std::string& suite, heed::isa target, const char* name) {
  auto* added = benchmark::RegisterBenchmark(
      (suite + "/" + name + "/heads:32/kv_heads:8/d:128").c_str(), cache<Stored>, target);
  added->ArgName("n_kv")->UseManualTime()->Unit(benchmark::kMillisecond)->Arg(65536);
}
void add_all(const std::string& suite, heed::isa target) {
  add<Eigen::bfloat16>(suite, target, "bf16");
  add<Eigen::half>(suite, target, "f16");
  add<std::int8_t>(suite, target, "int8");
  add<heed::float8_e4m3>(suite, target, "e4m3");
  add<heed::float8_e5m2>(suite, target, "e5m2");
  add<heed::int8_block>(suite, target, "int8_block");
  add<heed::int4_block>(suite, target, "int4_block");
}

}  // namespace

void register_cache(bool everything) {
  add_all("cache", heed::isa::automatic);
  if (everything && heed::best_isa() >= heed::isa::avx512) add_all("cache_avx2", heed::isa::avx2);
}

}  // namespace bench
