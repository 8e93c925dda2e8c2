#include <heed/delta_rule.hpp>

#include "support/example.hpp"
#include "support/fading.hpp"
#include "support/isas.hpp"
#include "support/linear_example.hpp"
#include "support/refusal.hpp"

using testing::linear_example;
using testing::random_rows;

namespace {

struct shape {
  heed::size_type length, d_k, d_v;
};
const std::vector<shape> shapes = {{0, 3, 2},    {1, 1, 1},    {2, 5, 3},    {7, 8, 9},
                                   {8, 16, 16},  {9, 17, 15},  {47, 16, 33}, {48, 4, 8},
                                   {49, 32, 31}, {64, 64, 64}, {65, 7, 48},  {129, 24, 40}};

template <typename Scalar, typename Check>
void for_each_gate(const shape& s, const Check& check) {
  for (const heed::size_type gate_cols : {heed::size_type(0), heed::size_type(1), s.d_k}) {
    CAPTURE(s.length, s.d_k, s.d_v, gate_cols);
    check([=](unsigned seed) {
      return linear_example<Scalar>(s.length, s.d_k, s.d_v, gate_cols, seed).with_beta(seed);
    });
  }
}

}  // namespace

TEMPLATE_TEST_CASE("the delta rule in chunks is as exact as token after token", "", float, double,
                   Eigen::bfloat16, Eigen::half) {
  using wide = testing::wider_t<TestType>;
  for (const shape& s : shapes)
    for_each_gate<TestType>(s, [&](const auto& make) {
      linear_example<TestType> e = make(1);
      const testing::linear_error error = testing::recurrent_error(make);
      const auto exact = e.template cast<wide>().exact();
      for (const heed::isa target : testing::isas())
        for (const heed::size_type chunk : {0, 1, 3, 8, 16, 50, 64}) {
          CAPTURE(testing::name_of(target), chunk);
          e.options.execution.target = target;
          e.options.chunk = chunk;
          testing::check_linear(e.run(false), exact, error);
        }
    });
}

TEST_CASE("the delta rule of any scalar is the recurrence") {
  for_each_gate<long double>({9, 5, 4}, [](const auto& make) {
    const linear_example<long double> e = make(1);
    const auto exact = e.exact(), got = e.run(false);
    CHECK(got.out.isApprox(exact.out, 1e-16L));
    CHECK(got.state.isApprox(exact.state, 1e-16L));
  });
}

TEST_CASE("the delta rule of a sequence in parts is that of the whole") {
  for_each_gate<double>({100, 16, 24}, [](const auto& make) {
    const linear_example<double> e = make(1);
    testing::linear_result<double> got{heed::rows<double>(100, 24), e.state};
    heed::size_type first = 0;
    for (const heed::size_type count : {1, 1, 0, 5, 48, 13, 32}) {
      got.out.middleRows(first, count) = e.run(first, count, false, got.state);
      first += count;
    }
    REQUIRE(first == 100);
    testing::check_linear(got, e.template cast<long double>().exact(),
                          testing::recurrent_error(make));
  });
}

TEST_CASE("the delta rule replaces the last value of a key") {
  // Keys are the unit vectors in turn and beta is 1: the state holds the last value of each key,
  // and a query reads it back.
  const heed::size_type d = 4, length = 11;
  heed::rows<double> key = heed::rows<double>::Zero(length, d);
  for (heed::size_type t = 0; t < length; ++t) key(t, t % d) = 1;
  const heed::rows<double> value = random_rows<double>(length, 3, 1);
  heed::rows<double> state = heed::rows<double>::Zero(d, 3);
  heed::delta_rule_options options;
  options.scale = 1;
  const heed::rows<double> out = heed::delta_rule(
      key, key, value, heed::row_vector<double>(heed::row_vector<double>::Ones(length)), options,
      heed::carry(state));
  CHECK(out.isApprox(value, 1e-15));
  for (heed::size_type t = length - d; t < length; ++t)
    CHECK(state.row(t % d).isApprox(value.row(t), 1e-15));
}

TEST_CASE("a NaN of the delta rule reaches no earlier token, strong gates leave none") {
  const heed::size_type length = 40, at = 21;
  linear_example<float> e = linear_example<float>(length, 8, 8, 8, 1).with_beta(1);
  const heed::rows<float> clean = e.run(false).out;
  e.value(at, 3) = std::numeric_limits<float>::quiet_NaN();
  const heed::rows<float> out = e.run(false).out;
  CHECK(out.topRows(at) == clean.topRows(at));
  CHECK(std::isnan(out(at, 3)));
  for (heed::size_type c = 0; c < 8; ++c)
    if (c != 3) CHECK(out.col(c) == clean.col(c));

  for (const heed::size_type gate_cols : {heed::size_type(1), heed::size_type(8)}) {
    linear_example<float> strong = linear_example<float>(length, 8, 8, gate_cols, 2).with_beta(2);
    strong.log_gate *= 400;
    for (heed::size_type t = 0; t < length; t += 7)
      strong.log_gate.row(t).setConstant(-std::numeric_limits<float>::infinity());
    const auto exact = strong.cast<double>().exact();
    testing::check_linear(strong.run(false), exact,
                          {testing::max_error(strong.run(true).out, exact.out),
                           testing::max_error(strong.run(true).state, exact.state)});
  }
}

TEMPLATE_TEST_CASE("a gate of -infinity forgets the delta rule's state, one of NaN too", "", float,
                   double) {
  for (const heed::size_type gate_cols : {heed::size_type(1), heed::size_type(8)})
    for (const heed::size_type at : {0, 1, 5, 38, 49}) {
      CAPTURE(gate_cols, at);
      testing::check_forgotten(linear_example<TestType>(50, 8, 12, gate_cols, 2).with_beta(2), at,
                               testing::isas());
    }
}

namespace {
/// Nothing but what takes away: the keys are unit vectors in turn, each of which halves its row of
/// the state.
template <typename Scalar>
linear_example<Scalar> taking_away(heed::size_type length, heed::size_type gate_cols) {
  linear_example<Scalar> e = linear_example<Scalar>(length, 16, 24, gate_cols, 1).with_beta(1);
  e.log_gate.setConstant(Scalar(-0.1));
  e.beta.setConstant(Scalar(0.5));
  e.value.setZero();
  e.key.setZero();
  for (heed::size_type t = 0; t < length; ++t) e.key(t, t % 16) = 1;
  return e;
}
}  // namespace

TEST_CASE("what the delta rule takes away becomes 0 and is nowhere near the subnormal numbers") {
  for (const heed::size_type gate_cols :
       {heed::size_type(0), heed::size_type(1), heed::size_type(16)})
    for (const bool recurrent : {false, true})
      for (const heed::isa target : testing::isas()) {
        CAPTURE(gate_cols, recurrent, testing::name_of(target));
        linear_example<float> e = taking_away<float>(100, gate_cols);
        e.options.execution.target = target;
        heed::rows<float> state = e.state;
        for (int part = 0; part < 32; ++part) {
          e.run(0, 100, recurrent, state);
          testing::check_settled(state);
          if (part == 1) CHECK((state.array() != 0).any());
        }
        CHECK((state.array() == 0).all());
      }
}

TEMPLATE_TEST_CASE("no token meets a subnormal number while the delta rule takes the state away",
                   "", float, double) {
  for (const heed::size_type gate_cols :
       {heed::size_type(0), heed::size_type(1), heed::size_type(16)})
    for (const bool recurrent : {false, true})
      for (const heed::isa target : testing::isas()) {
        if (recurrent && target != testing::isas().front()) continue;
        CAPTURE(gate_cols, recurrent, testing::name_of(target));
        linear_example<TestType> e = taking_away<TestType>(400, gate_cols);
        e.options.execution.target = target;
        e.query.setConstant(TestType(0.1));
        heed::rows<TestType> state = testing::faded_state<TestType>(16, 24);
        CHECK_FALSE(testing::meets_subnormal([&] { e.run(0, 80, recurrent, state); }));
        CHECK((state.array() == 0).any());
        CHECK((state.array() != 0).any());
        CHECK_FALSE(testing::meets_subnormal([&] { e.run(0, 400, recurrent, state); }));
        CHECK((state.array() == 0).all());
      }
}

TEST_CASE("groups of query heads share the delta rule's state") {
  const heed::size_type heads = 4, kv_heads = 2, length = 30, d = 8;
  const heed::rows<float> q = random_rows<float>(length, heads * d, 1),
                          k = random_rows<float>(length, kv_heads * d, 2) * 0.3f,
                          v = random_rows<float>(length, kv_heads * d, 3),
                          beta = random_rows<float>(length, kv_heads, 4).cwiseAbs() * 0.5f;
  heed::rows<float> out(length, heads * d);
  heed::workspace memory;
  heed::multi_head_delta_rule_into(
      heed::split_heads(heed::view(q), heads), heed::split_heads(heed::view(k), kv_heads),
      heed::split_heads(heed::view(v), kv_heads), heed::split_heads(heed::view(beta), kv_heads),
      heed::split_heads(heed::writable_view(out), heads), {}, memory);
  for (heed::size_type h = 0; h < heads; ++h) {
    const heed::row_vector<float> b = beta.col(h / 2);
    const heed::rows<float> one = heed::delta_rule(
        q.middleCols(h * d, d), k.middleCols(h / 2 * d, d), v.middleCols(h / 2 * d, d), b);
    CHECK(out.middleCols(h * d, d) == one);
  }
}

TEST_CASE("the delta rule refuses what does not fit") {
  const heed::rows<float> q = random_rows<float>(6, 4, 1), v = random_rows<float>(6, 3, 2);
  const heed::row_vector<float> beta = heed::row_vector<float>::Ones(6),
                                other = heed::row_vector<float>::Ones(5);
  testing::check_refused([&] { heed::delta_rule(q, q, v, other); },
                         {"delta_rule", "beta", "5", "6"});
  const heed::row_vector<float> none;  // would be linear attention
  testing::check_refused([&] { heed::delta_rule(q, q, v, none); },
                         {"heed::delta_rule:", "beta", "length 0", "6"});
  testing::check_refused([&] { heed::recurrent_delta_rule(q, q, v, none); },
                         {"heed::recurrent_delta_rule:", "beta", "length 0", "6"});
  testing::check_refused([&] { heed::delta_rule(q, q, random_rows<float>(7, 3, 1), beta); },
                         {"value: length", "7", "6"});
  testing::check_refused(
      [&] { heed::delta_rule(q, q, v, beta, {}, heed::log_gate(random_rows<float>(6, 2, 1))); },
      {"log_gate", "2", "4"});
  heed::rows<float> state = heed::rows<float>::Constant(3, 3, 7);
  testing::check_refused([&] { heed::delta_rule(q, q, v, beta, {}, heed::carry(state)); },
                         {"carry: rows", "3", "4"});
  CHECK((state.array() == 7).all());
}
