// Q = X W_Q and its siblings, three square weights: on the kernels, and as Eigen multiplies in the
// same build.
#include "measure.hpp"
#include "suites.hpp"

#include <heed/projection.hpp>

#include <string>
#include <thread>

namespace bench {
namespace {

template <typename Scalar>
struct layer {
  explicit layer(heed::size_type n, heed::size_type d_model)
      : x(random_rows<Scalar>(n, d_model, 1)),
        w_q(random_rows<Scalar>(d_model, d_model, 2)),
        w_k(random_rows<Scalar>(d_model, d_model, 3)),
        w_v(random_rows<Scalar>(d_model, d_model, 4)),
        operations(3 * 2 * double(n) * double(d_model) * double(d_model)) {}
  heed::rows<Scalar> x, w_q, w_k, w_v;
  double operations;
};

template <typename Scalar>
void project(benchmark::State& state) {
  const layer<Scalar> in(length_of(state), state.range(1));
  heed::attention_options options;
  options.execution.threads = int(state.range(2));
  heed::qkv<Scalar> result(0, 0, 0, 0);
  const auto call = [&] {
    result = heed::project_qkv(in.x, in.w_q, in.w_k, in.w_v, options);
    benchmark::DoNotOptimize(result.query.data());
  };
  report_extra_bytes(state, call);
  measure<Scalar>(state, {in.operations, options.execution.threads}, call);
}

void project_eigen(benchmark::State& state) {
  const layer<float> in(length_of(state), state.range(1));
  heed::rows<float> query(in.x.rows(), in.x.cols()), key(in.x.rows(), in.x.cols()),
      value(in.x.rows(), in.x.cols());
  const auto call = [&] {
    query.noalias() = in.x * in.w_q;
    key.noalias() = in.x * in.w_k;
    value.noalias() = in.x * in.w_v;
    benchmark::DoNotOptimize(value.data());
  };
  report_extra_bytes(state, call);
  measure<float>(state, {in.operations}, call);
}

template <typename Scalar>
void add_project(bool everything) {
  auto* added = benchmark::RegisterBenchmark(
      (std::string("project_qkv/") + name_of<Scalar>()).c_str(), project<Scalar>);
  added->ArgNames({"n", "d_model", "threads"})->Unit(benchmark::kMillisecond);
  for (int threads = 1; threads <= int(std::thread::hardware_concurrency()); threads *= 2) {
    added->Args({2048, 512, threads});
    if (everything) added->Args({128, 512, threads})->Args({2048, 1024, threads});
  }
}

}  // namespace

void register_projection(bool everything) {
  add_project<float>(everything);
  if (everything) {
    add_project<double>(everything);
    add_project<Eigen::bfloat16>(everything);
    add_project<Eigen::half>(everything);
  }
  benchmark::RegisterBenchmark("project_qkv_eigen/f32", project_eigen)
      ->ArgNames({"n", "d_model"})
      ->Unit(benchmark::kMillisecond)
      ->Args({2048, 512});
}

}  // namespace bench
