#include <heed/multi_head.hpp>
#include <heed/weights.hpp>

#include <limits>

#include "support/refusal.hpp"
#include "support/variations.hpp"

using heed::attention_weights;
using heed::attention_with_weights;

namespace {

/// The weights by their definition: the output of attention with the identity as the values.
template <typename Scalar>
heed::rows<Scalar> direct_weights(const testing::example<Scalar>& e) {
  testing::example<Scalar> unit = e;
  unit.value = heed::rows<Scalar>::Identity(e.key.rows(), e.key.rows());
  return unit.reference().out;
}

}  // namespace

TEMPLATE_TEST_CASE("attention_with_weights: output, lse and weights are as exact as the reference",
                   "", float, double) {
  for (const testing::sizes& s :
       {testing::sizes{1, 1, 1, 1}, {3, 0, 4, 4}, {9, 17, 16, 5}, {50, 130, 24, 8}})
    testing::for_each_variation<TestType>(
        s, [](const testing::example<TestType>& e, const std::string& name) {
          INFO(name);
          const auto got =
              e.run([](const auto&... arguments) { return attention_with_weights(arguments...); });
          testing::check_result<TestType>(got, e);
          const auto exact = direct_weights(e.template cast<testing::wider_t<TestType>>());
          // rebuilt as exp(s - lse): what is wrong in s and in lse, both of the size of a score, is
          // the relative error of a weight
          testing::check_as_exact_as(got.weights, direct_weights(e), exact,
                                     testing::magnitude(got.lse));
        });
}

TEST_CASE("weights sum to 1, and to less with a sink") {
  testing::example<double> e(20, 33, 8, 4);
  e.keep = testing::random_mask(20, 33, 2);
  e.keep.row(7).setConstant(false);
  const auto weights = [](const testing::example<double>& with) {
    return with.run([](const auto&... arguments) { return attention_with_weights(arguments...); })
        .weights;
  };
  Eigen::VectorXd sums = weights(e).rowwise().sum();
  CHECK(sums(7) == 0);
  sums(7) = 1;
  CHECK((sums.array() - 1).abs().maxCoeff() <= 40 * std::numeric_limits<double>::epsilon());
  e.sinks = Eigen::VectorXd::Constant(1, 0.5);
  CHECK(weights(e).rowwise().sum().maxCoeff() < 1);
}

TEST_CASE("weights sum to 1 however large the scores are") {
  const float size = GENERATE(
      1.0f, 100.0f, 3e6f);  // of 10, of 10^5 and of 10^14: nothing of a weight is left in s - lse
  testing::example<float> e(64, 64, 64, 4);
  e.query *= size;
  e.key *= size;
  e.options.causal = heed::causal::bottom_right;
  const auto whole = attention_with_weights(e.query, e.key, e.value, e.options);
  const auto off_one = [](const heed::rows<float>& weights) {
    return (weights.cast<double>().rowwise().sum().array() - 1).abs().maxCoeff();
  };
  CAPTURE(size);
  CHECK(off_one(whole.weights) <= 1e-6);
  CHECK(off_one(attention_weights(e.query, e.key, whole.lse, 0, 64, e.options)) <= 1e-6);
  CHECK(off_one(heed::top_keys(e.query, e.key, whole.lse, 64, e.options).weights) <= 1e-6);
  CHECK(std::abs(heed::key_mass(e.query, e.key, whole.lse, e.options).cast<double>().sum() / 64 -
                 1) <= 1e-6);
  CHECK(heed::row_entropy(e.query, e.key, whole.lse, e.options).minCoeff() >= 0);

  // dropout takes away from, and adds to, rows that summed to 1
  const auto kept =
      attention_with_weights(e.query, e.key, e.value, e.options, heed::dropout(0.5, 7)).weights;
  for (heed::size_type i = 0; i < 64; ++i)
    for (heed::size_type j = 0; j < 64; ++j)
      CHECK((kept(i, j) == 0 || kept(i, j) == 2 * whole.weights(i, j)));
}

TEST_CASE("a row of weights and the weight of its sink sum to 1") {
  testing::example<double> e(20, 33, 8, 4);
  e.query *= 300;
  const auto run = [&] {
    return e.run([](const auto&... arguments) { return attention_with_weights(arguments...); });
  };
  e.sinks = run().lse.head(1);  // which half of the first row's weight goes to
  const auto result = run();
  for (heed::size_type i = 0; i < 20; ++i) {
    const double sink = std::exp(e.sinks(0) - result.lse(i)), keys = result.weights.row(i).sum();
    // scores below 1,000 that are sums of 8 products: the lse's and the weights' own are each wrong
    // by less than 8,000 epsilon
    CHECK(std::abs(keys + sink - 1) <= 16000 * std::numeric_limits<double>::epsilon());
  }
  CHECK(result.weights.row(0).sum() == Approx(0.5));
}

TEST_CASE("weights times values are the output") {
  const testing::example<double> e(20, 33, 8, 4);
  const auto result = attention_with_weights(e.query, e.key, e.value);
  CHECK((result.weights * e.value).isApprox(result.out, 1e-14));
}

TEST_CASE("attention_weights rebuilds chosen rows") {
  testing::example<float> e(60, 40, 8, 4);
  e.options.causal = heed::causal::bottom_right;
  const auto whole = attention_with_weights(e.query, e.key, e.value, e.options);
  const heed::rows<float> some = attention_weights(e.query, e.key, whole.lse, 25, 30, e.options);
  REQUIRE(some.rows() == 30);
  REQUIRE(some.cols() == 40);
  CHECK(some.isApprox(whole.weights.middleRows(25, 30), 1e-6f));
  CHECK(attention_weights(e.query, e.key, whole.lse, 60, 0, e.options).rows() == 0);
}

TEST_CASE("a masked key has weight 0, whatever it holds") {
  testing::example<float> e(4, 6, 8, 4);
  e.key.row(2).setConstant(std::numeric_limits<float>::quiet_NaN());
  e.keep = testing::mask::Constant(4, 6, true);
  e.keep.col(2).setConstant(false);
  const auto result =
      e.run([](const auto&... arguments) { return attention_with_weights(arguments...); });
  CHECK((result.weights.col(2).array() == 0).all());
  CHECK(result.weights.allFinite());
}

TEST_CASE("key_mass, row_entropy and top_keys are sums over, and orders of, the weights") {
  testing::example<double> e(70, 40, 8, 4);
  e.options.causal = heed::causal::bottom_right;  // the first 30 rows see nothing
  const auto whole = attention_with_weights(e.query, e.key, e.value, e.options);

  const heed::row_vector<double> mass = heed::key_mass(e.query, e.key, whole.lse, e.options);
  CHECK(mass.isApprox(whole.weights.colwise().sum().transpose(), 1e-14));
  CHECK(mass.sum() == Approx(40));

  const heed::row_vector<double> entropy = heed::row_entropy(e.query, e.key, whole.lse, e.options);
  CHECK((entropy.head(31).array().abs() <= 1e-15).all());  // no key, then one
  CHECK(entropy(50) == Approx(-(whole.weights.row(50).head(21).array() *
                                whole.weights.row(50).head(21).array().log())
                                   .sum()));

  const auto top = heed::top_keys(e.query, e.key, whole.lse, 3, e.options);
  for (heed::size_type i = 0; i < 70; ++i) {
    Eigen::VectorXd row = whole.weights.row(i);
    for (heed::size_type n = 0; n < 3; ++n) {
      CHECK(top.weights(i, n) == Approx(row.maxCoeff()).margin(1e-15));
      CHECK(top.weights(i, n) == Approx(whole.weights(i, top.keys(i, n))).margin(1e-15));
      row(top.keys(i, n)) = 0;
    }
  }
  CHECK(top.keys(0, 0) == 0);  // among equals the lower number comes first
  CHECK(top.keys(0, 2) == 2);
  CHECK(heed::top_keys(e.query, e.key, whole.lse, 0, e.options).keys.cols() == 0);
  testing::check_refused([&] { heed::top_keys(e.query, e.key, whole.lse, 41, e.options); },
                         {"heed::top_keys:", "k 41", "n_kv 40"});
}

TEST_CASE("a query that looks at n keys alike has an entropy of ln n") {
  testing::example<double> e(2, 5, 4, 4);
  e.options.scale = 0;
  const heed::row_vector<double> lse = heed::row_vector<double>::Constant(2, std::log(5.0));
  CHECK(heed::row_entropy(e.query, e.key, lse, e.options)(1) == Approx(std::log(5.0)));
}

TEST_CASE("attention_weights refuses rows that are not there and an lse of another length") {
  const testing::example<float> e(4, 6, 8, 4);
  const heed::row_vector<float> lse = heed::row_vector<float>::Zero(4),
                                longer = heed::row_vector<float>::Zero(5);
  const std::string name = "heed::attention_weights:";
  testing::check_refused([&] { attention_weights(e.query, e.key, lse, 3, 2); },
                         {name, "2 rows from 3 on", "n_q 4"});
  testing::check_refused([&] { attention_weights(e.query, e.key, lse, -1, 2); },
                         {name, "2 rows from -1 on", "n_q 4"});
  testing::check_refused([&] { attention_weights(e.query, e.key, longer, 0, 1); },
                         {name, "lse: n_q 5", "n_q 4"});
  testing::check_refused([&] { attention_with_weights(e.query, e.key, e.value.topRows(5)); },
                         {"heed::attention_with_weights:", "value: kv_length 5", "6"});
}

TEST_CASE("top_keys puts weights that are NaN first, in order") {
  testing::example<float> e(2, 9, 4, 4);
  e.key(3, 0) = std::numeric_limits<float>::quiet_NaN();  // which the second row sees, so that all
                                                          // of its weights are NaN
  testing::mask keep = testing::mask::Constant(2, 9, true);
  keep(0, 3) = keep(1, 0) = keep(1, 5) = false;
  const auto lse = heed::row_vector<float>::Zero(2).eval();
  const auto top = heed::top_keys(e.query, e.key, lse, 9, e.options, heed::keep(keep));
  for (heed::size_type n = 1; n < 9; ++n) CHECK(top.weights(0, n - 1) >= top.weights(0, n));
  CHECK(top.keys.row(1) ==
        (heed::row_vector<heed::size_type>(9) << 1, 2, 3, 4, 6, 7, 8, 0, 5).finished().transpose());
}

TEST_CASE("what is rebuilt from an lse refuses one of another shape, and rows without end") {
  const testing::example<float> e(4, 5, 3, 3);
  const heed::rows<float> square = heed::rows<float>::Zero(4, 3),
                          column = heed::rows<float>::Zero(4, 1);
  const auto refuse = [&](const char* name, const auto& call) {
    testing::check_refused(call, {name, "lse: columns 3", "1"});
  };
  refuse("heed::attention_weights:", [&] { attention_weights(e.query, e.key, square, 0, 1); });
  refuse("heed::key_mass:", [&] { heed::key_mass(e.query, e.key, square); });
  refuse("heed::row_entropy:", [&] { heed::row_entropy(e.query, e.key, square); });
  refuse("heed::top_keys:", [&] { heed::top_keys(e.query, e.key, square, 1); });
  CHECK(attention_weights(e.query, e.key, column, 0, 4) ==
        attention_weights(e.query, e.key, column.transpose().row(0), 0, 4));
  constexpr heed::size_type most = (std::numeric_limits<heed::size_type>::max)();
  testing::check_refused([&] { attention_weights(e.query, e.key, column, most, most); },
                         {std::to_string(most), "n_q 4"});
}

TEMPLATE_TEST_CASE("the weights of batches and heads are those of each head", "", float,
                   Eigen::bfloat16) {
  using Acc = heed::accumulator_t<TestType>;
  const testing::example<TestType> e(2 * 4 * 40, 2 * 2 * 50, 8, 8);
  const auto query = heed::bhnd(e.query.data(), 2, 4, 40, 8),
             key = heed::bhnd(e.key.data(), 2, 2, 50, 8);
  heed::rows<TestType> out(2 * 4 * 40, 8);
  heed::row_vector<Acc> lse(2 * 4 * 40);
  heed::rows<Acc> weights = heed::rows<Acc>::Constant(2 * 4 * 40, 50, Acc(-7));
  const auto rows = heed::bhnd(lse.data(), 2, 4, 40, 1);
  const auto to = heed::bhnd(weights.data(), 2, 4, 40, 50);
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  const heed::rows<Acc> slopes = testing::random_rows<Acc>(2, 4, 1).cwiseAbs();
  const std::vector<int> lengths{50, 31}, first{4, 0};
  heed::workspace memory;
  heed::multi_head_attention_into(query, key, key, heed::bhnd(out.data(), 2, 4, 40, 8), rows,
                                  options, memory, heed::alibi(slopes), heed::key_lengths(lengths),
                                  heed::first_keys(first));
  heed::multi_head_attention_weights_into(query, key, rows, to, options, heed::alibi(slopes),
                                          heed::key_lengths(lengths), heed::first_keys(first));
  for (heed::size_type b = 0; b < 2; ++b)
    for (heed::size_type h = 0; h < 4; ++h) {
      const heed::size_type at = (b * 4 + h) * 40, begin = first[std::size_t(b)],
                            n = lengths[std::size_t(b)] - begin;
      const heed::row_vector<Acc> slope = slopes.template block<1, 1>(b, h);
      const heed::rows<Acc> got = weights.middleRows(at, 40);
      CHECK(got.middleCols(begin, n) ==
            attention_weights(e.query.middleRows(at, 40),
                              e.key.middleRows((b * 2 + h / 2) * 50 + begin, n),
                              lse.segment(at, 40), 0, 40, options, heed::alibi(slope)));
      CHECK(got.leftCols(begin).isZero(0));
      CHECK(got.rightCols(50 - begin - n).isZero(0));
    }
  testing::check_refused(
      [&] {
        heed::multi_head_attention_weights_into(query, key, rows,
                                                heed::bhnd(weights.data(), 2, 4, 50, 40));
      },
      {"heed::multi_head_attention_weights_into: weights: n_q 50", "40"});
  testing::check_refused(
      [&] {
        heed::multi_head_attention_weights_into(query, key, heed::bhnd(weights.data(), 2, 4, 40, 1),
                                                to);
      },
      {"heed::multi_head_attention_weights_into: weights (", "overlaps lse"});
  testing::check_refused(
      [&] {
        heed::row_vector<Acc> largest(4);
        heed::multi_head_attention_weights_into(query, key, rows, to, options,
                                                heed::max_logits(largest));
      },
      {"heed::multi_head_attention_weights_into: max_logits"});
}
