// Sequences one after the other in one batch entry, in every linear form: each is as if it were
// alone.

#include <heed/causal_conv.hpp>
#include <heed/delta_rule.hpp>
#include <heed/linear_attention.hpp>
#include <heed/rwkv7.hpp>
#include <heed/selective_scan.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "support/example.hpp"
#include "support/isas.hpp"
#include "support/refusal.hpp"

using heed::size_type;
using testing::random_rows;

namespace {

constexpr size_type heads = 2, d = 8;
/// None, one token, a few, more than a chunk, none, one.
const std::vector<std::int32_t> starts{0, 0, 1, 6, 120, 120, 121};
const size_type total = starts.back(), count = size_type(starts.size()) - 1;

/// Rows of all tokens: [1, H, total, cols], or those of sequence s alone.
template <typename Scalar>
heed::tensor_view<const Scalar> of(const heed::rows<Scalar>& all, size_type first, size_type n) {
  return heed::bnhd(all.data() + first * all.cols(), 1, n, heads, all.cols() / heads);
}
template <typename Scalar>
heed::tensor_view<Scalar> into(heed::rows<Scalar>& all, size_type first, size_type n) {
  return heed::bnhd(all.data() + first * all.cols(), 1, n, heads, all.cols() / heads);
}
template <typename Scalar>
struct inputs {
  using Acc = heed::accumulator_t<Scalar>;
  heed::rows<Scalar> a = random_rows<Scalar>(total, heads*d, 1),
                     b = random_rows<Scalar>(total, heads*d, 2),
                     c = random_rows<Scalar>(total, heads*d, 3);
  heed::rows<Acc> gates = random_rows<Acc>(total, heads*d, 4).cwiseAbs() * Acc(-0.3),
                  gate_of_head = random_rows<Acc>(total, heads, 5).cwiseAbs() * Acc(-0.3),
                  betas = random_rows<Acc>(total, heads, 6).cwiseAbs() * Acc(0.1),
                  decay = gates.array().exp();
};

/// call(first, n, out, terms...) with the states after every `tokens` tokens, and in calls of so
/// many.
template <typename Scalar, typename Call>
void check_states(size_type tokens, bool carries, const Call& call) {
  using Acc = heed::accumulator_t<Scalar>;
  const auto parts = [&](size_type s) {
    return (starts[std::size_t(s) + 1] - starts[std::size_t(s)] + tokens - 1) / tokens;
  };
  size_type entries = 0;
  for (size_type s = 0; s < count; ++s) entries += parts(s);
  heed::rows<Scalar> got = heed::rows<Scalar>::Constant(total, heads * d, Scalar(-7)), want = got;
  heed::rows<Acc> states = heed::rows<Acc>::Constant(entries * heads * d, d, Acc(-7)),
                  carried = random_rows<Acc>(count * heads * d, d, 7), now = carried;
  if (!carries) now.setZero();
  call(0, total, into(got, 0, total), heed::sequence_starts(starts),
       heed::when(carries, heed::carry(heed::bhnd(carried.data(), count, heads, d, d))),
       heed::chunk_states(heed::bhnd(states.data(), entries, heads, d, d), tokens));
  size_type entry = 0;
  for (size_type s = 0; s < count; ++s) {
    auto one = now.middleRows(s * heads * d, heads * d);
    for (size_type part = 0; part < parts(s); ++part, ++entry) {
      const size_type first = starts[std::size_t(s)] + part * tokens,
                      n = (std::min)(tokens, starts[std::size_t(s) + 1] - first);
      call(first, n, into(want, first, n), heed::carry(heed::bhnd(one.data(), 1, heads, d, d)));
      CHECK(states.middleRows(entry * heads * d, heads * d) == one);
    }
  }
  CHECK(got == want);
  if (carries) CHECK(carried == now);
}

/// call(first, n, out, carry, starts...) for all sequences at once, and for each alone.
template <typename Scalar, typename Call>
void check_alone(size_type state_rows, const Call& call) {
  using Acc = heed::accumulator_t<Scalar>;
  heed::rows<Scalar> got = heed::rows<Scalar>::Constant(total, heads * d, Scalar(-7)), want = got,
                     fresh = got;
  heed::rows<Acc> state = random_rows<Acc>(count * heads * state_rows, d, 7), states = state;
  call(0, total, into(got, 0, total),
       heed::carry(heed::bhnd(state.data(), count, heads, state_rows, d)),
       heed::sequence_starts(starts));
  call(0, total, into(fresh, 0, total), heed::sequence_starts(starts));
  for (size_type s = 0; s < count; ++s) {
    const size_type first = starts[std::size_t(s)], n = starts[std::size_t(s) + 1] - first;
    call(first, n, into(want, first, n),
         heed::carry(
             heed::bhnd(states.data() + s * heads * state_rows * d, 1, heads, state_rows, d)));
  }
  CHECK(got == want);
  CHECK(state == states);
  states.setZero();
  for (size_type s = 0; s < count; ++s) {
    const size_type first = starts[std::size_t(s)], n = starts[std::size_t(s) + 1] - first;
    call(first, n, into(want, first, n),
         heed::carry(
             heed::bhnd(states.data() + s * heads * state_rows * d, 1, heads, state_rows, d)));
  }
  CHECK(fresh == want);  // without a carry each begins with zeros
}

}  // namespace

TEMPLATE_TEST_CASE("sequences of linear attention and the delta rule are as if they were alone", "",
                   float, Eigen::bfloat16, long double) {
  const inputs<TestType> x;
  for (const heed::isa target : testing::isas())
    for (const int threads : {1, 3}) {
      CAPTURE(testing::name_of(target), threads);
      heed::linear_attention_options options;
      options.execution.target = target;
      options.execution.threads = threads;
      heed::delta_rule_options delta;
      delta.execution = options.execution;
      heed::workspace memory;
      check_alone<TestType>(
          d, [&](size_type first, size_type n, const auto& out, const auto&... terms) {
            heed::multi_head_linear_attention_into(of(x.a, first, n), of(x.b, first, n),
                                                   of(x.c, first, n), out, options, memory,
                                                   heed::log_gate(of(x.gates, first, n)), terms...);
            const size_type bytes = heed::multi_head_linear_attention_workspace_bytes(
                of(x.a, first, n), of(x.b, first, n), of(x.c, first, n), options, terms...);
            CHECK(bytes <= memory.capacity());
          });
      check_alone<TestType>(
          d, [&](size_type first, size_type n, const auto& out, const auto&... terms) {
            heed::recurrent_multi_head_linear_attention_into(
                of(x.a, first, n), of(x.b, first, n), of(x.c, first, n), out, options,
                heed::log_gate(of(x.gate_of_head, first, n)), terms...);
          });
      check_alone<TestType>(
          d, [&](size_type first, size_type n, const auto& out, const auto&... terms) {
            heed::multi_head_delta_rule_into(
                of(x.a, first, n), of(x.b, first, n), of(x.c, first, n), of(x.betas, first, n), out,
                delta, memory, heed::log_gate(of(x.gate_of_head, first, n)), terms...);
          });
    }
}

TEMPLATE_TEST_CASE("the states after every so many tokens are those of calls of so many", "", float,
                   Eigen::bfloat16, long double) {
  const inputs<TestType> x;
  const size_type tokens = GENERATE(size_type(1), size_type(32), size_type(50), size_type(1000));
  for (const heed::isa target : testing::isas()) {
    CAPTURE(testing::name_of(target), tokens);
    heed::linear_attention_options options;
    options.execution.target = target;
    options.execution.threads = 3;
    heed::delta_rule_options delta;
    delta.execution = options.execution;
    heed::workspace memory;
    check_states<TestType>(
        tokens, true, [&](size_type first, size_type n, const auto& out, const auto&... terms) {
          heed::multi_head_linear_attention_into(of(x.a, first, n), of(x.b, first, n),
                                                 of(x.c, first, n), out, options, memory,
                                                 heed::log_gate(of(x.gates, first, n)), terms...);
        });
    check_states<TestType>(
        tokens, false, [&](size_type first, size_type n, const auto& out, const auto&... terms) {
          heed::multi_head_delta_rule_into(of(x.a, first, n), of(x.b, first, n), of(x.c, first, n),
                                           of(x.betas, first, n), out, delta, memory,
                                           heed::log_gate(of(x.gate_of_head, first, n)), terms...);
        });
  }
}

TEST_CASE(
    "states after so many tokens are refused where they do not fit, before anything is written") {
  const heed::rows<float> x = random_rows<float>(10, d, 1);
  heed::rows<float> states = heed::rows<float>::Constant(3 * d, d, 7);
  const auto refuse = [&](const heed::tensor_view<float>& view, size_type tokens,
                          const std::vector<std::string>& words) {
    auto carried = states.topRows(d);
    testing::check_refused(
        [&] {
          heed::linear_attention(x, x, x, {}, heed::chunk_states(view, tokens),
                                 heed::carry(carried));
        },
        words);
    CHECK((states.array() == 7).all());
  };
  const auto of_entries = [&](size_type n) { return heed::bhnd(states.data(), n, 1, d, d); };
  refuse(of_entries(3), 0, {"heed::linear_attention: chunk_states: tokens", "0"});
  refuse(of_entries(3), 5, {"chunk_states: batch 3", "chunks", "2"});
  refuse(heed::bhnd(states.data(), 2, 1, d, d + 1), 5, {"chunk_states: columns 9", "8"});
  refuse(of_entries(2), 5, {"carry (", " overlaps chunk_states ("});
}

TEMPLATE_TEST_CASE("sequences of rwkv7, the scan and the convolution are as if they were alone", "",
                   float, Eigen::half) {
  using Acc = heed::accumulator_t<TestType>;
  const inputs<TestType> x;
  const heed::rows<Acc> rates = random_rows<Acc>(heads * d, d, 8).cwiseAbs() * Acc(-0.5),
                        taps = random_rows<Acc>(heads * d, 4, 9);
  const auto rate = heed::bhnd(rates.data(), 1, heads, d, d);
  for (const int threads : {1, 3}) {
    CAPTURE(threads);
    heed::workspace memory;
    heed::rwkv7_options rwkv;
    rwkv.execution.threads = threads;
    check_alone<TestType>(
        d, [&](size_type first, size_type n, const auto& out, const auto&... terms) {
          heed::multi_head_rwkv7_into(of(x.a, first, n), of(x.decay, first, n), of(x.b, first, n),
                                      of(x.c, first, n), of(x.c, first, n), of(x.b, first, n), out,
                                      rwkv, memory, terms...);
        });
    heed::selective_scan_options scan;
    scan.softplus = true;
    scan.execution.threads = threads;
    check_alone<TestType>(
        d, [&](size_type first, size_type n, const auto& out, const auto&... terms) {
          heed::selective_scan_into(of(x.a, first, n), of(x.b, first, n), rate, of(x.c, first, n),
                                    of(x.a, first, n), out, scan, memory,
                                    heed::silu_gate(of(x.b, first, n)), terms...);
        });
    heed::causal_conv_options conv;
    conv.execution.threads = threads;
    check_alone<TestType>(
        3, [&](size_type first, size_type n, const auto& out, const auto&... terms) {
          heed::causal_conv_into(of(x.a, first, n), heed::bhnd(taps.data(), 1, heads, d, 4), out,
                                 conv, terms...);
        });
  }
}

TEST_CASE("starts of sequences that do not fit are refused, before anything is written") {
  const inputs<float> x;
  heed::rows<float> out = heed::rows<float>::Constant(total, heads * d, 7);
  heed::workspace memory;
  const std::vector<int> late{1, 121}, down{0, 50, 40, 121}, short_of{0, 120}, good{0, 50, 121};
  const auto a = of(x.a, 0, total);
  heed::rows<float> state = heed::rows<float>::Zero(3 * heads * d, d);
  const auto three = heed::carry(heed::bhnd(state.data(), 3, heads, d, d));
  const auto refuse = [&](const std::vector<std::string>& words, const auto&... terms) {
    const auto both = [&](const char* name, const auto& call) {
      CAPTURE(name);
      std::vector<std::string> all = words;
      all.push_back(name);
      testing::check_refused(call, all);
    };
    both("multi_head_linear_attention_into", [&] {
      heed::multi_head_linear_attention_into(a, a, a, into(out, 0, total), {}, memory, terms...);
    });
    both("multi_head_delta_rule_into", [&] {
      heed::multi_head_delta_rule_into(a, a, a, of(x.betas, 0, total), into(out, 0, total), {},
                                       memory, terms...);
    });
    both("multi_head_rwkv7_into", [&] {
      heed::multi_head_rwkv7_into(a, a, a, a, a, a, into(out, 0, total), {}, memory, terms...);
    });
    both("selective_scan_into", [&] {
      const heed::rows<float> rates = heed::rows<float>::Constant(d, d, -1);
      heed::selective_scan_into(a, a, heed::view(rates), a, a, into(out, 0, total), {}, memory,
                                terms...);
    });
  };
  refuse({"sequence_starts", "begins with 1"}, heed::sequence_starts(late));
  refuse({"sequence_starts", "entry 2 is 40"}, heed::sequence_starts(down));
  refuse({"sequence_starts: last entry 120", "121"}, heed::sequence_starts(short_of));
  refuse({"carry: batch 3", "2"}, heed::sequence_starts(good), three);
  const auto two_entries = heed::bhnd(x.a.data(), 2, 1, 60, d);
  testing::check_refused(
      [&] {
        heed::multi_head_linear_attention_into(two_entries, two_entries, two_entries,
                                               heed::bhnd(out.data(), 2, 1, 60, d), {}, memory,
                                               heed::sequence_starts(good));
      },
      {"query: batch 2", "packed batch of 1"});
  CHECK((out.array() == 7).all());
}
