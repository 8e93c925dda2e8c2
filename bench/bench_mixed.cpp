// A server's step: one prompt of 512 tokens and 31 sequences that write a token each, 2,048 tokens
// long, in one call; beside the two kinds in a call each.
#include "measure.hpp"
#include "suites.hpp"

#include <heed/cached_attention.hpp>
#include <heed/paged_kv_cache.hpp>

#include <string>
#include <thread>
#include <vector>

namespace bench {
namespace {

using heed::size_type;

constexpr size_type heads = 32, kv_heads = 8, d = 128, page = 16;

void mixed(benchmark::State& state) {
  const int threads = int(state.range(0));
  const size_type prompt = quick ? 64 : 512, length = quick ? 100 : 2048, writers = 31;
  heed::paged_kv_cache<float> cache((prompt + writers * length) / page + writers + 1, page,
                                    kv_heads, d, d);
  const heed::rows<float> tokens = random_rows<float>(length, kv_heads * d, 1);
  const auto append = [&](size_type count) {
    const size_type name = cache.add_sequence();
    auto some = heed::split_heads(heed::view(tokens), kv_heads);
    some.rows = count;
    cache.append(name, some, some);
    return name;
  };
  std::vector<size_type> reader{append(prompt)}, writing, all = reader;
  for (size_type w = 0; w < writers; ++w) writing.push_back(append(length));
  all.insert(all.end(), writing.begin(), writing.end());
  std::vector<size_type> starts{0};
  for (const size_type name : all)
    starts.push_back(starts.back() + (name == reader[0] ? prompt : 1));

  const heed::rows<float> query = random_rows<float>(starts.back(), heads * d, 2);
  heed::rows<float> out(query.rows(), query.cols());
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  options.execution.threads = threads;
  const auto part = [&](auto view, size_type first, size_type rows) {
    view.data += first * view.row_stride;
    view.rows = rows;
    return view;
  };
  const auto q = heed::split_heads(heed::view(query), heads);
  const auto o = heed::split_heads(heed::writable_view(out), heads);
  heed::workspace memory, memory_of_parts;
  compare(
      state, "of_sum",
      [&] {
        heed::ragged_cached_attention_into(q, cache.batch(all), o, {}, starts, options, memory);
        benchmark::DoNotOptimize(out.data());
      },
      [&] {
        heed::cached_attention_into(part(q, 0, prompt), cache.batch(reader), part(o, 0, prompt), {},
                                    options, memory_of_parts);
        const std::vector<size_type> one_each = [&] {
          std::vector<size_type> s;
          for (size_type w = 0; w <= writers; ++w) s.push_back(w);
          return s;
        }();
        heed::ragged_cached_attention_into(part(q, prompt, writers), cache.batch(writing),
                                           part(o, prompt, writers), {}, one_each, options,
                                           memory_of_parts);
        benchmark::DoNotOptimize(out.data());
      });
  state.counters["workspace_bytes"] = double(memory.capacity());
}

}  // namespace

void register_mixed(bool) {
  auto* added = benchmark::RegisterBenchmark("mixed/f32/prompt:512/writers:31/length:2048", mixed);
  added->ArgName("threads")->UseManualTime()->Unit(benchmark::kMillisecond)->Arg(1);
  const int cores = int(std::thread::hardware_concurrency());
  for (int threads = 2; threads <= cores; threads *= 2) added->Arg(threads);
}

}  // namespace bench
