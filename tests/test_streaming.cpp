#include <heed/streaming.hpp>

#include <unsupported/Eigen/AutoDiff>

#include "support/refusal.hpp"
#include "support/variations.hpp"

namespace {
const auto streaming = [](const auto&... arguments) {
  return heed::streaming_attention_with_lse(arguments...);
};
}

TEST_CASE("streaming_attention is as exact as the reference: float") {
  testing::check_path_everywhere<float>(streaming);
}
TEST_CASE("streaming_attention is as exact as the reference: double") {
  testing::check_path_everywhere<double>(streaming);
}

TEST_CASE("streaming_attention: masked NaN and infinity reach nothing") {
  testing::check_hidden_values<double>(streaming);
}

TEST_CASE("streaming_attention in long double is exact to long double") {
  // No wider type to compare with. Both forms round each of n_kv + d_k terms once (see
  // test_reference.cpp).
  const testing::example<long double> e(40, 70, 32, 8);
  const auto got = e.run(streaming), same = e.reference();
  const long double bound = 2 * (70 + 6 * 32) * testing::magnitude(e.value) *
                            std::numeric_limits<long double>::epsilon() / 2;
  CHECK(testing::max_error(got.out, same.out) <= bound);
  CHECK(testing::max_error(got.lse, same.lse) <= bound);
}

TEST_CASE("streaming_attention carries derivatives") {
  using dual = Eigen::AutoDiffScalar<Eigen::Vector3d>;
  const testing::example<double> plain(9, 70, 4, 3);
  heed::rows<dual> query = plain.query.cast<dual>(), key = plain.key.cast<dual>(),
                   value = plain.value.cast<dual>();
  query(2, 1).derivatives() = Eigen::Vector3d::Unit(0);
  key(66, 3).derivatives() = Eigen::Vector3d::Unit(1);  // in the second tile of keys
  value(5, 0).derivatives() = Eigen::Vector3d::Unit(2);
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  options.softcap = 2;
  const heed::row_vector<dual> sinks =
      heed::row_vector<dual>::Constant(1, dual(0.5, Eigen::Vector3d::Zero()));
  const auto got = heed::streaming_attention_with_lse(
      query, key, value, options, heed::sinks(sinks), heed::logit_scales(sinks));
  const auto want = heed::reference_attention_with_lse(
      query, key, value, options, heed::sinks(sinks), heed::logit_scales(sinks));
  const heed::row_vector<dual> wrong =
      heed::row_vector<dual>::Constant(1, dual(1.5e308, Eigen::Vector3d::Zero()));
  testing::check_refused(
      [&] { heed::streaming_attention(query, key, value, options, heed::sinks(wrong)); },
      {"heed::streaming_attention: sinks: logit 0 is out of range"});
  for (int axis = 0; axis < 3; ++axis) {
    const auto derivative = [axis](const dual& x) { return x.derivatives()(axis); };
    const Eigen::MatrixXd got_out = got.out.unaryExpr(derivative),
                          want_out = want.out.unaryExpr(derivative);
    CHECK(want_out.norm() > 0);
    CHECK((got_out - want_out).norm() <= 1e-14 * (1 + want_out.norm()));
    const Eigen::MatrixXd got_lse = got.lse.unaryExpr(derivative),
                          want_lse = want.lse.unaryExpr(derivative);
    CHECK((got_lse - want_lse).norm() <= 1e-14 * (1 + want_lse.norm()));
  }
}

TEST_CASE("streaming_attention refuses sizes that do not fit") {
  const testing::example<double> e(3, 5, 4, 2);
  const Eigen::MatrixXd wide = Eigen::MatrixXd::Zero(5, 7);
  testing::check_refused([&] { heed::streaming_attention(e.query, wide, e.value); },
                         {"heed::streaming_attention:", "key: head_dim 7", "query's head_dim 4"});
}
