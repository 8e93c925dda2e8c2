// The gradient under every feature alone and with every other, against the reference in double on
// the same rounded inputs and results.

#include <heed/heed.hpp>

#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "support/checksum.hpp"
#include "support/example.hpp"
#include "support/isas.hpp"
#include "support/matrix.hpp"

using namespace testing::matrix;

namespace {

/// More keys than a block, with and without a whole block of queries; more queries than keys; one
/// token.
constexpr sizes gradient_sizes[] = {{50, 140}, {110, 37}, {1, 140}};

/// The gradients of all that a call takes, NaN before; and visit(name, one of each set...).
template <typename Scalar>
struct gradients {
  using Acc = heed::accumulator_t<Scalar>;
  heed::rows<Scalar> query, key, value;
  term_numbers<Acc> numbers;

  gradients() = default;
  gradients(const inputs<Scalar>& in, const term_numbers<Acc>& of)
      : query(in.query), key(in.key), value(in.value), numbers(of) {
    for_each([](const char*, auto& m) {
      using Number = typename std::decay_t<decltype(m)>::Scalar;
      m.setConstant(Number(std::numeric_limits<float>::quiet_NaN()));
    });
  }
  template <typename Visit, typename... Others>
  void for_each(const Visit& visit, Others&... others) {
    visit("query", query, others.query...);
    visit("key", key, others.key...);
    visit("value", value, others.value...);
    visit("bias", numbers.bias, others.numbers.bias...);
    visit("slopes", numbers.slopes, others.numbers.slopes...);
    visit("sinks", numbers.sinks, others.numbers.sinks...);
    visit("factors", numbers.factors, others.numbers.factors...);
  }
  tensor_view<Scalar> query_view(const inputs<Scalar>& in) {
    return bhnd(query.data(), batch, heads, in.n_q, in.d_k);
  }
  tensor_view<Scalar> key_view(const inputs<Scalar>& in) {
    return bhnd(key.data(), batch, in.kv_heads, in.n_kv, in.d_k);
  }
  tensor_view<Scalar> value_view(const inputs<Scalar>& in) {
    return bhnd(value.data(), batch, in.kv_heads, in.n_kv, in.d_v);
  }
};
/// A number for each of them.
struct gradient_errors {
  long double query = 0, key = 0, value = 0;
  struct {
    long double bias = 0, slopes = 0, sinks = 0, factors = 0;
  } numbers;
};

/// What comes in: the right results of the forward call, rounded, and the gradients of a loss for
/// them. In the results of the reference in the same precision the errors of its scores are the
/// same as in its gradient, where they would cancel.
template <typename Scalar>
struct incoming {
  outputs<Scalar> forward, gradient;

  incoming(const sample<Scalar>& one, const inputs<Scalar>& in) : forward(in), gradient(in) {
    using wide = testing::wider_t<Scalar>;
    const inputs<wide> exact = in.template cast<wide>();
    outputs<wide> results(exact);
    one.s.with_terms(one.s.numbers.template cast<wide>(), path::tensors, [&](const auto&... terms) {
      heed::reference_multi_head_attention_into(exact.query_view(), exact.key_view(),
                                                exact.value_view(), results.out_view(),
                                                results.lse_view(), one.s.options, terms...);
    });
    assign(forward, results);
    gradient.out = testing::random_rows<Scalar>(1, forward.out.size(), 31);
    gradient.lse = testing::random_rows<heed::accumulator_t<Scalar>>(1, forward.lse.size(), 32);
  }
  template <typename Other>
  incoming(const incoming<Other>& other) : forward(0, 0), gradient(0, 0) {
    assign(forward, other.forward);
    assign(gradient, other.gradient);
  }

 private:
  template <typename Other>
  static void assign(outputs<Scalar>& to, const outputs<Other>& from) {
    to.n_q = from.n_q, to.dim = from.dim;
    to.out = from.out.template cast<Scalar>();
    to.lse = from.lse.template cast<heed::accumulator_t<Scalar>>();
  }
};

/// call(terms...): those of the forward call, and their gradients.
template <typename Acc, typename Call>
void with_gradient_terms(const setup& s, const term_numbers<Acc>& numbers, term_numbers<Acc>& to,
                         path kind, const Call& call) {
  s.with_terms(numbers, kind, [&](const auto&... terms) {
    tensor_view<Acc> grad_bias;
    if (s.features.has(feature::bias))
      grad_bias = bhnd(to.bias.data(), batch, heads, s.shape.n_q, s.shape.n_kv);
    if (s.features.has(feature::bias_infinite))
      grad_bias = heed::writable_view(to.bias.transpose());
    using heed::when;
    call(terms..., when(grad_bias.data, heed::grad_bias(grad_bias)),
         when(to.slopes.size() > 0, heed::grad_alibi(to.slopes)),
         when(to.sinks.size() > 0, heed::grad_sinks(to.sinks)),
         when(to.factors.size() > 0, heed::grad_logit_scales(to.factors)));
  });
}

template <typename Scalar>
gradients<Scalar> reference_of(const setup& s, const inputs<Scalar>& in, incoming<Scalar>& with) {
  const auto numbers = s.numbers.template cast<heed::accumulator_t<Scalar>>();
  gradients<Scalar> got(in, numbers);
  with_gradient_terms(s, numbers, got.numbers, path::tensors, [&](const auto&... terms) {
    heed::reference_multi_head_attention_backward_into(
        in.query_view(), in.key_view(), in.value_view(), with.forward.out_view(),
        with.forward.lse_view(), with.gradient.out_view(), got.query_view(in), got.key_view(in),
        got.value_view(in), s.options, terms..., heed::grad_lse(with.gradient.lse_view()));
  });
  return got;
}

/// Runs a path on every instruction set, and with the best one on three threads, which must change
/// nothing.
template <typename Scalar, typename Run>
void check_path(const char* name, const sample<Scalar>& one,
                const gradients<testing::wider_t<Scalar>>& exact, const gradient_errors& error,
                const Run& run) {
  heed::workspace memory;
  const auto run_with = [&](heed::isa target, int threads) {
    gradients<Scalar> got(one.in, one.s.numbers.template cast<heed::accumulator_t<Scalar>>());
    heed::attention_options options = one.s.options;
    options.execution.target = target;
    options.execution.threads = threads;
    run(got, options, memory);
    return got;
  };
  INFO(name << ": " << one.name());
  for (const heed::isa target : testing::isas()) {
    INFO("on " << testing::name_of(target));
    run_with(target, 1).for_each(
        [&](const char* what, const auto& got, const auto& right, long double wrong) {
          INFO("gradient of " << what);
          testing::checksum(std::string(name) + ": " + one.name() + ": " +
                                testing::name_of(target) + ": gradient of " + what,
                            got);
          testing::check_error(got, right, wrong);
        },
        exact, error);
  }
  INFO("on three threads");
  const gradients<Scalar> alone = run_with(heed::best_isa(), 1);
  run_with(heed::best_isa(), 3)
      .for_each(
          [](const char* what, const auto& three, const auto& got) {
            INFO("gradient of " << what);
            CHECK(testing::max_error(three, got) == 0);
          },
          alone);
}

template <typename Scalar>
void check_tensors(const sample<Scalar>& one, incoming<Scalar>& with,
                   const gradients<testing::wider_t<Scalar>>& exact, const gradient_errors& error) {
  const inputs<Scalar>& in = one.in;
  const auto numbers = one.s.numbers.template cast<heed::accumulator_t<Scalar>>();
  const bool strided = one.s.features.has(feature::strides);
  check_path(
      "gradient of tensors", one, exact, error,
      [&](gradients<Scalar>& got, const heed::attention_options& options, heed::workspace& memory) {
        const auto run = [&](const auto& query, const auto& key, const auto& value, const auto& out,
                             const auto& grad_out, const auto& dq, const auto& dk, const auto& dv) {
          with_gradient_terms(
              one.s, numbers, got.numbers, path::tensors, [&](const auto&... terms) {
                heed::multi_head_attention_backward_into(
                    query, key, value, out, with.forward.lse_view(), grad_out, dq, dk, dv, options,
                    memory, terms..., heed::grad_lse(with.gradient.lse_view()));
              });
        };
        if (!strided)
          return run(in.query_view(), in.key_view(), in.value_view(), with.forward.out_view(),
                     with.gradient.out_view(), got.query_view(in), got.key_view(in),
                     got.value_view(in));
        const spread<Scalar> query(in.query_view()), key(in.key_view()), value(in.value_view()),
            out(with.forward.out_view()), grad_out(with.gradient.out_view()),
            dq(got.query_view(in)), dk(got.key_view(in)), dv(got.value_view(in));
        run(query.view, key.view, value.view, out.view, grad_out.view, dq.view, dk.view, dv.view);
        copy(dq.view, got.query_view(in));
        copy(dk.view, got.key_view(in));
        copy(dv.view, got.value_view(in));
      });
}

template <typename Scalar>
void check_ragged(const sample<Scalar>& one, incoming<Scalar>& with,
                  const gradients<testing::wider_t<Scalar>>& exact, const gradient_errors& error) {
  using Acc = heed::accumulator_t<Scalar>;
  if (one.s.features.has_any(feature::keep, feature::keep_keys, feature::keep_bits, feature::bias,
                             feature::bias_infinite, feature::blocks,
                             feature::mask_function_in_blocks))
    return;  // not offered
  const inputs<Scalar>& in = one.in;
  const std::vector<heed::size_type> query_starts{0, in.n_q, 2 * in.n_q},
      key_starts{0, one.s.lengths[0], one.s.lengths[0] + one.s.lengths[1]};
  const packed<Scalar> query(in.query_view(), query_starts), key(in.key_view(), key_starts),
      value(in.value_view(), key_starts), out(with.forward.out_view(), query_starts),
      grad_out(with.gradient.out_view(), query_starts);
  const packed<Acc> lse(with.forward.lse_view(), query_starts),
      grad_lse(with.gradient.lse_view(), query_starts);
  check_path(
      "gradient of a ragged batch", one, exact, error,
      [&](gradients<Scalar>& got, const heed::attention_options& options, heed::workspace& memory) {
        packed<Scalar> dq(got.query_view(in), query_starts), dk(got.key_view(in), key_starts),
            dv(got.value_view(in), key_starts);
        with_gradient_terms(one.s, one.s.numbers.template cast<Acc>(), got.numbers, path::ragged,
                            [&](const auto&... terms) {
                              heed::ragged_attention_backward_into(
                                  query.view, key.view, value.view, out.view, lse.view,
                                  grad_out.view, dq.view, dk.view, dv.view, query_starts,
                                  key_starts, options, memory, terms...,
                                  heed::grad_lse(grad_lse.view));
                            });
        got.key.setZero(), got.value.setZero();  // past the lengths
        dq.unpack(got.query_view(in), query_starts);
        dk.unpack(got.key_view(in), key_starts);
        dv.unpack(got.value_view(in), key_starts);
      });
}

template <typename Scalar>
void check_combination(const combination& features) {
  if (!features.has_gradient()) return;
  using wide = testing::wider_t<Scalar>;
  if (features.has(feature::selected_keys)) return;  // not offered
  std::vector<sample<Scalar>> samples;
  std::vector<incoming<Scalar>> all;
  std::vector<gradients<wide>> exact;
  gradient_errors error;
  for (const sizes& shape : gradient_sizes) {
    samples.emplace_back(features, shape);
    sample<Scalar>& one = samples.back();
    // a score of -infinity, which an infinite key may have, is one that nothing depends on
    for (heed::rows<Scalar>* const numbers : {&one.in.key, &one.in.value})
      for (heed::size_type n = 0; n < numbers->size(); ++n)
        if (!std::isfinite(float(numbers->data()[n])))
          numbers->data()[n] = Scalar(std::numeric_limits<float>::quiet_NaN());
    all.emplace_back(one, one.in);
    incoming<wide> with(all.back());
    exact.push_back(reference_of(one.s, one.in.template cast<wide>(), with));
    reference_of(one.s, one.in, all.back())
        .for_each(
            [](const char*, const auto& same, const auto& right, long double& wrong) {
              wrong = (std::max)(wrong, testing::max_error(same, right));
            },
            exact.back(), error);
    // Of the gradients that are a few numbers, sums over all pairs, the reference may be right by
    // luck: other draws say how wrong it is.
    std::mt19937 engine(17);
    for (int draw = 0; draw < 8 && one.s.numbers.slopes.size() > 0; ++draw) {
      incoming<Scalar> drawn = all.back();
      testing::shuffle(drawn.gradient.out, engine);
      incoming<wide> drawn_wide(drawn);
      const gradients<wide> right = reference_of(one.s, one.in.template cast<wide>(), drawn_wide);
      const gradients<Scalar> same = reference_of(one.s, one.in, drawn);
      error.numbers.slopes = (std::max)(
          error.numbers.slopes, testing::max_error(same.numbers.slopes, right.numbers.slopes));
    }
  }
  for (std::size_t n = 0; n < samples.size(); ++n) {
    check_tensors(samples[n], all[n], exact[n], error);
    check_ragged(samples[n], all[n], exact[n], error);
  }
}

}  // namespace

TEST_CASE("float: gradients under features in pairs") {
  for_each_combination(combined::in_pairs, check_combination<float>);
}
TEST_CASE("bfloat16: gradients under features in pairs") {
  for_each_combination(combined::in_pairs, check_combination<Eigen::bfloat16>);
}
TEST_CASE("half and double: gradients under features one by one") {
  for_each_combination(combined::alone, check_combination<Eigen::half>);
  for_each_combination(combined::alone, check_combination<double>);
}
