// One head, n queries against n keys: the formula as matrices of Eigen, the tiled form in plain
// Eigen, and the kernels.
#include "measure.hpp"
#include "suites.hpp"

#include <heed/attention.hpp>
#include <heed/streaming.hpp>

#include <cmath>
#include <string>
#include <thread>
#include <vector>

namespace bench {
namespace {

using heed::size_type;

/// The multiply-adds that the formula needs: two for each visible pair and dimension, Q K^T and P
/// V.
double needed_operations(size_type n, size_type d, bool causal) {
  const double pairs = causal ? double(n) * double(n + 1) / 2 : double(n) * double(n);
  return 4 * double(d) * pairs;
}

template <typename Scalar>
struct inputs {
  inputs(size_type n, size_type d)
      : query(random_rows<Scalar>(n, d, 1)),
        key(random_rows<Scalar>(n, d, 2)),
        value(random_rows<Scalar>(n, d, 3)),
        out(n, d) {}
  heed::rows<Scalar> query, key, value, out;
};

/// softmax(Q K^T / sqrt(d)) V with the n x n matrix in memory, as a careful user of Eigen writes
/// it: one matrix, worked on in place.
void naive(benchmark::State& state, size_type d) {
  const size_type n = length_of(state);
  inputs<float> in(n, d);
  const auto call = [&] {
    heed::rows<float> weights(n, n);
    weights.noalias() = (in.query / std::sqrt(float(d))) * in.key.transpose();
    for (size_type i = 0; i < n; ++i) {
      weights.row(i) = (weights.row(i).array() - weights.row(i).maxCoeff()).exp();
      weights.row(i) /= weights.row(i).sum();
    }
    in.out.noalias() = weights * in.value;
    benchmark::DoNotOptimize(in.out.data());
  };
  report_extra_bytes(state, call);
  measure<float>(state, {needed_operations(n, d, false)}, call);
  state.SetComplexityN(n);
}

void streaming(benchmark::State& state, size_type d) {
  const size_type n = length_of(state);
  const inputs<float> in(n, d);
  heed::rows<float> out;
  const auto call = [&] {
    out = heed::streaming_attention(in.query, in.key, in.value);
    benchmark::DoNotOptimize(out.data());
  };
  report_extra_bytes(state, call);
  measure<float>(state, {needed_operations(n, d, false)}, call);
  state.SetComplexityN(n);
}

template <typename Scalar>
void forward(benchmark::State& state, size_type d, heed::isa target) {
  const size_type n = length_of(state);
  inputs<Scalar> in(n, d);
  heed::attention_options options;
  options.causal = state.range(1) ? heed::causal::top_left : heed::causal::none;
  options.execution.threads = int(state.range(2));
  options.execution.target = target;
  const auto call = [&](heed::workspace& memory) {
    heed::attention_into(in.query, in.key, in.value, in.out, {}, options, memory);
    benchmark::DoNotOptimize(in.out.data());
  };
  report_extra_bytes(state, [&] {
    heed::workspace fresh;
    call(fresh);
  });
  heed::workspace memory;
  measure<Scalar>(state,
                  {needed_operations(n, d, state.range(1) != 0), options.execution.threads, target},
                  [&] { call(memory); });
  state.SetComplexityN(n);
}

using sizes = std::vector<size_type>;

/// All n of one kind of call: their times are fitted to c n^2.
template <typename Scalar>
void add_forward(const std::string& family, size_type d, const sizes& all_n, bool causal,
                 int threads, heed::isa target = heed::isa::automatic) {
  auto* added = benchmark::RegisterBenchmark(
      (family + "/" + name_of<Scalar>() + "/d:" + std::to_string(d)).c_str(),
      [d, target](benchmark::State& state) { forward<Scalar>(state, d, target); });
  added->ArgNames({"n", "causal", "threads"})->Unit(benchmark::kMillisecond);
  for (const size_type n : all_n) added->Args({n, causal, threads});
  if (all_n.size() > 1) added->Complexity(benchmark::oNSquared);
}

void add_plain(const std::string& family, void (*run)(benchmark::State&, size_type), size_type d,
               const sizes& all_n) {
  auto* added = benchmark::RegisterBenchmark((family + "/f32/d:" + std::to_string(d)).c_str(),
                                             [run, d](benchmark::State& state) { run(state, d); });
  added->ArgNames({"n"})->Unit(benchmark::kMillisecond)->Complexity(benchmark::oNSquared);
  for (const size_type n : all_n) added->Args({n});
}

}  // namespace

void register_forward(bool everything) {
  const sizes scaling =
      everything ? sizes{512, 1024, 2048, 4096, 8192, 16384} : sizes{512, 1024, 2048, 4096};
  const sizes fused =
      everything ? sizes{512, 1024, 2048, 4096, 8192, 16384} : sizes{512, 1024, 2048, 4096, 8192};
  const sizes one = everything ? fused : sizes{2048};
  const int cores = int(std::thread::hardware_concurrency());

  add_plain("naive", naive, 64, scaling);
  if (everything) add_plain("naive", naive, 128, scaling);
  add_plain("streaming", streaming, 64, everything ? scaling : sizes{512, 1024, 2048});
  for (const bool causal : {false, true}) {
    add_forward<float>("forward", 64, fused, causal, 1);
    add_forward<float>("forward", 128, one, causal, 1);
    add_forward<double>("forward", 64, one, causal, 1);
    add_forward<Eigen::bfloat16>("forward", 64, one, causal, 1);
    add_forward<Eigen::half>("forward", 64, one, causal, 1);
    if (everything) {
      add_forward<double>("forward", 128, one, causal, 1);
      add_forward<Eigen::bfloat16>("forward", 128, one, causal, 1);
      add_forward<Eigen::half>("forward", 128, one, causal, 1);
    }
    for (int threads = 2; threads <= cores; threads *= 2) {
      add_forward<float>("forward", 64, everything ? fused : sizes{4096}, causal, threads);
      if (everything) add_forward<float>("forward", 128, fused, causal, threads);
    }
  }
  for (const heed::isa target : heed::available_isas()) {
    if (target == heed::best_isa()) continue;
    const std::string family = std::string("forward_") + heed::name(target);
    for (const size_type d : {64, 128}) {
      if (target != heed::isa::avx512_bf16) add_forward<float>(family, d, one, false, 1, target);
      if (target >= heed::isa::avx512)
        add_forward<Eigen::bfloat16>(family, d, one, false, 1,
                                     target);  // in which these two differ
    }
  }
}

}  // namespace bench
