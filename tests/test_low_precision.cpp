// half and bfloat16 are inputs and outputs; scores, softmax and sums are float.

#include <heed/attention.hpp>
#include <heed/backward.hpp>
#include <heed/ragged.hpp>
#include <heed/streaming.hpp>

#include <limits>
#include <vector>

#include "support/attention_on.hpp"
#include "support/variations.hpp"

TEMPLATE_TEST_CASE("attention of 16-bit numbers is as exact as the reference", "", Eigen::half,
                   Eigen::bfloat16) {
  for (const heed::isa target : testing::isas()) {
    INFO(testing::name_of(target));
    testing::check_path_everywhere<TestType>(testing::attention_on(target));
    testing::check_hidden_values<TestType>(testing::attention_on(target));
  }
}

// Rounding to the 8 bits of a bfloat16 is wrong by up to half a unit of 2^-7 in [1, 2), 2^-7 /
// sqrt(12) in the root mean square; over numbers that are as likely in each part of the logarithm,
// whose squares are 3 / (2 ln 2) in the mean, that is 1.53e-3 of them. Values that are independent
// of each other let the error of rounded weights through as it is, so with the rounded output it
// is 1.53e-3 sqrt(2) at most.
TEST_CASE("attention of bfloat16 is wrong by its roundings and no more") {
  const testing::example<Eigen::bfloat16> e(48, 2048, 128, 128, 3);
  const heed::rows<double> exact = e.cast<double>().reference().out;
  for (const heed::isa target : testing::isas()) {
    INFO(testing::name_of(target));
    const heed::rows<double> out = e.run(testing::attention_on(target)).out.cast<double>();
    CHECK((out - exact).norm() <= 1.1 * 1.53e-3 * std::sqrt(2.0) * exact.norm());
  }
}

// d_k and d_v that are odd, rows that are columns of something else: what a kernel of pairs has to
// copy first.
TEST_CASE("attention of bfloat16 with rows that are not side by side") {
  using transposed =
      Eigen::Matrix<Eigen::bfloat16, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
  for (const heed::size_type d : {16, 33}) {
    const testing::example<Eigen::bfloat16> e(50, 131, d, d + 2, 3);
    const transposed query = e.query, key = e.key, value = e.value;
    for (const heed::isa target : testing::isas()) {
      INFO(testing::name_of(target) << ", d_k " << d);
      heed::attention_options options;
      options.execution.target = target;
      options.causal = heed::causal::top_left;
      CHECK(heed::attention(query, key, value, options) ==
            heed::attention(e.query, e.key, e.value, options));
    }
  }
}

TEMPLATE_TEST_CASE("attention of 16-bit numbers keeps its sums in float", "", Eigen::half,
                   Eigen::bfloat16) {
  // 4096 equal keys: a sum of weights in 16 bits would stop growing at 2048 (half) or 256
  // (bfloat16)
  testing::example<TestType> e(3, 4096, 8, 4);
  e.key.setZero();
  e.value.setConstant(TestType(1.5f));
  const auto result = e.run(testing::attention_on(heed::isa::automatic));
  CHECK((result.out.array() == TestType(1.5f)).all());
  CHECK(result.lse(0) == Approx(std::log(4096.0f)));
  CHECK(e.reference().lse(0) == Approx(std::log(4096.0f)));
}

namespace {

/// A bias of 16 bits, a third of it -infinity, and the same numbers as floats.
template <typename Number>
struct two_biases {
  heed::rows<Number> narrow;
  heed::rows<float> wide;

  two_biases(heed::size_type n_rows, heed::size_type n_cols)
      : narrow(testing::random_mask(n_rows, n_cols, 32)
                   .select(testing::random_rows<float>(n_rows, n_cols, 31),
                           -std::numeric_limits<float>::infinity())
                   .template cast<Number>()),
        wide(narrow.template cast<float>()) {}
};

}  // namespace

// Biases of two types are one term, which may be given once.
static_assert(!heed::detail::all_different<
              heed::detail::purpose_of<heed::detail::bias_term<float>>::type,
              heed::detail::purpose_of<heed::detail::bias_each_term<Eigen::half>>::type>);

TEMPLATE_TEST_CASE("a bias of 16 bits gives what its numbers give as floats", "", Eigen::half,
                   Eigen::bfloat16) {
  const heed::size_type n_q = GENERATE(heed::size_type(1), heed::size_type(45)), n_kv = 131;
  const testing::example<TestType> e(n_q, n_kv, 16, 16);
  const two_biases<TestType> of_pairs(n_q, n_kv), of_columns(n_kv, n_q), apart(n_q, 2 * n_kv),
      of_keys(1, n_kv), of_queries(n_q, 1);
  const auto every_second = [&](const auto& numbers) {
    using Number = typename std::decay_t<decltype(numbers)>::Scalar;
    return Eigen::Map<const heed::rows<Number>, 0, Eigen::Stride<Eigen::Dynamic, 2>>(
        numbers.data(), n_q, n_kv, Eigen::Stride<Eigen::Dynamic, 2>(2 * n_kv, 2));
  };
  heed::attention_options options;
  options.softcap = 2;
  for (const heed::isa target : testing::isas()) {
    INFO(testing::name_of(target) << ", n_q " << n_q);
    options.execution.target = target;
    const auto same = [&](const auto& narrow, const auto& wide) {
      const auto run = [&](const auto& bias) {
        return heed::attention_with_lse(e.query, e.key, e.value, options, heed::bias(bias));
      };
      const auto got = run(narrow), wanted = run(wide);
      CHECK(got.out == wanted.out);
      CHECK(got.lse == wanted.lse);
    };
    same(of_pairs.narrow, of_pairs.wide);
    same(of_columns.narrow.transpose(), of_columns.wide.transpose());
    same(every_second(apart.narrow), every_second(apart.wide));
    same(of_keys.narrow, of_keys.wide);
    same(of_queries.narrow, of_queries.wide);

    const auto forward =
        heed::attention_with_lse(e.query, e.key, e.value, options, heed::bias(of_pairs.wide));
    heed::rows<float> got_bias(n_q, n_kv), wanted_bias(n_q, n_kv);
    const auto gradient = [&](const auto& bias, heed::rows<float>& of_bias) {
      return heed::attention_backward(e.query, e.key, e.value, forward.out, forward.lse, e.query,
                                      options, heed::bias(bias), heed::grad_bias(of_bias));
    };
    const auto got = gradient(of_pairs.narrow, got_bias),
               wanted = gradient(of_pairs.wide, wanted_bias);
    CHECK(got.query == wanted.query);
    CHECK(got.key == wanted.key);
    CHECK(got.value == wanted.value);
    CHECK(got_bias == wanted_bias);
  }
  const auto direct = [&](const auto& bias) {
    return heed::reference_attention(e.query, e.key, e.value, options, heed::bias(bias));
  };
  CHECK(direct(of_pairs.narrow) == direct(of_pairs.wide));
}

TEMPLATE_TEST_CASE("each sequence may have a bias of 16 bits", "", Eigen::half, Eigen::bfloat16) {
  const testing::example<TestType> e(50, 50, 16, 16);
  const two_biases<TestType> first(20, 20), second(30, 30);
  const std::vector<int> starts{0, 20, 50};
  const auto run = [&](const auto& biases) {
    heed::rows<TestType> out(50, 16);
    heed::workspace memory;
    heed::ragged_attention_into(heed::view(e.query), heed::view(e.key), heed::view(e.value),
                                heed::writable_view(out), {}, starts, starts, {}, memory,
                                heed::bias_each(biases));
    return out;
  };
  CHECK(run(std::vector<heed::tensor_view<const TestType>>{heed::view(first.narrow),
                                                           heed::view(second.narrow)}) ==
        run(std::vector<heed::tensor_view<const float>>{heed::view(first.wide),
                                                        heed::view(second.wide)}));
}
