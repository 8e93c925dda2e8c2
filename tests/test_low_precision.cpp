// half and bfloat16 are inputs and outputs; scores, softmax and sums are float.

#include <heed/attention.hpp>
#include <heed/streaming.hpp>

#include "support/attention_on.hpp"
#include "support/variations.hpp"

TEMPLATE_TEST_CASE("attention of 16-bit numbers is as exact as the reference", "", Eigen::half, Eigen::bfloat16) {
  for (const heed::isa target : testing::isas()) {
    INFO(testing::name_of(target));
    testing::check_path_everywhere<TestType>(testing::attention_on(target));
    testing::check_hidden_values<TestType>(testing::attention_on(target));
  }
}

TEMPLATE_TEST_CASE("attention of 16-bit numbers keeps its sums in float", "", Eigen::half, Eigen::bfloat16) {
  // 4096 equal keys: a sum of weights in 16 bits would stop growing at 2048 (half) or 256 (bfloat16)
  testing::example<TestType> e(3, 4096, 8, 4);
  e.key.setZero();
  e.value.setConstant(TestType(1.5f));
  const auto result = e.run(testing::attention_on(heed::isa::automatic));
  CHECK((result.out.array() == TestType(1.5f)).all());
  CHECK(result.lse(0) == Approx(std::log(4096.0f)));
  CHECK(e.reference().lse(0) == Approx(std::log(4096.0f)));
}
