// The gradients with respect to all that a call takes, against differences of the loss and against
// scalars that carry derivatives; what terms do to them.

#include <heed/backward.hpp>
#include <heed/merge.hpp>

#include <stdexcept>
#include <string>
#include <unsupported/Eigen/AutoDiff>
#include <vector>

#include "support/gradient.hpp"

using heed::size_type;

namespace {

constexpr size_type n_q = 5, n_kv = 7, d_k = 3, d_v = 2;

enum feature : unsigned {
  scale,
  softcap,
  causal_top_left,
  causal_bottom_right,
  window,
  keep,
  keep_bits,
  bias,
  bias_of_keys,
  alibi,
  sinks,
  logit_scales,
  key_lengths,
  blocks,
  score_function,
  mask_function,
  dropout,
  lse,
  count
};
const char* const names[] = {"scale",        "softcap", "causal top_left", "causal bottom_right",
                             "window",       "keep",    "keep_bits",       "bias",
                             "bias of keys", "alibi",   "sinks",           "logit_scales",
                             "key_lengths",  "blocks",  "score_function",  "mask_function",
                             "dropout",      "grad_lse"};

struct combination {
  unsigned bits;
  bool has(feature f) const { return (bits >> f & 1) != 0; }
  std::string name() const {
    std::string all;
    for (unsigned f = 0; f < count; ++f)
      if (has(feature(f))) all += (all.empty() ? "" : " + ") + std::string(names[f]);
    return all;
  }
  bool possible() const {
    return !(has(causal_top_left) && has(causal_bottom_right)) && !(has(bias) && has(bias_of_keys));
  }
};
/// Each feature alone, every two, and as many as go together.
template <typename Visit>
void for_each_combination(const Visit& visit) {
  for (unsigned f = 0; f < count; ++f)
    for (unsigned g = f; g < count; ++g) {
      const combination two{1u << f | 1u << g};
      if (two.possible()) visit(two);
    }
  visit(combination{((1u << count) - 1) & ~(1u << causal_top_left) & ~(1u << bias_of_keys)});
}

const auto bend = [](auto score, size_type, size_type, size_type i, size_type j) {
  using Acc = decltype(score);
  return Acc(Acc(score + Acc(Acc(0.2) * Acc(score * score))) + Acc(0.01 * double((i + j) % 5)));
};
const auto slope_of_bend = [](auto score, size_type, size_type, size_type, size_type) {
  using Acc = decltype(score);
  return Acc(Acc(1) + Acc(Acc(0.4) * score));
};
const auto odd = [](size_type, size_type, size_type i, size_type j) {
  return (i + 2 * j) % 3 != 0;
};

/// All that a loss depends on: sum of grad_out out, and of grad_lse lse.
template <typename Scalar>
struct inputs {
  heed::rows<Scalar> query, key, value, bias;
  heed::row_vector<Scalar> slopes, sinks, factors;
  heed::rows<Scalar> grad_out;
  heed::row_vector<Scalar> grad_lse;

  template <typename Other>
  inputs<Other> cast() const {
    return {query.template cast<Other>(),   key.template cast<Other>(),
            value.template cast<Other>(),   bias.template cast<Other>(),
            slopes.template cast<Other>(),  sinks.template cast<Other>(),
            factors.template cast<Other>(), grad_out.template cast<Other>(),
            grad_lse.template cast<Other>()};
  }
  /// visit(name, numbers) of each variable.
  template <typename Visit>
  void for_each_variable(const Visit& visit) {
    visit("query", query);
    visit("key", key);
    visit("value", value);
    visit("bias", bias);
    visit("slopes", slopes);
    visit("sinks", sinks);
    visit("factors", factors);
  }
};

inputs<double> make_inputs(const combination& c) {
  inputs<double> x;
  x.query = testing::random_rows<double>(n_q, d_k, 1);
  x.key = testing::random_rows<double>(n_kv, d_k, 2);
  x.value = testing::random_rows<double>(n_kv, d_v, 3);
  x.grad_out = testing::random_rows<double>(n_q, d_v, 4);
  if (c.has(bias)) x.bias = testing::random_rows<double>(n_q, n_kv, 5);
  if (c.has(bias_of_keys)) x.bias = testing::random_rows<double>(1, n_kv, 6);
  if (c.has(alibi)) x.slopes = heed::row_vector<double>::Constant(1, 0.25);
  if (c.has(sinks)) x.sinks = heed::row_vector<double>::Constant(1, 0.5);
  if (c.has(logit_scales)) x.factors = heed::row_vector<double>::Constant(1, 1.25);
  if (c.has(lse)) x.grad_lse = testing::random_rows<double>(n_q, 1, 7);
  return x;
}

/// call(options, terms...): of the forward call.
template <typename Scalar, typename Call>
auto with_terms(const combination& c, const inputs<Scalar>& x, const Call& call) {
  heed::attention_options options;
  if (c.has(scale)) options.scale = 0.4;
  if (c.has(softcap)) options.softcap = 0.8;
  if (c.has(causal_top_left)) options.causal = heed::causal::top_left;
  if (c.has(causal_bottom_right)) options.causal = heed::causal::bottom_right;
  if (c.has(window)) options.window_left = 2, options.window_right = 1;
  testing::mask kept = testing::random_mask(n_q, n_kv, 8);
  kept.row(3).setConstant(false);
  const heed::rows<std::uint8_t> bits = heed::rows<std::uint8_t>::Constant(n_q, 1, 0x5b);
  const std::vector<size_type> lengths{6};
  heed::block_mask shown(1, 1, n_q, n_kv, 2, 3);
  shown.show(0, 0, 0, 0), shown.show(0, 0, 0, 2), shown.show(0, 0, 1, 1), shown.show(0, 0, 2, 1);
  using heed::when;
  return call(options, when(c.has(keep), heed::keep(kept)),
              when(c.has(keep_bits), heed::keep_bits(heed::view(bits), n_kv)),
              when(x.bias.size() > 0, heed::bias(x.bias)),
              when(x.slopes.size() > 0, heed::alibi(x.slopes)),
              when(x.sinks.size() > 0, heed::sinks(x.sinks)),
              when(x.factors.size() > 0, heed::logit_scales(x.factors)),
              when(c.has(key_lengths), heed::key_lengths(lengths)),
              when(c.has(blocks), heed::blocks(shown)),
              when(c.has(score_function), heed::score_function(bend, slope_of_bend)),
              when(c.has(mask_function), heed::mask_function(odd)),
              heed::dropout(c.has(dropout) ? 0.3 : 0.0, 9));
}

template <typename Scalar>
auto attend(const combination& c, const inputs<Scalar>& x) {
  return with_terms(c, x, [&](const auto& options, const auto&... terms) {
    return heed::reference_attention_with_lse(x.query, x.key, x.value, options, terms...);
  });
}

template <typename Scalar>
Scalar loss(const combination& c, const inputs<Scalar>& x) {
  const auto result = attend(c, x);
  Scalar sum(0);
  for (size_type i = 0; i < n_q; ++i) {
    for (size_type v = 0; v < d_v; ++v) sum += Scalar(x.grad_out(i, v) * result.out(i, v));
    const bool dead = result.lse(i) < Scalar(-1e300);
    if (x.grad_lse.size() > 0 && !dead) sum += Scalar(x.grad_lse(i) * result.lse(i));
  }
  return sum;
}

/// The gradients of the loss, in the places of the variables; those of terms are NaN before.
template <typename Scalar, typename Backward>
inputs<Scalar> gradients_of(const combination& c, const inputs<Scalar>& x, const Backward& call) {
  const auto result = attend(c, x);
  inputs<Scalar> got = x;
  const Scalar nothing(std::numeric_limits<double>::quiet_NaN());
  got.bias.setConstant(nothing), got.slopes.setConstant(nothing);
  got.sinks.setConstant(nothing), got.factors.setConstant(nothing);
  with_terms(c, x, [&](const auto& options, const auto&... terms) {
    using heed::when;
    const auto gradient = call(x.query, x.key, x.value, result.out, result.lse, x.grad_out, options,
                               terms..., when(x.grad_lse.size() > 0, heed::grad_lse(x.grad_lse)),
                               when(x.bias.size() > 0, heed::grad_bias(got.bias)),
                               when(x.slopes.size() > 0, heed::grad_alibi(got.slopes)),
                               when(x.sinks.size() > 0, heed::grad_sinks(got.sinks)),
                               when(x.factors.size() > 0, heed::grad_logit_scales(got.factors)));
    got.query = gradient.query;
    got.key = gradient.key;
    got.value = gradient.value;
    return 0;
  });
  return got;
}
const auto reference = [](const auto&... arguments) {
  return heed::reference_attention_backward(arguments...);
};

/// check(name, gradient) of the reference and of every instruction set.
template <typename Check>
void for_each_path(const combination& c, const inputs<double>& x, const Check& check) {
  {
    INFO("reference");
    check(gradients_of(c, x, reference));
  }
  for (const heed::isa target : testing::isas()) {
    INFO(testing::name_of(target));
    check(gradients_of(c, x, testing::backward_on(target)));
  }
}

}  // namespace

// The loss is computed in long double (64 bits of a mantissa) at a distance of h: a difference is
// wrong by h^2 / 6 times the third derivative, here some 1e3 at most, and by 2^-63 |loss| / h.
TEST_CASE("gradients are the differences of the loss, for every term and every two") {
  const double h = 0x1p-20;
  for_each_combination([&](const combination& c) {
    CAPTURE(c.name());
    const inputs<double> x = make_inputs(c);
    inputs<long double> moved = x.cast<long double>();
    std::vector<double> differences;
    moved.for_each_variable([&](const char*, auto& numbers) {
      for (size_type n = 0; n < numbers.size(); ++n) {
        const long double before = numbers.data()[n];
        numbers.data()[n] = before + h;
        const long double above = loss(c, moved);
        numbers.data()[n] = before - h;
        const long double below = loss(c, moved);
        numbers.data()[n] = before;
        differences.push_back(double((above - below) / (2 * h)));
      }
    });
    const double bound = h * h / 6 * 1e3 + 1e-14;
    for_each_path(c, x, [&](inputs<double> got) {
      std::size_t n = 0;
      got.for_each_variable([&](const char* name, const auto& numbers) {
        double error = 0;
        for (size_type k = 0; k < numbers.size(); ++k) {
          const double one = std::abs(numbers.data()[k] - differences[n++]);
          error = one <= error ? error : one;  // NaN too
        }
        CAPTURE(name, error);
        CHECK(error <= bound);
      });
      CHECK(n == differences.size());
    });
  });
}

// Both are sums of some hundred products in double, in two orders.
TEST_CASE("gradients are the derivatives that a scalar carries through the reference") {
  constexpr int variables = n_q * d_k + n_kv * (d_k + d_v) + n_q * n_kv + 3;
  using dual = Eigen::AutoDiffScalar<Eigen::Matrix<double, variables, 1>>;
  for_each_combination([&](const combination& c) {
    CAPTURE(c.name());
    const inputs<double> x = make_inputs(c);
    inputs<dual> carried = x.cast<dual>();
    int axis = 0;
    carried.for_each_variable([&](const char*, auto& numbers) {
      for (size_type n = 0; n < numbers.size(); ++n)
        numbers.data()[n].derivatives() =
            Eigen::Matrix<double, variables, 1>::Unit(variables, axis++);
    });
    const Eigen::Matrix<double, variables, 1> right = loss(c, carried).derivatives();
    const double bound =
        100 * std::numeric_limits<double>::epsilon() * (std::max)(1.0, right.cwiseAbs().maxCoeff());
    for_each_path(c, x, [&](inputs<double> got) {
      int n = 0;
      got.for_each_variable([&](const char* name, const auto& numbers) {
        double error = 0;
        for (size_type k = 0; k < numbers.size(); ++k) {
          const double one = std::abs(numbers.data()[k] - right(n++));
          error = one <= error ? error : one;
        }
        CAPTURE(name, error);
        CHECK(error <= bound);
      });
    });
  });
}

TEST_CASE("the gradient of the reference can be differentiated itself") {
  // the derivative of sum(dq) along a direction of the keys, against a difference
  using dual = Eigen::AutoDiffScalar<Eigen::Matrix<double, 1, 1>>;
  const combination c{1u << softcap | 1u << causal_bottom_right | 1u << sinks};
  const inputs<double> x = make_inputs(c);
  const heed::rows<double> direction = testing::random_rows<double>(n_kv, d_k, 11);
  inputs<dual> carried = x.cast<dual>();
  for (size_type n = 0; n < carried.key.size(); ++n)
    carried.key.data()[n].derivatives()(0) = direction.data()[n];
  const inputs<dual> second = gradients_of(c, carried, reference);
  double along = 0;
  for (size_type n = 0; n < second.query.size(); ++n)
    along += second.query.data()[n].derivatives()(0);
  const auto sum_at = [&](long double step) {
    inputs<long double> moved = x.cast<long double>();
    moved.key += step * direction.cast<long double>();
    return gradients_of(c, moved, reference).query.sum();
  };
  const long double h = 0x1p-20L;
  CHECK(std::abs(along - double((sum_at(h) - sum_at(-h)) / (2 * h))) <= 1e-9);
  CHECK(std::abs(along) > 1e-3);
}

TEST_CASE("dropout is regenerated: the gradient of values is that of the weights that were kept") {
  const testing::example<double> e(70, 130, 16, 8);
  const heed::rows<double> grad_out = testing::random_rows<double>(70, 8, 3),
                           identity = heed::rows<double>::Identity(130, 130);
  const auto dropout = heed::dropout(0.4, 11);
  const heed::rows<double> weights =
      heed::reference_attention(e.query, e.key, identity, {}, dropout);
  const auto forward = heed::attention_with_lse(e.query, e.key, e.value, {}, dropout);
  const heed::rows<double> want = weights.transpose() * grad_out;
  for (const heed::isa target : testing::isas()) {
    heed::attention_options options;
    options.execution.target = target;
    const auto got = heed::attention_backward(e.query, e.key, e.value, forward.out, forward.lse,
                                              grad_out, options, dropout);
    // sums of 70 products of weights that are known to a few units
    CHECK((got.value - want).cwiseAbs().maxCoeff() <=
          80 * std::numeric_limits<double>::epsilon() * want.cwiseAbs().maxCoeff());
  }
}

// out = sum_p w_p out_p and lse = ln sum_p exp(lse_p), with w_p = exp(lse_p - lse): a part gets
// w_p grad_out and w_p (grad_out (out_p - out) + grad_lse).
TEST_CASE("parts that are merged have the gradients of the whole") {
  const testing::backward_example<float> e(testing::example<float>(50, 129, 16, 8));
  const testing::judged_gradients<float> right(e);
  const auto gradients_of_parts = [&](const auto& path, size_type cut) {
    testing::gradients<float> sum;
    sum.query.setZero(50, 16), sum.key.setZero(129, 16), sum.value.setZero(129, 8);
    for (const bool first : {true, false}) {
      const size_type from = first ? 0 : cut, keys = first ? cut : 129 - cut;
      testing::backward_example<float> part = e;
      part.forward.key = e.forward.key.middleRows(from, keys);
      part.forward.value = e.forward.value.middleRows(from, keys);
      part.attend();
      for (size_type i = 0; i < 50; ++i) {
        const float weight = std::exp(part.lse(i) - e.lse(i));
        part.grad_lse(i) =
            weight * (e.grad_out.row(i).dot(part.out.row(i) - e.out.row(i)) + e.grad_lse(i));
        part.grad_out.row(i) = weight * e.grad_out.row(i);
      }
      const testing::gradients<float> got = part.run(path);
      sum.query += got.query;
      sum.key.middleRows(from, keys) = got.key;
      sum.value.middleRows(from, keys) = got.value;
    }
    return sum;
  };
  for (const size_type cut : {0, 1, 64, 100, 129}) {
    CAPTURE(cut);
    const testing::gradients<float> same = gradients_of_parts(reference, cut);
    for (const heed::isa target : testing::isas()) {
      INFO(testing::name_of(target));
      const testing::gradients<float> got = gradients_of_parts(testing::backward_on(target), cut);
      const auto check = [](const auto& g, const auto& s, const auto& want, long double wrong,
                            long double size) {
        testing::check_error(g, want, (std::max)(testing::max_error(s, want), wrong), size);
      };
      check(got.query, same.query, right.exact.query, right.error.query, right.scales.query);
      check(got.key, same.key, right.exact.key, right.error.key, right.scales.key);
      check(got.value, same.value, right.exact.value, right.error.value, right.scales.value);
    }
  }
}

TEST_CASE("what a function throws in a backward call reaches the caller, who can go on") {
  const testing::backward_example<float> e(testing::example<float>(200, 300, 8, 4));
  heed::attention_gradients<float> got{heed::rows<float>(200, 8), heed::rows<float>(300, 8),
                                       heed::rows<float>(300, 4)};
  heed::workspace memory;
  bool throws = false;
  const auto guard = [&](size_type i, size_type j, const char* what) {
    if (throws && i > 100 && j > 100) throw std::out_of_range(what);
  };
  const auto score = [&](float s, size_type, size_type, size_type i, size_type j) {
    guard(i, j, "score of a pair");
    return s / 2;
  };
  const auto slope = [&](float, size_type, size_type, size_type i, size_type j) {
    guard(i, j, "slope of a pair");
    return 0.5f;
  };
  const auto plain_score = [](float s, size_type, size_type, size_type, size_type) {
    return s / 2;
  };
  const auto half = [](float, size_type, size_type, size_type, size_type) { return 0.5f; };
  const auto mask = [&](size_type, size_type, size_type i, size_type j) {
    guard(i, j, "mask of a pair");
    return (i + j) % 3 != 0;
  };
  const auto check = [&](const char* words, const auto& term) {
    const auto run = [&](bool direct, int threads) {
      heed::attention_options options;
      options.execution.threads = threads;
      if (direct) {
        got = heed::reference_attention_backward(e.forward.query, e.forward.key, e.forward.value,
                                                 e.out, e.lse, e.grad_out, options, term);
      } else {
        heed::attention_backward_into(e.forward.query, e.forward.key, e.forward.value, e.out, e.lse,
                                      e.grad_out, got.query, got.key, got.value, options, memory,
                                      term);
      }
      return got.query;
    };
    for (const bool direct : {true, false})
      for (const int threads : {1, 3}) {
        CAPTURE(words, direct, threads);
        throws = false;
        const heed::rows<float> before = run(direct, threads);
        throws = true;
        CHECK_THROWS_WITH(run(direct, threads), ContainsSubstring(words));
        CHECK_THROWS_AS(run(direct, threads), std::out_of_range);
        throws = false;
        CHECK(run(direct, threads) == before);
      }
  };
  check("score of a pair", heed::score_function(score, half));
  check("slope of a pair", heed::score_function(plain_score, slope));
  check("mask of a pair", heed::mask_function(mask));
}
