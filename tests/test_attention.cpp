#include <heed/attention.hpp>
#include <heed/kv_cache.hpp>

#include <type_traits>

#include "support/attention_on.hpp"
#include "support/refusal.hpp"
#include "support/variations.hpp"

using heed::attention;
using heed::attention_into;
using heed::attention_with_lse;

TEMPLATE_TEST_CASE("attention is as exact as the reference", "", float, double) {
  for (const heed::isa target : testing::isas()) {
    INFO(testing::name_of(target));
    testing::check_path_everywhere<TestType>(testing::attention_on(target));
    testing::check_hidden_values<TestType>(testing::attention_on(target));
  }
}

TEMPLATE_TEST_CASE("causal attention over lengths that no block divides", "", float, double) {
  for (const heed::isa target : testing::isas())
    for (const heed::size_type n : {200, 893})
      for (const heed::causal alignment : {heed::causal::top_left, heed::causal::bottom_right}) {
        CAPTURE(testing::name_of(target), n);
        testing::example<TestType> e(n, n, 64, 64);
        e.options.causal = alignment;
        testing::check_path(e, testing::attention_on(target));
        if (n > 200) continue;
        testing::example<TestType> longer(n, 893, 64,
                                          64);  // the last rows of a longer text, and the first
        longer.options.causal = alignment;
        testing::check_path(longer, testing::attention_on(target));
      }
}

TEST_CASE("attention computes any other scalar as the streaming form does") {
  const testing::example<long double> e(40, 70, 32, 8);
  CHECK(attention(e.query, e.key, e.value) == heed::streaming_attention(e.query, e.key, e.value));
}

TEST_CASE("attention without lse is the same") {
  const testing::example<float> e(50, 70, 16, 8);
  CHECK(attention(e.query, e.key, e.value) == attention_with_lse(e.query, e.key, e.value).out);
}

TEST_CASE("every Eigen argument is a way in") {
  const testing::example<float> e(51, 70, 64, 32);
  heed::attention_result<float> got(51, 32);
  const auto check = [&](const auto& query, const auto& key, const auto& value) {
    const auto result = attention_with_lse(query, key, value);
    got.out = result.out;
    got.lse = result.lse;
    testing::check_result(got, e);
  };
  const Eigen::MatrixXf query = e.query, key = e.key, value = e.value;  // column-major
  SECTION("column-major") { check(query, key, value); }
  SECTION("one of each order") { check(query, e.key, value); }
  SECTION("maps") {
    using map = Eigen::Map<const heed::rows<float>>;
    check(map(e.query.data(), 51, 64), map(e.key.data(), 70, 64), map(e.value.data(), 70, 32));
  }
  SECTION("maps with strides") {
    std::vector<float> memory(70 * 400, -1e30f);
    using stride = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
    using map = Eigen::Map<heed::rows<float>, Eigen::Unaligned, stride>;
    map strided_query(memory.data() + 1, 51, 64, stride(400, 2)),
        strided_key(memory.data() + 150, 70, 64, stride(400, 1));
    map strided_value(memory.data() + 250, 70, 32, stride(400, 3));
    strided_query = e.query;
    strided_key = e.key;
    strided_value = e.value;
    check(strided_query, strided_key, strided_value);
  }
  SECTION("columns of one packed matrix") {
    heed::rows<float> packed(70, 64 + 64 + 32);
    packed.setZero();
    packed.topLeftCorner(51, 64) = e.query;
    packed.middleCols(64, 64) = e.key;
    packed.rightCols(32) = e.value;
    check(packed.topLeftCorner(51, 64), packed.middleCols(64, 64), packed.rightCols(32));
  }
  SECTION("rows in reverse") {
    const heed::rows<float> reversed = e.query.colwise().reverse();
    check(reversed.colwise().reverse(), e.key, e.value);
  }
  SECTION("transposes") {
    const Eigen::MatrixXf columns = e.key.transpose();
    check(e.query, columns.transpose(), e.value);
  }
  SECTION("expressions") {
    check(0.5f * e.query + 0.5f * e.query, -(-e.key),
          e.value.cwiseProduct(heed::rows<float>::Ones(70, 32)));
  }
  SECTION("temporaries") {
    check(heed::rows<float>(e.query), heed::rows<float>(e.key), heed::rows<float>(e.value));
  }
  SECTION("fixed sizes") {
    check(heed::rows<float, 64>(e.query), heed::rows<float, 64>(e.key),
          heed::rows<float, 32>(e.value));
  }
  SECTION("a matrix fixed in both sizes") {
    const Eigen::Matrix<float, 51, 64> fixed = e.query;
    check(fixed, e.key, e.value);
  }
  SECTION("template arguments") {
    CHECK(attention<float>(e.query, e.key, e.value) == attention(e.query, e.key, e.value));
    const heed::rows<float, 32> out = attention<float, 64, 32>(e.query, e.key, e.value);
    CHECK(out == attention(e.query, e.key, e.value));
  }
}

TEST_CASE("the answer has the type that the arguments call for") {
  using dynamic = heed::rows<float>;
  using wide = heed::rows<float, 64>;
  const dynamic d = dynamic::Ones(2, 64);
  const wide w = wide::Ones(2, 64);
  const Eigen::VectorXf one = Eigen::VectorXf::Ones(2);
  CHECK((std::is_same<decltype(attention(d, d, d)), dynamic>::value));
  CHECK((std::is_same<decltype(attention(d, d, w)), wide>::value));
  CHECK((std::is_same<decltype(attention<float, 64>(d, d, d)), wide>::value));
  CHECK((std::is_same<decltype(attention<float, 64, 32>(d, d, dynamic(2, 32))),
                      heed::rows<float, 32>>::value));
  CHECK((std::is_same<decltype(attention(d, d, one)), heed::rows<float, 1>>::value));
  CHECK(attention(one, one, one) == one);
}

TEST_CASE("attention_into writes to matrices, maps and blocks of any order") {
  const testing::example<float> e(51, 70, 16, 24);
  heed::workspace memory;
  heed::attention_result<float> got(51, 24);
  SECTION("column-major") {
    Eigen::MatrixXf out(51, 24);
    attention_into(e.query, e.key, e.value, out, got.lse, e.options, memory);
    got.out = out;
  }
  SECTION("a block and a column") {
    heed::rows<float> out = heed::rows<float>::Constant(60, 30, 7);
    attention_into(e.query, e.key, e.value, out.block(2, 3, 51, 24), out.col(29).head(51),
                   e.options, memory);
    got.out = out.block(2, 3, 51, 24);
    got.lse = out.col(29).head(51);
    out.block(2, 3, 51, 24).setConstant(7);
    out.col(29).head(51).setConstant(7);
    CHECK((out.array() == 7).all());
  }
  SECTION("a map, and no lse wanted") {
    got = attention_with_lse(e.query, e.key, e.value);
    std::vector<float> numbers(51 * 24);
    Eigen::Map<heed::rows<float>> out(numbers.data(), 51, 24);
    attention_into(e.query, e.key, e.value, out, {}, e.options, memory);
    CHECK(out == got.out);
  }
  testing::check_result(got, e);
}

TEST_CASE("a workspace can be used again for another size") {
  heed::workspace memory;
  for (const testing::sizes& s :
       {testing::sizes{100, 90, 64, 32}, {3, 200, 8, 8}, {150, 10, 128, 5}}) {
    const testing::example<float> e(s.n_q, s.n_kv, s.d_k, s.d_v);
    heed::attention_result<float> got(s.n_q, s.d_v);
    attention_into(e.query, e.key, e.value, got.out, got.lse, e.options, memory);
    testing::check_result(got, e);
  }
}

TEST_CASE("attention does not depend on the number of threads, bit for bit") {
  for (const testing::sizes& s : {testing::sizes{1, 1000, 64, 64},
                                  {3, 400, 64, 64},
                                  {200, 300, 32, 16},
                                  {48, 64, 8, 8},
                                  {0, 3, 4, 4}}) {
    testing::example<float> e(s.n_q, s.n_kv, s.d_k, s.d_v);
    e.options.causal = heed::causal::bottom_right;
    const auto one = attention_with_lse(e.query, e.key, e.value, e.options);
    for (const int threads : {2, 3, 4, 61}) {
      CAPTURE(s.n_q, s.n_kv, threads);
      e.options.execution.threads = threads;
      const auto many = attention_with_lse(e.query, e.key, e.value, e.options);
      CHECK(many.out == one.out);
      CHECK(many.lse == one.lse);
    }
  }
}

TEST_CASE("attention refuses arguments that do not fit, and writes nothing") {
  const testing::example<float> e(3, 5, 4, 2);
  const Eigen::MatrixXf wide = Eigen::MatrixXf::Zero(5, 7), tall = Eigen::MatrixXf::Zero(6, 2);
  using words = std::vector<std::string>;
  const words key_words{"key: head_dim 7", "query's head_dim 4"},
      value_words{"value: kv_length 6", "key's kv_length 5"};
  const auto named = [](const std::string& function, words rest) {
    rest.push_back("heed::" + function + ":");
    return rest;
  };
  testing::check_refused([&] { attention(e.query, wide, e.value); }, named("attention", key_words));
  testing::check_refused([&] { attention(e.query, e.key, tall); }, named("attention", value_words));
  testing::check_refused([&] { attention_with_lse(e.query, wide, e.value); },
                         named("attention_with_lse", key_words));
  testing::check_refused([&] { attention<float, 8>(e.query, e.key, e.value); },
                         {"heed::attention:", "query: head_dim 4", "Dk 8"});
  testing::check_refused([&] { attention<float, 4>(e.query, e.key, e.value); },
                         {"heed::attention:", "value: head_dim 2", "Dv 4"});

  heed::workspace memory;
  heed::rows<float> out = heed::rows<float>::Constant(3, 2, -7),
                    short_out = heed::rows<float>::Constant(2, 2, -7);
  heed::rows<float> wide_out = heed::rows<float>::Constant(3, 4, -7);
  heed::row_vector<float> lse = heed::row_vector<float>::Constant(3, -7),
                          long_lse = heed::row_vector<float>::Constant(4, -7);
  const auto into = [&](const auto& query, const auto& key, const auto& value, auto& o, auto& l) {
    return [&] { attention_into(query, key, value, o, l, e.options, memory); };
  };
  testing::check_refused(into(e.query, wide, e.value, out, lse),
                         named("attention_into", key_words));
  testing::check_refused(into(e.query, e.key, tall, out, lse),
                         named("attention_into", value_words));
  testing::check_refused(into(e.query, e.key, e.value, short_out, lse),
                         named("attention_into", {"out: n_q 2", "query's n_q 3"}));
  testing::check_refused(into(e.query, e.key, e.value, wide_out, lse),
                         named("attention_into", {"out: head_dim 4", "value's head_dim 2"}));
  testing::check_refused(into(e.query, e.key, e.value, out, long_lse),
                         named("attention_into", {"lse: n_q 4", "query's n_q 3"}));
  heed::row_vector<float> no_lse;
  testing::check_refused(into(e.query, e.key, e.value, out, no_lse),
                         named("attention_into", {"lse: n_q 0", "query's n_q 3"}));
  CHECK((out.array() == -7).all());
  CHECK((short_out.array() == -7).all());
  CHECK((wide_out.array() == -7).all());
  CHECK((lse.array() == -7).all());
  CHECK((long_lse.array() == -7).all());
}

TEST_CASE("a head of no dimensions is an answer of no columns") {
  for (const heed::size_type n : {0, 1, 9, 200}) {
    const Eigen::MatrixXf none(n, 0);  // column-major: copied block by block
    const heed::rows<float> out = heed::attention(none, none, none);
    CHECK(out.rows() == n);
    CHECK(out.cols() == 0);
  }
}

TEST_CASE("an output that overlaps an input is refused, before it is written") {
  heed::rows<float> x = heed::rows<float>::Random(6, 6), y = heed::rows<float>::Random(6, 6),
                    z = heed::rows<float>::Random(6, 6);
  const heed::rows<float> before = x;
  heed::workspace memory;
  const auto refuse = [&](const auto& call, const std::string& words) {
    testing::check_refused(call, {"heed::attention_into: " + words, "1 x 1 x 6 x 6"});
    CHECK(x == before);
  };
  refuse([&] { heed::attention_into(x, y, z, x, {}, {}, memory); }, "out");
  refuse([&] { heed::attention_into(y, x, z, x, {}, {}, memory); }, "out");
  refuse([&] { heed::attention_into(y, z, x, x, {}, {}, memory); }, "out");
  refuse([&] { heed::attention_into(y, z, z, x, x.col(0), {}, memory); },
         "out (1 x 1 x 6 x 6) overlaps lse");
  testing::check_refused(
      [&] {
        heed::cached_attention_into(heed::view(y), heed::kv_cache<float>(1, 1, 6, 6),
                                    heed::writable_view(y), {}, {}, memory);
      },
      {"heed::cached_attention_into: out", "query"});
  heed::rows<float> packed =
      heed::rows<float>::Random(6, 24);  // query, key, value and out side by side
  const heed::rows<float> want =
      heed::attention(packed.leftCols(6), packed.middleCols(6, 6), packed.middleCols(12, 6));
  heed::attention_into(packed.leftCols(6), packed.middleCols(6, 6), packed.middleCols(12, 6),
                       packed.rightCols(6), {}, {}, memory);
  CHECK(packed.rightCols(6) == want);
}
