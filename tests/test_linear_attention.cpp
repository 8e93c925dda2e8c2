#include <heed/delta_rule.hpp>
#include <heed/linear_attention.hpp>

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

/// Lengths around the chunks and the tile, head dims around the lanes.
const std::vector<shape> shapes = {{0, 3, 2},    {1, 1, 1},    {2, 5, 3},    {7, 8, 9},
                                   {8, 16, 16},  {9, 17, 15},  {47, 16, 33}, {48, 4, 8},
                                   {49, 32, 31}, {64, 64, 64}, {65, 7, 48},  {129, 24, 40}};

/// Everything that linear attention can be: 3 gates x bonus or not x normaliser or not.
template <typename Scalar, typename Check>
void for_each_form(const shape& s, const Check& check) {
  for (const heed::size_type gate_cols : {heed::size_type(0), heed::size_type(1), s.d_k})
    for (const bool bonus : {false, true})
      for (const bool normalise : {false, true}) {
        CAPTURE(s.length, s.d_k, s.d_v, gate_cols, bonus, normalise);
        check([=](unsigned seed) {
          linear_example<Scalar> e(s.length, s.d_k, s.d_v, gate_cols, seed);
          if (bonus) e.with_bonus(seed);
          if (normalise) e.normalised();
          return e;
        });
      }
}

}  // namespace

TEMPLATE_TEST_CASE("linear attention in chunks is as exact as token after token", "", float, double,
                   Eigen::bfloat16, Eigen::half) {
  using wide = testing::wider_t<TestType>;
  for (const shape& s : shapes)
    for_each_form<TestType>(s, [&](const auto& make) {
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

TEST_CASE("linear attention of any scalar is the recurrence") {
  for_each_form<long double>({9, 5, 4}, [](const auto& make) {
    const linear_example<long double> e = make(1);
    const auto exact = e.exact(), got = e.run(false);
    CHECK(got.out.isApprox(exact.out, 1e-16L));
    CHECK(got.state.isApprox(exact.state, 1e-16L));
  });
}

TEST_CASE("linear attention of a sequence in parts is that of the whole") {
  for_each_form<double>({100, 16, 24}, [](const auto& make) {
    const linear_example<double> e = make(1);
    const auto exact = e.template cast<long double>().exact();
    const testing::linear_error error = testing::recurrent_error(make);
    testing::linear_result<double> got{heed::rows<double>(100, 24), e.state};
    heed::size_type first = 0;
    for (const heed::size_type count : {1, 1, 0, 5, 48, 13, 32}) {
      got.out.middleRows(first, count) = e.run(first, count, false, got.state);
      first += count;
    }
    REQUIRE(first == 100);
    testing::check_linear(got, exact, error);
  });
}

TEST_CASE("linear attention without gates is causal attention without the softmax") {
  const linear_example<double> e(30, 8, 5, 0, 1);
  const Eigen::MatrixXd weights =
      (e.query * e.key.transpose() / std::sqrt(8.0)).triangularView<Eigen::Lower>();
  CHECK(heed::linear_attention(e.query, e.key, e.value).isApprox(weights * e.value, 1e-13));
  heed::linear_attention_options zero;
  zero.scale = 0;
  CHECK((heed::linear_attention(e.query, e.key, e.value, zero).array() == 0).all());
}

TEST_CASE("retention decays by gamma from token to token") {
  const heed::row_vector<double> gates = heed::retention_log_gates<double>(3);
  for (heed::size_type h = 0; h < 3; ++h)
    CHECK(std::exp(gates(h)) == Approx(1 - std::pow(2.0, -5.0 - double(h))).epsilon(1e-15));

  const heed::size_type length = 20, d = 4;
  const heed::rows<double> q = random_rows<double>(length, 3 * d, 1),
                           k = random_rows<double>(length, 3 * d, 2),
                           v = random_rows<double>(length, 3 * d, 3);
  heed::rows<double> out(length, 3 * d);
  heed::workspace memory;
  heed::multi_head_linear_attention_into(
      heed::split_heads(heed::view(q), 3), heed::split_heads(heed::view(k), 3),
      heed::split_heads(heed::view(v), 3), heed::split_heads(heed::writable_view(out), 3), {},
      memory, heed::log_gate_per_head(gates));
  for (heed::size_type h = 0; h < 3; ++h) {
    Eigen::MatrixXd weights = q.middleCols(h * d, d) * k.middleCols(h * d, d).transpose() / 2;
    for (heed::size_type i = 0; i < length; ++i)
      for (heed::size_type j = 0; j < length; ++j)
        weights(i, j) *= j > i ? 0 : std::pow(1 - std::pow(2.0, -5.0 - double(h)), double(i - j));
    CHECK(out.middleCols(h * d, d).isApprox(weights * v.middleCols(h * d, d), 1e-13));
  }
}

TEST_CASE("strong gates neither overflow nor leave NaN") {
  const float strength = GENERATE(20.0f, 100.0f, 400.0f);  // of -3, -15 and -60
  for (const heed::size_type gate_cols : {heed::size_type(1), heed::size_type(16)})
    for (const bool bonus : {false, true}) {
      linear_example<float> e(100, 16, 8, gate_cols, 3);
      if (bonus) e.with_bonus(3);
      e.log_gate *= strength;
      for (heed::size_type t = 0; t < 100; t += 7)
        e.log_gate.row(t).setConstant(-std::numeric_limits<float>::infinity());
      for (heed::size_type t = 3; t < 100; t += 7) e.log_gate.row(t).setZero();
      const auto exact = e.cast<double>().exact();
      REQUIRE(exact.out.allFinite());
      for (const heed::isa target : testing::isas()) {
        CAPTURE(strength, gate_cols, bonus, testing::name_of(target));
        e.options.execution.target = target;
        testing::check_linear(e.run(false), exact,
                              {testing::max_error(e.run(true).out, exact.out),
                               testing::max_error(e.run(true).state, exact.state)});
      }
    }
}

TEMPLATE_TEST_CASE("a gate of -infinity forgets a state that is NaN, and keys and values too", "",
                   float, double) {
  for (const heed::size_type d_k : {heed::size_type(8), heed::size_type(17)})
    for (const heed::size_type gate_cols : {heed::size_type(1), d_k})
      for (const bool bonus : {false, true})
        for (const bool normalise : {false, true})
          for (const heed::size_type at : {0, 1, 5, 38, 49}) {
            CAPTURE(d_k, gate_cols, bonus, normalise, at);
            linear_example<TestType> e(50, d_k, 12, gate_cols, 2);
            if (bonus) e.with_bonus(2);
            if (normalise) e.normalised();
            testing::check_forgotten(e, at, testing::isas());
          }
}

TEST_CASE("a gate of -infinity for one key dimension forgets that dimension alone") {
  const heed::size_type d_k = 8, dim = 3;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const bool bonus : {false, true})
    for (const heed::size_type at : {1, 5, 20}) {
      linear_example<float> e(40, d_k, 12, d_k, 2);
      if (bonus) e.with_bonus(2);
      e.log_gate(at, dim) = -std::numeric_limits<float>::infinity();
      e.state.row(dim).setZero();
      e.key.col(dim).head(at).setZero();
      const heed::size_type rows = 40 - at - 1;
      const auto exact = e.cast<double>().exact();
      const auto same = e.run(true);
      e.state.row(dim).setConstant(nan);
      e.key(at - 1, dim) = nan;
      const auto check = [&](const testing::linear_result<float>& got) {
        CHECK(std::isnan(got.out(at - 1, 0)));
        testing::check_error(got.out.bottomRows(rows), exact.out.bottomRows(rows),
                             testing::max_error(same.out, exact.out));
        testing::check_error(got.state, exact.state, testing::max_error(same.state, exact.state));
      };
      check(e.run(true));
      for (const heed::isa target : testing::isas())
        for (const heed::size_type chunk : {0, 3, 16}) {
          CAPTURE(bonus, at, testing::name_of(target), chunk);
          e.options.execution.target = target;
          e.options.chunk = chunk;
          check(e.run(false));
        }
    }
}

TEST_CASE("a gate that is NaN is refused nowhere, and a positive one beside it everywhere") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const heed::size_type cols : {heed::size_type(1), heed::size_type(5), heed::size_type(20)}) {
    const linear_example<float> e(12, cols == 1 ? 6 : cols, 3, cols, 1);
    const auto exact = e.cast<double>().exact();
    const long double error = testing::max_error(e.run(true).out, exact.out);
    for (heed::size_type c = 0; c < cols; ++c) {
      CAPTURE(cols, c);
      linear_example<float> with = e;
      with.log_gate(4, c) = nan;
      for (const bool recurrent : {false, true}) {
        const heed::rows<float> out = with.run(recurrent).out;
        testing::check_error(out.topRows(4), exact.out.topRows(4), error);
        CHECK((out.bottomRows(8).array() != out.bottomRows(8).array()).all());
      }
      for (heed::size_type positive = 0; positive < cols; ++positive) {
        if (positive == c) continue;
        linear_example<float> wrong = with;
        wrong.log_gate(4, positive) = 0.5f;
        testing::check_refused([&] { wrong.run(false); },
                               {"log_gate", "0.5", "[0, 0, 4, " + std::to_string(positive) + "]"});
      }
    }
  }
}

TEMPLATE_TEST_CASE("a state that fades becomes 0 and is nowhere near the subnormal numbers", "",
                   float, double) {
  for (const heed::size_type gate_cols : {heed::size_type(1), heed::size_type(16)})
    for (const bool recurrent : {false, true})
      for (const heed::isa target : testing::isas()) {
        if (recurrent && target != testing::isas().front()) continue;
        CAPTURE(gate_cols, recurrent, testing::name_of(target));
        linear_example<TestType> e(400, 16, 24, gate_cols, 1);
        e.options.execution.target = target;
        e.log_gate.setConstant(sizeof(TestType) == 4 ? TestType(-0.1) : TestType(-0.8));
        e.value.setZero();
        heed::rows<TestType> state = e.state;
        for (int part = 0; part < 5; ++part) {  // within the second, of tokens 400 to 800, it
                                                // passes e^-71 (double: the third, e^-692)
          e.run(0, 400, recurrent, state);
          testing::check_settled(state);
          if (part == 0) CHECK((state.array() != 0).any());
        }
        CHECK((state.array() == 0).all());
        for (heed::size_type n = 100; n > 0; n -= 9) {  // some of them, then all
          state = e.state * std::numeric_limits<TestType>::min();
          e.run(0, n, recurrent, state);
          testing::check_settled(state);
        }
      }
}

TEMPLATE_TEST_CASE("no token meets a subnormal number while the state fades", "", float, double) {
  for (const heed::size_type gate_cols : {heed::size_type(1), heed::size_type(16)})
    for (const bool bonus : {false, true})
      for (const bool recurrent : {false, true})
        for (const heed::isa target : testing::isas()) {
          if (recurrent && target != testing::isas().front()) continue;
          CAPTURE(gate_cols, bonus, recurrent, testing::name_of(target));
          linear_example<TestType> e(300, 16, 24, gate_cols, 1);
          if (bonus) e.with_bonus(1);
          e.options.execution.target = target;
          e.log_gate.setConstant(TestType(-0.1));
          e.query.setConstant(TestType(0.1));
          e.value.setZero();
          heed::rows<TestType> state = testing::faded_state<TestType>(16, 24);
          CHECK_FALSE(testing::meets_subnormal([&] { e.run(0, 100, recurrent, state); }));
          CHECK((state.array() == 0).any());
          CHECK((state.array() != 0).any());
          CHECK_FALSE(testing::meets_subnormal([&] { e.run(100, 200, recurrent, state); }));
          CHECK((state.array() == 0).all());
          state.setConstant(std::numeric_limits<TestType>::min());  // which is then seen
          CHECK(testing::meets_subnormal([&] { e.run(0, 1, recurrent, state); }));
        }
}

TEST_CASE("a NaN reaches later tokens of its own head only") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const heed::size_type length = 40, d = 8, at = 21;
  const heed::rows<float> q = random_rows<float>(length, 2 * d, 1),
                          k = random_rows<float>(length, 2 * d, 2);
  heed::rows<float> v = random_rows<float>(length, 2 * d, 3), clean(length, 2 * d),
                    out(length, 2 * d);
  const auto run = [&](heed::rows<float>& to) {
    heed::workspace memory;
    heed::multi_head_linear_attention_into(
        heed::split_heads(heed::view(q), 2), heed::split_heads(heed::view(k), 2),
        heed::split_heads(heed::view(v), 2), heed::split_heads(heed::writable_view(to), 2), {},
        memory);
  };
  run(clean);
  v(at, 3) = nan;
  run(out);
  for (heed::size_type t = 0; t < length; ++t)
    for (heed::size_type c = 0; c < 2 * d; ++c) {
      CAPTURE(t, c);
      if (c == 3 && t >= at) {
        CHECK(std::isnan(out(t, c)));
      } else {
        CHECK(out(t, c) == clean(t, c));
      }
    }
}

TEST_CASE(
    "groups of query heads, batches and strides are the same head by head, on any number of "
    "threads") {
  const heed::size_type batch = 2, heads = 6, kv_heads = 2, length = 50, d_k = 8, d_v = 12;
  const heed::rows<float> q = random_rows<float>(batch * length, heads * d_k, 1),
                          k = random_rows<float>(batch * length, kv_heads * d_k, 2),
                          v = random_rows<float>(batch * length, kv_heads * d_v, 3),
                          g = -random_rows<float>(batch * length, kv_heads * d_k, 4).cwiseAbs();
  const auto query = heed::split_heads(heed::view(q), heads, batch),
             key = heed::split_heads(heed::view(k), kv_heads, batch),
             value = heed::split_heads(heed::view(v), kv_heads, batch),
             gate = heed::split_heads(heed::view(g), kv_heads, batch);
  heed::rows<float> first_out, first_state;
  for (const int threads : {1, 2, 5}) {
    heed::linear_attention_options options;
    options.execution.threads = threads;
    heed::workspace memory;
    // Values last to first in memory, and a column-major state: neither can be used in place.
    heed::rows<float> out = heed::rows<float>::Zero(batch * heads * d_v, length),
                      state = heed::rows<float>::Zero(batch * kv_heads * d_v, d_k);
    const heed::tensor_view<float> out_view{out.data(),           batch,        heads, length, d_v,
                                            heads * d_v * length, d_v * length, 1,     length};
    const heed::tensor_view<float> state_view{state.data(),         batch,     kv_heads, d_k, d_v,
                                              kv_heads * d_k * d_v, d_k * d_v, 1,        d_k};
    heed::multi_head_linear_attention_into(query, key, value, out_view, options, memory,
                                           heed::log_gate(gate), heed::carry(state_view));
    if (threads == 1) {
      first_out = out;
      first_state = state;
      for (heed::size_type b = 0; b < batch; ++b)
        for (heed::size_type h = 0; h < heads; ++h) {
          const heed::size_type h_kv = h / 3;
          const heed::rows<float> one =
              heed::linear_attention(q.block(b * length, h * d_k, length, d_k),
                                     k.block(b * length, h_kv * d_k, length, d_k),
                                     v.block(b * length, h_kv * d_v, length, d_v), {},
                                     heed::log_gate(g.block(b * length, h_kv * d_k, length, d_k)));
          for (heed::size_type t = 0; t < length; ++t)
            for (heed::size_type c = 0; c < d_v; ++c) REQUIRE(out_view(b, h, t, c) == one(t, c));
        }
    }
    CHECK(out == first_out);
    CHECK(state == first_state);
  }
}

TEST_CASE("a positive log_gate is refused wherever it stands") {
  linear_example<float> e(6, 20, 3, 20, 1);
  const auto refused = [&](const std::vector<std::string>& words) {
    heed::rows<float> state = e.state;
    testing::check_refused([&] { e.run(0, 6, false, state); }, words);
    testing::check_refused([&] { e.run(0, 6, true, state); }, words);
    CHECK(state == e.state);
  };
  e.log_gate(4, 17) = 100;
  refused({"linear_attention: log_gate", "100", "[0, 0, 4, 17]"});
  e.with_beta(1);
  refused({"delta_rule: log_gate", "100", "[0, 0, 4, 17]"});
  e = linear_example<float>(6, 4, 3, 1, 1);
  e.log_gate(5, 0) = 1e-6f;
  refused({"log_gate", "1e-06", "[0, 0, 5, 0]"});
  e.log_gate.setZero();
  e.log_gate(2, 0) = -std::numeric_limits<float>::infinity();
  CHECK(e.run(false).out.allFinite());
}

TEST_CASE("a term of linear attention must have the sizes of the call, an empty one too") {
  const heed::rows<float> q = random_rows<float>(6, 4, 1), k = random_rows<float>(6, 4, 2),
                          v = random_rows<float>(6, 3, 3);
  const heed::row_vector<float> none;
  heed::rows<float> no_state;
  float* const nowhere = nullptr;
  const auto refused = [&](const auto& term, const std::vector<std::string>& words) {
    testing::check_refused([&] { heed::linear_attention(q, k, v, {}, term); }, words);
    testing::check_refused([&] { heed::recurrent_linear_attention(q, k, v, {}, term); }, words);
  };
  refused(heed::log_gate(none), {"linear_attention: log_gate has length 0", "6"});
  refused(heed::log_gate(heed::tensor_view<const float>()), {"log_gate has batch 0"});
  refused(heed::log_gate(heed::bhnd(nowhere, 1, 1, 6, 4)),
          {"log_gate: a null pointer to 1 x 1 x 6 x 4"});
  refused(heed::bonus(none), {"bonus has head_dim 0", "4"});
  refused(heed::carry(no_state), {"carry: rows 0", "4"});
  refused(heed::carry(heed::bhnd(nowhere, 1, 1, 4, 3)), {"carry: a null pointer to 1 x 1 x 4 x 3"});
  testing::check_refused([&] { heed::retention_log_gates<float>(-1); },
                         {"heed::retention_log_gates: num_heads", "-1"});
  CHECK(heed::linear_attention(q, k, v, {}, heed::when(false, heed::log_gate(none))) ==
        heed::linear_attention(q, k, v));
}

TEST_CASE("linear attention refuses what does not fit, before it writes") {
  const heed::rows<float> q = random_rows<float>(6, 4, 1), k = q, v = random_rows<float>(6, 3, 2);
  const auto refused = [](const auto& call, const std::vector<std::string>& words) {
    testing::check_refused(call, words);
  };
  refused([&] { heed::linear_attention(q, random_rows<float>(6, 5, 1), v); },
          {"linear_attention", "key", "5", "4"});
  refused([&] { heed::linear_attention(q, random_rows<float>(7, 4, 1), v); },
          {"key: length", "7", "6"});
  refused([&] { heed::linear_attention(q, k, random_rows<float>(8, 3, 1)); },
          {"value: length", "8", "6"});
  refused([&] { heed::linear_attention(q, k, v, {}, heed::log_gate(random_rows<float>(6, 3, 1))); },
          {"log_gate", "head_dim", "3", "4"});
  refused([&] { heed::linear_attention(q, k, v, {}, heed::log_gate(random_rows<float>(5, 1, 1))); },
          {"log_gate", "length", "5", "6"});
  refused(
      [&] {
        heed::linear_attention(
            q, k, v, {}, heed::bonus(heed::row_vector<float>(heed::row_vector<float>::Ones(3))));
      },
      {"bonus", "3", "4"});
  heed::rows<float> state = heed::rows<float>::Constant(4, 4, 7);
  refused([&] { heed::linear_attention(q, k, v, {}, heed::carry(state)); },
          {"carry: columns", "4", "3"});
  CHECK((state.array() == 7).all());
  heed::linear_attention_options options;
  options.chunk = -1;
  refused([&] { heed::linear_attention(q, k, v, options); }, {"chunk", "-1"});
  options = {};
  options.scale = std::numeric_limits<double>::infinity();
  refused([&] { heed::linear_attention(q, k, v, options); }, {"scale", "inf"});
  options = {};
  options.execution.threads = 0;
  refused([&] { heed::linear_attention(q, k, v, options); }, {"execution.threads", "0"});
  heed::rows<float> out = heed::rows<float>::Constant(6, 6, 7);
  heed::workspace memory;
  refused(
      [&] {
        heed::multi_head_linear_attention_into(
            heed::split_heads(heed::view(random_rows<float>(6, 6, 1)), 3),
            heed::split_heads(heed::view(random_rows<float>(6, 4, 1)), 2),
            heed::split_heads(heed::view(random_rows<float>(6, 4, 1)), 2),
            heed::split_heads(heed::writable_view(out), 3), {}, memory);
      },
      {"num_heads 3", "num_kv_heads 2"});
  CHECK((out.array() == 7).all());
}

TEST_CASE(
    "linear attention and the delta rule refuse sizes whose scratch no index can count, before "
    "anything is written") {
  // Only strides of 0 make such views possible, or no tokens.
  const float number = 1;
  float out = -7;
  heed::workspace memory;
  const auto both_refuse = [&](heed::size_type tokens, heed::size_type d_k, heed::size_type d_v,
                               const std::string& scratch) {
    const heed::tensor_view<const float> q{&number, 1, 1, tokens, d_k, 0, 0, 0, 0},
        v{&number, 1, 1, tokens, d_v, 0, 0, 0, 0}, beta{&number, 1, 1, 1, 1, 0, 0, 0, 0};
    const heed::tensor_view<float> to{&out, 1, 1, tokens, d_v, 0, 0, 0, 0};
    testing::check_refused([&] { heed::multi_head_linear_attention_into(q, q, v, to, {}, memory); },
                           {"heed::multi_head_linear_attention_into: scratch for " + scratch});
    testing::check_refused([&] { heed::multi_head_delta_rule_into(q, q, v, beta, to, {}, memory); },
                           {"heed::multi_head_delta_rule_into: scratch for " + scratch});
  };
  for (const int shift : {62, 61, 57, 50}) {
    const heed::size_type d = heed::size_type{1} << shift;
    both_refuse(1, d, 1, "query's head_dim, in bytes: " + std::to_string(d));
    both_refuse(0, 1, d, "value's head_dim, in bytes: " + std::to_string(d));
  }
  const heed::size_type d = heed::size_type{1} << 30;
  both_refuse(0, d, d, "states, in bytes: " + std::to_string(d));
  CHECK(out == -7);
  CHECK(memory.capacity() == 0);
}

TEST_CASE("a workspace that has grown is enough for the next call") {
  const linear_example<float> e(100, 16, 16, 1, 1);
  heed::rows<float> out(100, 16);
  heed::workspace memory;
  const auto run = [&] {
    heed::multi_head_linear_attention_into(heed::view(e.query), heed::view(e.key),
                                           heed::view(e.value), heed::writable_view(out), {},
                                           memory, heed::log_gate(e.log_gate));
  };
  run();
  const heed::size_type grown = memory.capacity();
  run();
  CHECK(memory.capacity() == grown);
}

TEMPLATE_TEST_CASE("more value heads than key heads: as if keys and queries were repeated", "",
                   float, Eigen::bfloat16, long double) {
  using Acc = heed::accumulator_t<TestType>;
  using heed::size_type;
  const size_type n = 70, d = 12, d_v = 9, values = 6;
  // as Mamba-2's groups and Qwen3-Next have it (2, 2); a query head for each value (6, 2); more
  // (12, 3)
  const size_type heads = GENERATE(size_type(2), size_type(6), size_type(12)),
                  keys = heads == 12 ? 3 : 2, all = (std::max)(heads, values);
  const heed::rows<TestType> query = random_rows<TestType>(2 * n, heads * d, 1),
                             key = random_rows<TestType>(2 * n, keys * d, 2),
                             value = random_rows<TestType>(2 * n, values * d_v, 3);
  const heed::rows<Acc> gates = random_rows<Acc>(2 * n, values, 4).cwiseAbs() * Acc(-0.3),
                        betas = random_rows<Acc>(2 * n, values, 5).cwiseAbs() * Acc(0.1);
  const auto repeated = [&](const heed::rows<TestType>& from, size_type has, size_type wants) {
    heed::rows<TestType> to(from.rows(), wants * d);
    for (size_type h = 0; h < wants; ++h)
      to.middleCols(h * d, d) = from.middleCols(h * has / wants * d, d);
    return to;
  };
  const heed::rows<TestType> queries = repeated(query, heads, all),
                             each_key = repeated(key, keys, values);
  const auto split = [](const auto& m, size_type h) {
    return heed::split_heads(heed::view(m), h, 2);
  };
  heed::linear_attention_options options;
  for (const heed::isa target : testing::isas())
    for (const int threads : {1, 4}) {
      CAPTURE(heads, testing::name_of(target), threads);
      options.execution.target = target;
      options.execution.threads = threads;
      heed::workspace memory;
      const auto check = [&](const auto& call) {
        heed::rows<TestType> got(2 * n, all * d_v), want(2 * n, all * d_v);
        heed::rows<Acc> state = random_rows<Acc>(2 * values * d, d_v, 6), same = state;
        const auto gate = heed::log_gate(split(gates, values));
        call(split(query, heads), split(key, keys), split(value, values),
             heed::split_heads(heed::writable_view(got), all, 2), gate,
             heed::carry(heed::bhnd(state.data(), 2, values, d, d_v)));
        call(split(queries, all), split(each_key, values), split(value, values),
             heed::split_heads(heed::writable_view(want), all, 2), gate,
             heed::carry(heed::bhnd(same.data(), 2, values, d, d_v)));
        CHECK(got == want);
        CHECK(state == same);
      };
      check(
          [&](const auto& q, const auto& k, const auto& v, const auto& out, const auto&... terms) {
            heed::multi_head_linear_attention_into(q, k, v, out, options, memory, terms...);
            const heed::size_type bytes =
                heed::multi_head_linear_attention_workspace_bytes(q, k, v, options, terms...);
            CHECK(bytes <= memory.capacity());
          });
      check(
          [&](const auto& q, const auto& k, const auto& v, const auto& out, const auto&... terms) {
            heed::recurrent_multi_head_linear_attention_into(q, k, v, out, options, terms...);
          });
      heed::delta_rule_options delta;
      delta.execution = options.execution;
      check(
          [&](const auto& q, const auto& k, const auto& v, const auto& out, const auto&... terms) {
            heed::multi_head_delta_rule_into(q, k, v, split(betas, values), out, delta, memory,
                                             terms...);
          });
    }
  heed::workspace memory;
  heed::rows<TestType> out = heed::rows<TestType>::Constant(2 * n, all * d_v, TestType(7));
  const auto refuse = [&](size_type h_q, size_type h_k, size_type h_v,
                          const std::vector<std::string>& words) {
    testing::check_refused(
        [&] {
          const heed::rows<TestType> q = random_rows<TestType>(4, h_q, 1),
                                     k = random_rows<TestType>(4, h_k, 1),
                                     v = random_rows<TestType>(4, h_v, 1);
          heed::multi_head_linear_attention_into(heed::split_heads(heed::view(q), h_q),
                                                 heed::split_heads(heed::view(k), h_k),
                                                 heed::split_heads(heed::view(v), h_v),
                                                 heed::bhnd(out.data(), 1, 6, 4, 1), {}, memory);
        },
        words);
  };
  refuse(4, 4, 6, {"value: num_kv_heads 6", "key's num_kv_heads 4"});
  refuse(4, 4, 2, {"value: num_kv_heads 2", "key's num_kv_heads 4"});
  refuse(4, 2, 6, {"query: num_heads 4", "num_kv_heads 6"});
  refuse(1, 2, 6, {"query: num_heads 1", "num_kv_heads 6"});
  refuse(3, 3, 3, {"out: num_heads 6", "3"});
  CHECK((out.array() == TestType(7)).all());
}
