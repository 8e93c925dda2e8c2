// heed_bench: measures this machine, and heed on it. docs/performance.md explains the columns.
// --quick runs every row once, at small sizes.
#include "csv.hpp"
#include "measure.hpp"
#include "memory.hpp"
#include "peak.hpp"
#include "suites.hpp"

#include <heed/version.hpp>

#include <benchmark/benchmark.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace bench {
namespace {

std::atomic<long> in_use{0}, most_in_use{0};

void count(long bytes) {
  const long now = in_use.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  long most = most_in_use.load(std::memory_order_relaxed);
  while (now > most && !most_in_use.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
}

std::string giga(double per_second, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof text, "%.1f %s", per_second * 1e-9, unit);
  return text;
}

void describe_machine() {
  benchmark::AddCustomContext(
      "heed", std::to_string(HEED_VERSION_MAJOR) + "." + std::to_string(HEED_VERSION_MINOR) + "." +
                  std::to_string(HEED_VERSION_PATCH) + ", " + heed::name(heed::best_isa()));
  for (const heed::isa target : heed::available_isas()) {
    const std::string name = heed::name(target);
    benchmark::AddCustomContext("fma peak of a core, " + name,
                                giga(fma_peak<float>(target), "GFLOP/s f32, ") +
                                    giga(fma_peak<double>(target), "GFLOP/s f64"));
  }
  if (has_bf16_pairs())
    benchmark::AddCustomContext("vdpbf16ps peak of a core", giga(bf16_peak(), "GFLOP/s"));
  const std::vector<float> memory(std::size_t(64) << 20, 1.0f);
  benchmark::AddCustomContext(
      "read bandwidth of a core",
      giga(read_bandwidth(memory.data(), memory.size() * sizeof(float), 1), "GB/s"));
}

}  // namespace

#if defined(__GLIBC__)
const bool heap::counted = true;
#else
const bool heap::counted = false;
#endif
long heap::now() { return in_use.load(std::memory_order_relaxed); }
long heap::most() { return most_in_use.load(std::memory_order_relaxed); }
void heap::restart_most() { most_in_use.store(now(), std::memory_order_relaxed); }

}  // namespace bench

#if defined(__GLIBC__)
// The C library lets a program replace malloc and keeps its own reachable under these names.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);

void* malloc(std::size_t bytes) noexcept {
  void* p = __libc_malloc(bytes);
  bench::count(long(malloc_usable_size(p)));
  return p;
}
void* calloc(std::size_t count, std::size_t bytes) noexcept {
  void* p = __libc_calloc(count, bytes);
  bench::count(long(malloc_usable_size(p)));
  return p;
}
void* realloc(void* old, std::size_t bytes) noexcept {
  const long before = long(malloc_usable_size(old));
  void* p = __libc_realloc(old, bytes);
  if (p || bytes == 0) bench::count(long(malloc_usable_size(p)) - before);
  return p;
}
void* memalign(std::size_t alignment, std::size_t bytes) noexcept {
  void* p = __libc_memalign(alignment, bytes);
  bench::count(long(malloc_usable_size(p)));
  return p;
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  return memalign(alignment, bytes);
}
int posix_memalign(void** out, std::size_t alignment, std::size_t bytes) noexcept {
  void* p = memalign(alignment, bytes);
  if (!p) return ENOMEM;
  *out = p;
  return 0;
}
void free(void* p) noexcept {
  bench::count(-long(malloc_usable_size(p)));
  __libc_free(p);
}
}
#endif

int main(int argc, char** argv) {
  // Options of our own come first, so that the user's win.
  std::string short_runs = "--benchmark_min_time=0.2";
  std::vector<char*> arguments{argv[0], short_runs.data()};
  bool everything = false, list = false;
  std::string_view format, file, file_format = "json";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const auto read = [&](std::string_view name, std::string_view& value) {
      if (argument.substr(0, name.size()) == name) value = argument.substr(name.size());
    };
    read("--benchmark_format=", format);
    read("--benchmark_out=", file);
    read("--benchmark_out_format=", file_format);
    everything |= argument.rfind("--benchmark_filter=", 0) == 0;
    list |= argument.rfind("--benchmark_list_tests", 0) == 0;
    if (argument == "--quick") {
      bench::quick = everything = true;
      short_runs = "--benchmark_min_time=1e-9";
      arguments[1] = short_runs.data();
      continue;
    }
    arguments.push_back(argv[i]);
  }
  int count = int(arguments.size());
  arguments.push_back(nullptr);
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 1;

  if (!list) bench::describe_machine();
  bench::register_forward(everything);
  bench::register_layout(everything);
  bench::register_small(everything);
  bench::register_terms(everything);
  bench::register_decode(everything);
  bench::register_projection(everything);
  bench::register_linear(everything);
  bench::register_backward(everything);
  bench::register_mixed(everything);
  bench::register_cache(everything);
  bench::csv_reporter csv, csv_file;
  const std::size_t rows = benchmark::RunSpecifiedBenchmarks(
      format == "csv" ? &csv : nullptr,
      !file.empty() && file_format == "csv" ? &csv_file : nullptr);
  return rows == 0 ? 1 : 0;  // a filter that matches nothing is a mistake
}
