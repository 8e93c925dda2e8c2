// Small calls, one head, where what surrounds the arithmetic counts.
#include "measure.hpp"
#include "suites.hpp"

#include <heed/attention.hpp>

namespace bench {
namespace {

void small(benchmark::State& state) {
  const heed::size_type n = length_of(state), d = 64;
  const auto query = random_rows<float>(n, d, 1), key = random_rows<float>(n, d, 2),
             value = random_rows<float>(n, d, 3);
  heed::rows<float> out(n, d);
  const auto call = [&](heed::workspace& memory) {
    heed::attention_into(query, key, value, out, {}, {}, memory);
    benchmark::DoNotOptimize(out.data());
  };
  report_extra_bytes(state, [&] {
    heed::workspace fresh;
    call(fresh);
  });
  heed::workspace memory;
  const double best =
      measure<float>(state, {4.0 * double(d) * double(n) * double(n)}, [&] { call(memory); });
  state.counters["best_us"] = best * 1e6;
}

}  // namespace

void register_small(bool everything) {
  auto* added = benchmark::RegisterBenchmark("small/f32/d:64", small);
  added->ArgNames({"n"})->Unit(benchmark::kMicrosecond);
  for (const heed::size_type n : {8, 16, 64, 128}) added->Args({n});
  if (everything) added->Args({1})->Args({32})->Args({256});
}

}  // namespace bench
