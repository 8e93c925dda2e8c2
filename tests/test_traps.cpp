#include <heed/heed.hpp>

#include <cfenv>
#include <string>
#include <vector>

#include "support/gradient.hpp"
#include "support/isas.hpp"
#include "support/variations.hpp"

// Users enable floating-point exceptions to find their own mistakes: no call raises invalid or
// division by zero for finite inputs. The flags are looked at after each call, which says which one
// it was; a trap would be taken at the same instructions.

namespace {

/// What call() raises of the two.
template <typename Call>
std::string raised_by(const Call& call) {
  std::feclearexcept(FE_ALL_EXCEPT);
  call();
  const int raised = std::fetestexcept(FE_INVALID | FE_DIVBYZERO);
  return std::string(raised & FE_INVALID ? "invalid " : "") +
         (raised & FE_DIVBYZERO ? "division by zero" : "");
}

/// Scratch memory holds whatever was there before: signalling NaNs are the worst that it can be.
void poison(heed::workspace& memory) {
  constexpr heed::size_type bytes = 1 << 22;
  auto* words = static_cast<std::uint32_t*>(memory.reserve(bytes));
  std::fill(words, words + bytes / 4, 0x7fa00000u);
}

template <typename Scalar>
void check_attention(heed::isa target) {
  std::vector<testing::sizes> all = testing::edge_sizes();
  for (const testing::sizes& more :
       {testing::sizes{70, 70, 64, 64}, {1, 700, 64, 64}, {3, 900, 64, 48}, {130, 260, 128, 128}})
    all.push_back(more);
  for (const testing::sizes& s : all)
    testing::for_each_variation<Scalar>(
        s, [&](const testing::example<Scalar>& e, const std::string& name) {
          INFO(name << ", " << s.n_q << " x " << s.n_kv << ", d " << s.d_k << ", " << s.d_v << ", "
                    << testing::name_of(target));
          heed::attention_result<Scalar> result(s.n_q, s.d_v);
          heed::workspace memory;
          poison(memory);
          CHECK(raised_by([&] {
                  e.run([&](const auto& query, const auto& key, const auto& value,
                            heed::attention_options options, const auto&... terms) {
                    options.execution.target = target;
                    heed::attention_into(query, key, value, result.out, result.lse, options, memory,
                                         terms...);
                  });
                }) == "");
        });
}

template <typename Scalar>
void check_backward(heed::isa target) {
  std::vector<testing::sizes> all = testing::edge_sizes();
  for (const testing::sizes& more : {testing::sizes{200, 200, 64, 64}, {130, 260, 128, 128}})
    all.push_back(more);
  for (const testing::sizes& s : all)
    testing::for_each_variation<Scalar>(
        s, [&](const testing::example<Scalar>& forward, const std::string& name) {
          INFO(name << ", " << s.n_q << " x " << s.n_kv << ", d " << s.d_k << ", " << s.d_v << ", "
                    << testing::name_of(target));
          const testing::backward_example<Scalar> e(forward);
          heed::rows<Scalar> grad_query(s.n_q, s.d_k), grad_key(s.n_kv, s.d_k),
              grad_value(s.n_kv, s.d_v);
          heed::workspace memory;
          poison(memory);
          std::string raised;
          e.run([&](const auto& query, const auto& key, const auto& value, const auto& out,
                    const auto& lse, const auto& grad_out, heed::attention_options options,
                    const auto&... terms) {
            options.execution.target = target;
            raised = raised_by([&] {
              heed::attention_backward_into(query, key, value, out, lse, grad_out, grad_query,
                                            grad_key, grad_value, options, memory, terms...);
            });
            return heed::attention_gradients<Scalar>{grad_query, grad_key, grad_value};
          });
          CHECK(raised == "");
        });
}

}  // namespace

TEMPLATE_TEST_CASE("attention raises no invalid operation and no division by zero", "", float,
                   double, Eigen::bfloat16, Eigen::half) {
  for (const heed::isa target : testing::isas()) check_attention<TestType>(target);
}

TEMPLATE_TEST_CASE("its gradients raise none either", "", float, double, Eigen::bfloat16,
                   Eigen::half) {
  for (const heed::isa target : testing::isas()) {
    check_backward<TestType>(target);
    // what changes weights and scores, with sums of what heads learn
    using Acc = heed::accumulator_t<TestType>;
    const testing::backward_example<TestType> e(testing::example<TestType>(110, 130, 20, 33));
    const heed::row_vector<Acc> factors = heed::row_vector<Acc>::Constant(1, Acc(1.25));
    heed::row_vector<Acc> grad_factors(1);
    heed::rows<TestType> grad_query(110, 20), grad_key(130, 20), grad_value(130, 33);
    heed::attention_options options;
    options.execution.target = target;
    options.causal = heed::causal::bottom_right;
    options.softcap = 2;
    const auto masks = [](Acc score, auto, auto, auto i, auto j) {
      return (i + j) % 7 == 3 ? -std::numeric_limits<Acc>::infinity() : score / 2;
    };
    const auto half = [](Acc, auto, auto, auto, auto) { return Acc(0.5); };
    heed::workspace memory;
    poison(memory);
    INFO(testing::name_of(target));
    CHECK(raised_by([&] {
            heed::attention_backward_into(
                e.forward.query, e.forward.key, e.forward.value, e.out, e.lse, e.grad_out,
                grad_query, grad_key, grad_value, options, memory, heed::logit_scales(factors),
                heed::grad_logit_scales(grad_factors), heed::dropout(0.3, 7),
                heed::score_function(masks, half),
                heed::mask_function([](auto, auto, auto i, auto j) { return (i * j) % 5 != 1; }));
          }) == "");
  }
}

TEMPLATE_TEST_CASE("projections, caches and linear forms raise none either", "", float, double,
                   Eigen::bfloat16) {
  using Scalar = TestType;
  using Acc = heed::accumulator_t<Scalar>;
  constexpr heed::size_type n = 70, d = 20;
  const auto x = testing::random_rows<Scalar>(n, d, 1), y = testing::random_rows<Scalar>(n, d, 2),
             z = testing::random_rows<Scalar>(n, d, 3);
  const auto w = testing::random_rows<Scalar>(d, 33, 4);
  for (const heed::isa target : testing::isas()) {
    INFO(testing::name_of(target));
    heed::attention_options options;
    options.execution.target = target;
    options.causal = heed::causal::bottom_right;
    CHECK(raised_by([&] { heed::project(x, w, options); }) == "");
    CHECK(raised_by([&] { heed::project(x.topRows(3), w, options); }) == "");
    const heed::row_vector<Acc> slopes = heed::row_vector<Acc>::Constant(1, Acc(0.25));
    CHECK(raised_by([&] {
            heed::attention_with_weights(
                x, y, z, options, heed::alibi(slopes), heed::dropout(0.3, 7),
                heed::score_function([](auto score, auto, auto, auto i, auto j) {
                  return i == j ? -std::numeric_limits<decltype(score)>::infinity() : score;
                }),
                heed::mask_function([](auto, auto, auto i, auto j) { return (i + j) % 3 != 0; }));
          }) == "");

    heed::rows<Scalar> out(n, d), few(3, d);
    heed::workspace memory;
    poison(memory);
    const auto table = testing::random_rows<Acc>(9, d, 5);
    CHECK(raised_by([&] {
            heed::attention_into(x, y, z, out, {}, options, memory,
                                 heed::relative_keys(table, 4, 4),
                                 heed::relative_values(table, 2, 6),
                                 heed::weight_function([](auto weight, auto, auto, auto i, auto j) {
                                   return i == j ? weight : weight / 2;
                                 }));
          }) == "");
    poison(memory);
    heed::kv_cache<std::conditional_t<std::is_same<Scalar, double>::value, double, std::int8_t>>
        cache(1, 1, d, d);
    CHECK(raised_by([&] {
            cache.append(heed::view(y), heed::view(z));
            heed::cached_attention_into(heed::view(x), cache, heed::writable_view(out), {}, options,
                                        memory);
            heed::cached_attention_into(heed::view(x.topRows(1)), cache,
                                        heed::writable_view(few.topRows(1)), {}, options, memory);
          }) == "");

    const heed::rows<Acc> gates = testing::random_rows<Acc>(n, d, 5).cwiseAbs() * Acc(-30);
    const heed::rows<Acc> beta = heed::rows<Acc>::Constant(n, 1, Acc(0.5));
    heed::linear_attention_options linear;
    linear.execution.target = target;
    heed::delta_rule_options delta;
    delta.execution.target = target;
    for (const heed::size_type columns : {heed::size_type(0), heed::size_type(1), d}) {
      INFO("gates " << columns);
      heed::rows<Acc> state = heed::rows<Acc>::Zero(d, d);
      heed::tensor_view<const Acc> gate = heed::view(gates);
      gate.cols = (std::max)(columns, heed::size_type(1));
      poison(memory);
      CHECK(raised_by([&] {
              heed::multi_head_linear_attention_into(
                  heed::view(x), heed::view(y), heed::view(z), heed::writable_view(out), linear,
                  memory, heed::when(columns > 0, heed::log_gate(gate)), heed::carry(state));
            }) == "");
      poison(memory);
      CHECK(raised_by([&] {
              heed::multi_head_delta_rule_into(
                  heed::view(x), heed::view(y), heed::view(z), heed::view(beta),
                  heed::writable_view(out), delta, memory,
                  heed::when(columns > 0, heed::log_gate(gate)), heed::carry(state));
            }) == "");
    }
  }
  CHECK(raised_by([&] { heed::scaled_softmax(x, 0.5); }) == "");
}
