// Relative positions in keys, values and biases, and functions of weights: against their formulas,
// and where they must give the same bits.

#include <heed/heed.hpp>

#include <atomic>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/example.hpp"
#include "support/isas.hpp"
#include "support/refusal.hpp"

using heed::size_type;
using testing::example;
using testing::random_rows;

namespace {

/// A table of relative keys and one of relative values.
template <typename Scalar>
struct tables {
  size_type left, right;
  heed::rows<Scalar> keys, values;

  tables(size_type before, size_type after, size_type d_k, size_type d_v)
      : left(before),
        right(after),
        keys(random_rows<Scalar>(before + 1 + after, d_k, 51)),
        values(random_rows<Scalar>(before + 1 + after, d_v, 52)) {}
  template <typename Other>
  tables<Other> cast() const {
    tables<Other> other(left, right, keys.cols(), values.cols());
    other.keys = keys.template cast<Other>(), other.values = values.template cast<Other>();
    return other;
  }
  auto of_keys() const { return heed::relative_keys(keys, left, right); }
  auto of_values() const { return heed::relative_values(values, left, right); }
  size_type row(size_type distance) const {
    return left + (std::min)((std::max)(distance, -left), right);
  }
};

const auto halved = [](auto weight, size_type, size_type h, size_type i, size_type j) {
  using Acc = decltype(weight);
  return (i + j + h) % 3 == 0 ? Acc(weight * Acc(0.5)) : Acc(weight - Acc(0.0625));
};

heed::attention_options with_causal(heed::causal alignment) {
  heed::attention_options options;
  options.causal = alignment;
  return options;
}

}  // namespace

TEST_CASE("relative keys and values: the formula, pair by pair") {
  const example<double> e(7, 12, 5, 3);
  const tables<double> t(4, 2, 5, 3);
  heed::rows<double> scores(7, 12), out = heed::rows<double>::Zero(7, 3);
  for (size_type i = 0; i < 7; ++i)
    for (size_type j = 0; j < 12; ++j) {
      const size_type row = t.row(j - (i + 12 - 7));  // the last query stands at the last key
      scores(i, j) = e.query.row(i).dot(e.key.row(j) + t.keys.row(row)) / std::sqrt(5.0);
    }
  for (size_type i = 0; i < 7; ++i) {
    const Eigen::RowVectorXd weights =
        scores.row(i).array().exp() / scores.row(i).array().exp().sum();
    for (size_type j = 0; j < 12; ++j)
      out.row(i) += weights(j) * (e.value.row(j) + t.values.row(t.row(j - (i + 12 - 7))));
  }
  CHECK(testing::max_error(
            heed::reference_attention(e.query, e.key, e.value, {}, t.of_keys(), t.of_values()),
            out) < 1e-14L);
  CHECK(testing::max_error(
            heed::streaming_attention(e.query, e.key, e.value, {}, t.of_keys(), t.of_values()),
            out) < 1e-14L);
}

TEST_CASE("weights are those of scores with relative keys") {
  const example<float> e(9, 40, 8, 8);
  const tables<float> t(4, 2, 8, 8);
  const auto result = heed::attention_with_weights(e.query, e.key, e.value, {}, t.of_keys());
  const auto wide = e.cast<double>();
  const auto exact =
      heed::reference_attention(wide.query, wide.key, wide.value, {}, t.cast<double>().of_keys());
  const heed::rows<float> product = result.weights * e.value;
  testing::check_error(product, exact, testing::max_error(result.out, exact));
  CHECK(heed::attention_weights(e.query, e.key, result.lse, 0, 9, {}, t.of_keys()) ==
        result.weights);
  testing::check_refused(
      [&] { heed::attention_weights(e.query, e.key, result.lse, 0, 9, {}, t.of_values()); },
      {"heed::attention_weights", "relative_values"});
}

TEMPLATE_TEST_CASE("relative keys and values at the edges of vectors, blocks and tables", "", float,
                   double) {
  using wide = testing::wider_t<TestType>;
  struct shape {
    size_type n_q, n_kv, d_k, d_v, left, right;
  };
  const shape shapes[] = {{1, 1, 1, 1, 0, 0},      {3, 5, 8, 4, 0, 3},
                          {16, 16, 16, 16, 3, 0},  {17, 33, 7, 9, 0, 0},
                          {48, 128, 20, 17, 4, 4}, {49, 129, 16, 16, 200, 170},
                          {130, 130, 8, 8, 40, 1}, {5, 300, 3, 33, 2, 2},
                          {300, 40, 4, 5, 64, 64}, {4, 0, 8, 8, 2, 2}};
  for (const shape& s : shapes)
    for (const heed::causal alignment : {heed::causal::none, heed::causal::bottom_right}) {
      INFO("n_q " << s.n_q << ", n_kv " << s.n_kv << ", rows " << s.left + 1 + s.right);
      example<TestType> e(s.n_q, s.n_kv, s.d_k, s.d_v);
      e.options.causal = alignment;
      const tables<TestType> t(s.left, s.right, s.d_k, s.d_v);
      const auto exact_e = e.template cast<wide>();
      const auto exact_t = t.template cast<wide>();
      const auto exact =
          heed::reference_attention_with_lse(exact_e.query, exact_e.key, exact_e.value, e.options,
                                             exact_t.of_keys(), exact_t.of_values());
      const auto same = heed::reference_attention_with_lse(e.query, e.key, e.value, e.options,
                                                           t.of_keys(), t.of_values());
      for (const heed::isa target : testing::isas()) {
        INFO("on " << testing::name_of(target));
        heed::attention_options options = e.options;
        options.execution.target = target;
        const auto got =
            heed::attention_with_lse(e.query, e.key, e.value, options, t.of_keys(), t.of_values());
        testing::check_error(got.out, exact.out, testing::max_error(same.out, exact.out), 1);
        testing::check_error(got.lse, exact.lse, testing::max_error(same.lse, exact.lse), 1);
      }
    }
}

// Distances count from the last query at the last key; so do blocks of a longer prompt, and lanes.
TEST_CASE("a row alone, in its block, in a ragged batch and from a cache: the same bits") {
  const size_type n = 150;
  const example<float> e(n, n, 24, 10);
  const size_type rows_of_table = GENERATE(1, 2, 12, 400);
  const tables<float> t(rows_of_table / 2, rows_of_table - 1 - rows_of_table / 2, 24, 10);
  const auto options = with_causal(heed::causal::bottom_right);
  const bool weighs = GENERATE(false, true);
  const auto weight = heed::when(weighs, heed::weight_function(halved));
  for (const heed::isa target : testing::isas()) {
    INFO("on " << testing::name_of(target));
    auto on_target = options;
    on_target.execution.target = target;
    const heed::rows<float> whole =
        heed::attention(e.query, e.key, e.value, on_target, t.of_keys(), t.of_values(), weight);
    heed::kv_cache<float> cache(1, 1, 24, 10);
    heed::workspace memory;
    heed::rows<float> chunks(n, 10);
    for (size_type first = 0, count = 61; first < n; first += count, count = 1) {
      cache.append(heed::view(e.key.middleRows(first, count)),
                   heed::view(e.value.middleRows(first, count)));
      heed::cached_attention_into(heed::view(e.query.middleRows(first, count)), cache,
                                  heed::writable_view(chunks.middleRows(first, count)), {},
                                  on_target, memory, t.of_keys(), t.of_values(), weight);
    }
    CHECK(chunks == whole);
    // The function counts rows of the sequence: in a ragged batch too.
    const std::vector<int> starts{0, 9, int(n)};
    heed::rows<float> ragged(n, 10), parts(n, 10);
    heed::ragged_attention_into(heed::view(e.query), heed::view(e.key), heed::view(e.value),
                                heed::writable_view(ragged), {}, starts, starts, on_target, memory,
                                t.of_keys(), t.of_values(), weight);
    parts << heed::attention(e.query.topRows(9), e.key.topRows(9), e.value.topRows(9), on_target,
                             t.of_keys(), t.of_values(), weight),
        heed::attention(e.query.bottomRows(n - 9), e.key.bottomRows(n - 9),
                        e.value.bottomRows(n - 9), on_target, t.of_keys(), t.of_values(), weight);
    CHECK(ragged == parts);
  }
}

TEST_CASE("16-bit types take tables of floats as they are") {
  const tables<float> t(5, 3, 16, 16);
  const auto run = [&](auto type) {
    using Scalar = decltype(type);
    const example<Scalar> e(50, 70, 16, 16);
    const auto wide = e.template cast<double>();
    const auto exact_t = t.template cast<double>();
    const auto exact = heed::reference_attention_with_lse(wide.query, wide.key, wide.value, {},
                                                          exact_t.of_keys(), exact_t.of_values());
    const auto same =
        heed::reference_attention_with_lse(e.query, e.key, e.value, {}, t.of_keys(), t.of_values());
    for (const heed::isa target : testing::isas()) {
      INFO("on " << testing::name_of(target));
      heed::attention_options options;
      options.execution.target = target;
      const auto got =
          heed::attention_with_lse(e.query, e.key, e.value, options, t.of_keys(), t.of_values());
      testing::check_error(got.out, exact.out, testing::max_error(same.out, exact.out));
      testing::check_error(got.lse, exact.lse, testing::max_error(same.lse, exact.lse), 1);
    }
  };
  run(Eigen::half());
  run(Eigen::bfloat16());
}

TEST_CASE("rows of a table that no visible pair has reach no output, others those that see them") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const example<float> e(60, 60, 8, 8);
  const tables<float> clean(10, 10, 8, 8);
  tables<float> spoilt = clean;
  spoilt.keys.bottomRows(10).setConstant(nan);  // keys to the right, which causal hides
  spoilt.values.bottomRows(10).setConstant(nan);
  const auto options = with_causal(heed::causal::top_left);
  for (const heed::isa target : testing::isas()) {
    INFO("on " << testing::name_of(target));
    auto on_target = options;
    on_target.execution.target = target;
    const auto run = [&](const tables<float>& t) {
      return heed::rows<float>(
          heed::attention(e.query, e.key, e.value, on_target, t.of_keys(), t.of_values()));
    };
    CHECK(run(spoilt) == run(clean));
    for (const bool in_values : {false, true}) {
      tables<float> seen = clean;
      (in_values ? seen.values : seen.keys)(10 - 7, 2) = nan;  // seven keys before
      const heed::rows<float> out = run(seen);
      CHECK(out.topRows(7) == run(clean).topRows(7));
      for (size_type i = 7; i < 60; ++i) CHECK(std::isnan(out(i, 2)));
    }
  }
}

TEST_CASE("a table that does not fit is refused") {
  const heed::rows<float> x = random_rows<float>(6, 8, 1);
  heed::rows<float> table = random_rows<float>(5, 8, 2);
  const auto refused = [&](const auto& term, const std::vector<std::string>& words) {
    testing::check_refused([&] { heed::attention(x, x, x, {}, term); }, words);
  };
  refused(heed::relative_keys(table, 2, 3), {"heed::attention", "relative_keys", "5", "2", "3"});
  refused(heed::relative_values(table, -1, 5), {"relative_values", "5", "-1"});
  refused(heed::relative_keys(heed::rows<float>(table.leftCols(7)), 2, 2),
          {"relative_keys", "head_dim 7", "8"});
  refused(heed::relative_values(heed::rows<float>(table.leftCols(7)), 2, 2),
          {"relative_values", "head_dim 7", "8"});
  refused(heed::relative_keys(Eigen::MatrixXf(table), 2, 2), {"relative_keys", "side by side"});
  refused(heed::relative_keys(heed::bhnd(table.data(), 1, 5, 1, 8), 0, 0),
          {"relative_keys", "num_heads 5"});
  refused(heed::relative_keys(heed::bhnd(table.data(), 5, 1, 1, 8), 0, 0),
          {"relative_keys", "batch 5"});
  refused(
      heed::relative_keys(heed::tensor_view<const float>{nullptr, 1, 1, 5, 8, 0, 0, 8, 1}, 2, 2),
      {"relative_keys", "null"});
  heed::workspace memory;
  testing::check_refused(
      [&] {
        heed::attention_into(x.topRows(5), x, x, table, {}, {}, memory,
                             heed::relative_values(table, 2, 2));
      },
      {"heed::attention_into", "out", "relative_values"});
}

TEST_CASE("terms of the forward call alone are refused by the gradient") {
  const heed::rows<float> x = random_rows<float>(6, 8, 1), table = random_rows<float>(5, 8, 2);
  const heed::row_vector<float> lse = heed::row_vector<float>::Zero(6);
  const auto refused = [&](const auto& term, const std::string& name) {
    testing::check_refused([&] { heed::attention_backward(x, x, x, x, lse, x, {}, term); },
                           {"heed::attention_backward", name});
    testing::check_refused(
        [&] { heed::reference_attention_backward(x, x, x, x, lse, x, {}, term); },
        {"heed::reference_attention_backward", name});
  };
  refused(heed::relative_keys(table, 2, 2), "relative_keys");
  refused(heed::relative_values(table, 2, 2), "relative_values");
  refused(heed::weight_function(halved), "weight_function");
}

TEST_CASE("a weight function: the formula, pair by pair, and the softmax's log-sum-exp") {
  example<double> e(9, 140, 5, 3);
  e.keep = testing::random_mask(9, 140, 7);
  e.keep.row(4).setConstant(false);
  e.sinks = heed::row_vector<double>::Constant(1, 0.5);
  const auto plain =
      e.run([](const auto&... call) { return heed::attention_with_weights(call...); });
  heed::rows<double> weights = plain.weights;
  for (size_type i = 0; i < 9; ++i)
    for (size_type j = 0; j < 140; ++j)
      weights(i, j) = e.keep(i, j) ? halved(weights(i, j), 0, 0, i, j) : 0.0;
  const heed::rows<double> out = weights * e.value;
  // Sums of 140 products of numbers below 1 and 4.
  const long double bound = 140 * 4 * std::numeric_limits<double>::epsilon();
  const auto check = [&](const auto& got) {
    CHECK(testing::max_error(got.out, out) < bound);
    CHECK(testing::max_error(got.lse, plain.lse) < bound);
    CHECK(got.out.row(4).isZero(0));
  };
  const auto with_function = [&](const auto& path) {
    return e.run([&](const auto&... call) { return path(call..., heed::weight_function(halved)); });
  };
  check(with_function(
      [](const auto&... call) { return heed::reference_attention_with_lse(call...); }));
  check(with_function(
      [](const auto&... call) { return heed::streaming_attention_with_lse(call...); }));
  for (const heed::isa target : testing::isas()) {
    INFO("on " << testing::name_of(target));
    e.options.execution.target = target;
    check(with_function([](const auto&... call) { return heed::attention_with_lse(call...); }));
  }
  const auto rebuilt =
      with_function([](const auto&... call) { return heed::attention_with_weights(call...); });
  CHECK(testing::max_error(rebuilt.weights, weights) < bound);
}

// A weight that is 0 in float is no hidden pair.
TEST_CASE("a weight function is called for pairs that are seen, and for no other") {
  heed::rows<float> query = heed::rows<float>::Constant(40, 4, 8.0f),
                    key = heed::rows<float>::Constant(70, 4, 8.0f);
  key.row(3) *= -1;  // a score of -256 under a largest of 256
  const heed::rows<float> value = random_rows<float>(70, 4, 1);
  testing::mask keep = testing::random_mask(40, 70, 2);
  keep.col(3).setConstant(true);
  keep.row(7).setConstant(false);
  auto options = with_causal(heed::causal::bottom_right);
  options.scale = 1;
  options.window_left = 50;
  const auto seen = [&](size_type i, size_type j) {
    return keep(i, j) && j <= i + 30 && j >= i + 30 - 50;
  };
  size_type pairs = 0;
  for (size_type i = 0; i < 40; ++i)
    for (size_type j = 0; j < 70; ++j) pairs += seen(i, j);
  for (const heed::isa target : testing::isas()) {
    INFO("on " << testing::name_of(target));
    options.execution.target = target;
    size_type asked = 0, hidden = 0, zeros = 0;
    const auto count = [&](float weight, size_type, size_type, size_type i, size_type j) {
      ++asked, hidden += !seen(i, j), zeros += weight == 0;
      return weight;
    };
    heed::attention(query, key, value, options, heed::keep(keep), heed::weight_function(count));
    CHECK(asked == pairs);
    CHECK(hidden == 0);
    CHECK(zeros > 0);
  }
}

TEST_CASE("weights that are kept as they are give the result without a function") {
  const example<float> e(70, 300, 16, 16);
  const auto keep_weight = [](float weight, size_type, size_type, size_type, size_type) {
    return weight;
  };
  const heed::rows<float> plain = heed::attention(e.query, e.key, e.value);
  const auto exact = e.cast<double>().reference();
  for (const heed::isa target : testing::isas()) {
    heed::attention_options options;
    options.execution.target = target;
    const heed::rows<float> got =
        heed::attention(e.query, e.key, e.value, options, heed::weight_function(keep_weight));
    testing::check_error(got, exact.out, testing::max_error(plain, exact.out));
    options.execution.threads = 3;
    const heed::rows<float> threaded =
        heed::attention(e.query, e.key, e.value, options, heed::weight_function(keep_weight));
    CHECK(threaded == got);
  }
}

TEST_CASE("what a weight function throws reaches the caller") {
  const heed::rows<float> x = random_rows<float>(20, 8, 1);
  const auto fails = [](float weight, size_type, size_type, size_type i, size_type j) {
    if (i == 11 && j == 5) throw std::runtime_error("no weight");
    return weight;
  };
  CHECK_THROWS_WITH(heed::attention(x, x, x, {}, heed::weight_function(fails)), "no weight");
  CHECK_THROWS_WITH(heed::reference_attention(x, x, x, {}, heed::weight_function(fails)),
                    "no weight");
}

// transformers 4, T5Attention._relative_position_bucket for distances -130 to 130, computed by
// Python in float and in double, which agree: runs of (bucket, how many distances).
TEST_CASE("the buckets of T5") {
  const std::vector<std::pair<size_type, size_type>>
      both_ways = {{15, 40}, {14, 27}, {13, 18}, {12, 14}, {11, 9},  {10, 7},  {9, 4},  {8, 4},
                   {7, 1},   {6, 1},   {5, 1},   {4, 1},   {3, 1},   {2, 1},   {1, 1},  {0, 1},
                   {17, 1},  {18, 1},  {19, 1},  {20, 1},  {21, 1},  {22, 1},  {23, 1}, {24, 4},
                   {25, 4},  {26, 7},  {27, 9},  {28, 14}, {29, 18}, {30, 27}, {31, 40}},
      one_way = {{31, 18}, {30, 14}, {29, 12}, {28, 10}, {27, 10}, {26, 8}, {25, 7}, {24, 6},
                 {23, 6},  {22, 5},  {21, 4},  {20, 4},  {19, 3},  {18, 3}, {17, 2}, {16, 3},
                 {15, 1},  {14, 1},  {13, 1},  {12, 1},  {11, 1},  {10, 1}, {9, 1},  {8, 1},
                 {7, 1},   {6, 1},   {5, 1},   {4, 1},   {3, 1},   {2, 1},  {1, 1},  {0, 131}};
  for (const bool bidirectional : {true, false}) {
    heed::t5_options options;
    options.bidirectional = bidirectional;
    size_type distance = -130;
    for (const auto& [bucket, count] : bidirectional ? both_ways : one_way)
      for (size_type n = 0; n < count; ++n, ++distance) {
        INFO("distance " << distance);
        CHECK(heed::t5_bucket(distance, 32, options) == bucket);
      }
    CHECK(distance == 131);
  }
  CHECK(heed::t5_bucket(-1000000, 32) == 15);
  testing::check_refused([] { heed::t5_bucket(1, 3); }, {"num_buckets", "4", "3"});
  testing::check_refused([] { heed::t5_bucket(1, 32, {true, 8}); }, {"max_distance 8", "8"});
}

TEST_CASE("T5's bias adds the number of each head's bucket") {
  const size_type heads = 3, n_q = 20, n_kv = 50, d = 8;
  const heed::rows<float> table = random_rows<float>(32, heads, 4),
                          query = random_rows<float>(heads * n_q, d, 1),
                          key = random_rows<float>(heads * n_kv, d, 2),
                          value = random_rows<float>(heads * n_kv, d, 3);
  heed::t5_options causal;
  causal.bidirectional = false;
  const auto longest = heed::t5_bias(table, 60, 60, causal);
  heed::rows<float> direct(heads * n_q, n_kv);
  for (size_type h = 0; h < heads; ++h)
    for (size_type i = 0; i < n_q; ++i)
      for (size_type j = 0; j < n_kv; ++j)
        direct(h * n_q + i, j) = table(heed::t5_bucket(j - (i + n_kv - n_q), 32, causal), h);
  const auto shown = longest.view(n_q, n_kv);
  for (size_type h = 0; h < heads; ++h)
    for (size_type i = 0; i < n_q; ++i)
      for (size_type j = 0; j < n_kv; ++j) REQUIRE(shown(0, h, i, j) == direct(h * n_q + i, j));
  for (const heed::isa target : testing::isas()) {
    INFO("on " << testing::name_of(target));
    heed::attention_options options = with_causal(heed::causal::bottom_right);
    options.scale = 1;
    options.execution.target = target;
    heed::workspace memory;
    const auto run = [&](size_type rows, const auto& bias) {  // the last rows of each head
      heed::rows<float> out(heads * rows, d);
      auto q = heed::bhnd(query.data(), 1, heads, n_q, d);
      q.data += (n_q - rows) * d, q.rows = rows;
      heed::multi_head_attention_into(
          q, heed::bhnd(key.data(), 1, heads, n_kv, d), heed::bhnd(value.data(), 1, heads, n_kv, d),
          heed::bhnd(out.data(), 1, heads, rows, d), {}, options, memory, heed::bias(bias));
      return out;
    };
    auto dense = heed::bhnd(direct.data(), 1, heads, n_q, n_kv);
    CHECK(run(n_q, shown) == run(n_q, dense));
    dense.data += (n_q - 1) * n_kv, dense.rows = 1;
    CHECK(run(1, longest.view(1, n_kv)) == run(1, dense));
  }
  testing::check_refused([&] { longest.view(61, 60); }, {"distance_bias", "61", "60"});
}
