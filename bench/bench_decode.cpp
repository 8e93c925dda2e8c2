// Decoding: one query for each head against a long cache, bound by reading keys and values once.
#include "measure.hpp"
#include "suites.hpp"

#include <heed/multi_head.hpp>

#include <memory>
#include <string>
#include <thread>

namespace bench {
namespace {

template <typename Scalar>
void decode(benchmark::State& state) {
  constexpr heed::size_type heads = 32, kv_heads = 8, d = 128;
  const heed::size_type n_kv = length_of(state), count = kv_heads * n_kv * d;
  heed::attention_options options;
  options.execution.threads = int(state.range(1));
  // Keys and values in one piece of memory, which is read whole for the yardstick too.
  const std::unique_ptr<Scalar[]> cache(new Scalar[std::size_t(2 * count)]);
  fill(cache.get(), 2 * count, 1);
  auto query = random_rows<Scalar>(heads, d, 2), out = random_rows<Scalar>(heads, d, 3);
  const auto call = [&](heed::workspace& memory) {
    heed::multi_head_attention_into(heed::bhnd(query.data(), 1, heads, 1, d),
                                    heed::bhnd(cache.get(), 1, kv_heads, n_kv, d),
                                    heed::bhnd(cache.get() + count, 1, kv_heads, n_kv, d),
                                    heed::bhnd(out.data(), 1, heads, 1, d), {}, options, memory);
    benchmark::DoNotOptimize(out.data());
  };
  report_extra_bytes(state, [&] {
    heed::workspace fresh;
    call(fresh);
  });

  const std::size_t bytes = std::size_t(2 * count) * sizeof(Scalar);
  const double before = read_bandwidth(cache.get(), bytes, options.execution.threads);
  heed::workspace memory;
  const double best = measure<Scalar>(
      state, {4.0 * double(heads * n_kv * d), options.execution.threads}, [&] { call(memory); });
  const double bandwidth =
      (std::max)(before, read_bandwidth(cache.get(), bytes, options.execution.threads));
  state.counters["GB/s"] = double(bytes) / best * 1e-9;
  state.counters["of_read_bandwidth"] = double(bytes) / best / bandwidth;
}

template <typename Scalar>
void add_decode(bool everything) {
  auto* added = benchmark::RegisterBenchmark(
      (std::string("decode/") + name_of<Scalar>() + "/heads:32/kv_heads:8/d:128").c_str(),
      decode<Scalar>);
  added->ArgNames({"n_kv", "threads"})->Unit(benchmark::kMillisecond);
  for (int threads = 1; threads <= int(std::thread::hardware_concurrency()); threads *= 2) {
    added->Args({65536, threads});
    if (everything) added->Args({4096, threads})->Args({16384, threads});
  }
}

}  // namespace

void register_decode(bool everything) {
  add_decode<float>(everything);
  add_decode<Eigen::bfloat16>(everything);
  if (everything) add_decode<Eigen::half>(everything);
}

}  // namespace bench
