// What must hold for attention whatever the numbers are, for the reference, the streaming form and
// the kernels of every instruction set. Where the right answer is known from another computation,
// the tolerance is the one of every test: twice the reference's own error.

#include <heed/attention.hpp>
#include <heed/merge.hpp>
#include <heed/streaming.hpp>

#include <numeric>

#include "support/attention_on.hpp"
#include "support/variations.hpp"

using testing::example;

namespace {

/// Calls check(path) for every path.
template <typename Check>
void for_each_path(const Check& check) {
  {
    INFO("reference");
    check(
        [](const auto&... arguments) { return heed::reference_attention_with_lse(arguments...); });
  }
  {
    INFO("streaming");
    check(
        [](const auto&... arguments) { return heed::streaming_attention_with_lse(arguments...); });
  }
  for (const heed::isa target : testing::isas()) {
    INFO("attention, " << testing::name_of(target));
    check(testing::attention_on(target));
  }
}

/// `changed` must have the answer of `plain`, as exactly as the reference computes it from
/// `changed`.
template <typename Path>
void check_same_answer(const example<float>& plain, const example<float>& changed,
                       const Path& path) {
  const auto exact = plain.cast<double>().reference();
  const auto got = changed.run(path), same = changed.reference();
  testing::check_as_exact_as(got.out, same.out, exact.out);
  testing::check_as_exact_as(got.lse, same.lse, exact.lse, 1);
}

const testing::sizes shapes[] = {{1, 1, 4, 4}, {7, 9, 16, 8}, {50, 129, 24, 12}};

}  // namespace

TEST_CASE("the order of the keys does not matter") {
  for (const testing::sizes& s : shapes) {
    const example<float> plain(s.n_q, s.n_kv, s.d_k, s.d_v);
    example<float> shuffled = plain;
    std::vector<int> order(static_cast<std::size_t>(s.n_kv));
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 engine(5);
    for (std::size_t n = order.size(); n > 1; --n) std::swap(order[n - 1], order[engine() % n]);
    for (heed::size_type j = 0; j < s.n_kv; ++j) {
      shuffled.key.row(j) = plain.key.row(order[static_cast<std::size_t>(j)]);
      shuffled.value.row(j) = plain.value.row(order[static_cast<std::size_t>(j)]);
    }
    for_each_path([&](const auto& path) { check_same_answer(plain, shuffled, path); });
  }
}

TEST_CASE("the queries do not know of each other") {
  const example<float> plain(50, 70, 16, 8);
  example<float> reversed = plain;
  reversed.query = plain.query.colwise().reverse();
  for_each_path([&](const auto& path) {
    heed::attention_result<float> turned = reversed.run(path);
    turned.out = turned.out.colwise().reverse().eval();
    turned.lse = turned.lse.reverse().eval();
    testing::check_result(turned, plain);
  });
}

TEST_CASE("a constant added to a row of scores changes nothing but the lse, which grows by it") {
  for (const testing::sizes& s : shapes) {
    const example<float> plain(s.n_q, s.n_kv, s.d_k, s.d_v);
    example<float> raised = plain;
    const heed::rows<float> constants = 4 * testing::random_rows<float>(s.n_q, 1, 9);
    raised.bias = constants.replicate(1, s.n_kv);
    const auto exact = plain.cast<double>().reference();
    for_each_path([&](const auto& path) {
      const auto got = raised.run(path), same = raised.reference();
      testing::check_as_exact_as(got.out, same.out, exact.out);
      testing::check_as_exact_as(got.lse, same.lse, (exact.lse + constants.cast<double>()).eval(),
                                 1);
    });
  }
}

TEST_CASE("equal values come back") {
  for (const testing::sizes& s : shapes) {
    example<float> e(s.n_q, s.n_kv, s.d_k, s.d_v);
    e.value = testing::random_rows<float>(1, s.d_v, 3).replicate(s.n_kv, 1);
    const auto same = e.reference();
    for_each_path([&](const auto& path) {
      testing::check_as_exact_as(e.run(path).out, same.out,
                                 e.value.row(0).replicate(s.n_q, 1).eval());
    });
  }
}

TEST_CASE("an output is between the smallest and the largest value") {
  for (const testing::sizes& s : shapes) {
    const example<float> e(s.n_q, s.n_kv, s.d_k, s.d_v);
    for_each_path([&](const auto& path) {
      const heed::rows<float> out = e.run(path).out;
      // the weights sum to 1 but for a rounding of each key's
      const float slack =
          float(s.n_kv) * std::numeric_limits<float>::epsilon() * e.value.cwiseAbs().maxCoeff();
      CHECK(
          (out.colwise().maxCoeff().array() <= e.value.colwise().maxCoeff().array() + slack).all());
      CHECK(
          (out.colwise().minCoeff().array() >= e.value.colwise().minCoeff().array() - slack).all());
    });
  }
}

TEST_CASE("the first rows of a causal sequence are those of the shorter sequence") {
  for (const heed::size_type n : {1, 16, 47, 48, 49, 64, 65}) {
    CAPTURE(n);
    example<float> whole(130, 130, 16, 8);
    whole.options.causal = heed::causal::top_left;
    example<float> prefix = whole;
    prefix.query = whole.query.topRows(n);
    prefix.key = whole.key.topRows(n);
    prefix.value = whole.value.topRows(n);
    for_each_path([&](const auto& path) {
      const heed::attention_result<float> all = whole.run(path);
      heed::attention_result<float> first(n, 8);
      first.out = all.out.topRows(n);
      first.lse = all.lse.head(n);
      testing::check_result(first, prefix);
    });
  }
}

TEST_CASE(
    "the last rows of a bottom_right causal sequence are those of a run of these queries alone") {
  example<float> whole(130, 130, 16, 8);
  whole.options.causal = heed::causal::bottom_right;
  for (const heed::size_type n : {1, 5, 50}) {
    CAPTURE(n);
    example<float> last = whole;
    last.query = whole.query.bottomRows(n);
    for_each_path([&](const auto& path) {
      const heed::attention_result<float> all = whole.run(path);
      heed::attention_result<float> rows(n, 8);
      rows.out = all.out.bottomRows(n);
      rows.lse = all.lse.tail(n);
      testing::check_result(rows, last);
    });
  }
}

TEST_CASE("keys split in two parts and merged are the whole") {
  const example<float> whole(50, 129, 16, 8);
  for (const heed::size_type n : {0, 1, 64, 100, 129}) {
    CAPTURE(n);
    example<float> left = whole, right = whole;
    left.key = whole.key.topRows(n);
    left.value = whole.value.topRows(n);
    right.key = whole.key.bottomRows(129 - n);
    right.value = whole.value.bottomRows(129 - n);
    const auto exact = whole.cast<double>().reference();
    const auto same = heed::merge(left.reference(), right.reference());
    for_each_path([&](const auto& path) {
      const auto got = heed::merge(left.run(path), right.run(path));
      testing::check_as_exact_as(got.out, same.out, exact.out);
      testing::check_as_exact_as(got.lse, same.lse, exact.lse, 1);
    });
  }
}

TEST_CASE("one key takes all, whatever its score") {
  example<float> e(9, 1, 8, 4);
  e.key *= 50;
  for_each_path([&](const auto& path) {
    CHECK((e.run(path).out.rowwise() - e.value.row(0)).cwiseAbs().maxCoeff() == 0);
  });
}

TEST_CASE("scores far from 0 neither overflow nor vanish") {
  // exp of a score of 120 is infinite in float, of -120 it is 0; only differences of scores may
  // reach exp
  for (const float shift : {120.0f, -120.0f, 3000.0f, -3000.0f}) {
    CAPTURE(shift);
    example<float> e(20, 70, 8, 4);
    e.bias = heed::rows<float>::Constant(1, 70, shift);
    for_each_path([&](const auto& path) { testing::check_path(e, path); });
  }
}

TEST_CASE("weights too small for the type are 0, not NaN") {
  example<float> e(5, 70, 8, 4);
  e.key *= 300;  // scores hundreds apart
  for_each_path([&](const auto& path) {
    const auto result = e.run(path);
    CHECK(result.out.allFinite());
    CHECK(result.lse.allFinite());
    testing::check_result(result, e);
  });
}

namespace {
/// The relative error, in the Frobenius norm, of attention with normal numbers times `size` as
/// inputs, d = 128.
template <typename Scalar>
double error_of(heed::isa target, heed::size_type n_q, heed::size_type n_kv, float size = 1) {
  std::mt19937 engine(3);
  std::normal_distribution<float> normal;
  const auto draw = [&](heed::size_type n) {
    return heed::rows<Scalar>(heed::rows<float>::NullaryExpr(n, 128, [&] {
                                return size * normal(engine);
                              }).template cast<Scalar>());
  };
  const heed::rows<Scalar> query = draw(n_q), key = draw(n_kv), value = draw(n_kv);
  const heed::rows<double> query64 = query.template cast<double>(),
                           key64 = key.template cast<double>(),
                           value64 = value.template cast<double>();
  heed::attention_options options;
  options.execution.target = target;
  const heed::rows<double> got =
                               heed::attention(query, key, value, options).template cast<double>(),
                           exact = heed::attention(query64, key64, value64, options);
  return (got - exact).norm() / exact.norm();
}
}  // namespace

// The best of other libraries is at 4.7e-7 for numbers of size 1 and at 2.6e-3 in bfloat16
// (docs/performance.md).
TEST_CASE("rounding errors are as small as those of the best") {
  for (const heed::isa target : testing::isas()) {
    CAPTURE(testing::name_of(target));
    CHECK(error_of<float>(target, 2048, 2048) <= 5e-7);
    CHECK(error_of<float>(target, 2048, 2048, 8) <= 4.5e-6);
    CHECK(error_of<Eigen::bfloat16>(target, 2048, 2048) <= 2.4e-3);
  }
}

// One running sum over all keys doubles its error from 512 to 2048 keys, and again to 8192; sums of
// blocks leave the error of the scores.
TEST_CASE("rounding errors do not grow with the number of keys") {
  for (const heed::isa target : testing::isas())
    for (const heed::size_type n_q :
         {heed::size_type(4), heed::size_type(256)}) {  // decoding; blocks of queries
      CAPTURE(testing::name_of(target), n_q);
      CHECK(error_of<float>(target, n_q, 8192) <= 1.25 * error_of<float>(target, n_q, 512));
    }
}
