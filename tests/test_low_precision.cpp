// half and bfloat16 are inputs and outputs; scores, softmax and sums are float.

#include <heed/attention.hpp>
#include <heed/streaming.hpp>

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
