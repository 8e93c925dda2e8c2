#pragma once

// The backward call of an example of one head, and the one rule for how exact its gradients must
// be.

#include <heed/backward.hpp>

#include "example.hpp"
#include "isas.hpp"

namespace testing {

/// The gradients of all that a call of one head takes; those of absent terms are empty.
template <typename Scalar>
struct gradients {
  using accumulator = heed::accumulator_t<Scalar>;

  heed::rows<Scalar> query, key, value;
  heed::rows<accumulator> bias;
  heed::row_vector<accumulator> slopes, sinks;
};
/// visit(name, gradient of each set...) for one gradient after the other.
template <typename Visit, typename... Sets>
void for_each_gradient(const Visit& visit, Sets&... sets) {
  visit("query", sets.query...);
  visit("key", sets.key...);
  visit("value", sets.value...);
  visit("bias", sets.bias...);
  visit("slopes", sets.slopes...);
  visit("sinks", sets.sinks...);
}
/// Whether two sets are the same bits, but for the sign of a 0.
template <typename Scalar>
bool same_gradients(const gradients<Scalar>& a, const gradients<Scalar>& b) {
  bool same = true;
  for_each_gradient([&](const char*, const auto& x, const auto& y) { same = same && x == y; }, a,
                    b);
  return same;
}

/// The example of a forward call with its results, and the gradients of a loss with respect to
/// them.
template <typename Scalar>
struct backward_example {
  using accumulator = heed::accumulator_t<Scalar>;

  example<Scalar> forward;
  heed::rows<Scalar> out, grad_out;
  heed::row_vector<accumulator> lse, grad_lse;

  backward_example(const example<Scalar>& e, const heed::rows<Scalar>& of_out,
                   const heed::row_vector<accumulator>& of_lse)
      : forward(e), grad_out(of_out), grad_lse(of_lse) {
    attend();
  }
  explicit backward_example(const example<Scalar>& e)
      : backward_example(e, random_rows<Scalar>(e.query.rows(), e.value.cols(), 31),
                         random_rows<accumulator>(e.query.rows(), 1, 32)) {}

  /// Takes the right results, rounded. In those of the reference in the same precision the errors
  /// of its scores are the same as in its gradient, where they would cancel.
  void attend() {
    const auto result = forward.template cast<wider_t<Scalar>>().reference();
    out = result.out.template cast<Scalar>();
    lse = result.lse.template cast<accumulator>();
  }

  /// The same numbers in another type, results too.
  template <typename Other>
  backward_example<Other> cast() const {
    using acc = heed::accumulator_t<Other>;
    backward_example<Other> other(example<Other>(0, 0, 0, 0), heed::rows<Other>(0, 0),
                                  heed::row_vector<acc>(0));
    other.forward = forward.template cast<Other>();
    other.out = out.template cast<Other>();
    other.grad_out = grad_out.template cast<Other>();
    other.lse = lse.template cast<acc>();
    other.grad_lse = grad_lse.template cast<acc>();
    return other;
  }

  /// path(query, key, value, out, lse, grad_out, options, terms...) -> attention_gradients. What it
  /// should write is NaN before.
  template <typename Path>
  gradients<Scalar> run(const Path& path) const {
    constexpr accumulator nothing = std::numeric_limits<accumulator>::quiet_NaN();
    gradients<Scalar> got;
    got.bias.setConstant(forward.bias.rows(), forward.bias.cols(), nothing);
    got.slopes.setConstant(forward.slopes.size(), nothing);
    got.sinks.setConstant(forward.sinks.size(), nothing);
    forward.run([&](const auto& query, const auto& key, const auto& value, const auto& options,
                    const auto&... terms) {
      using heed::when;
      const auto result = path(query, key, value, out, lse, grad_out, options, terms...,
                               when(grad_lse.size() > 0, heed::grad_lse(grad_lse)),
                               when(got.bias.size() > 0, heed::grad_bias(got.bias)),
                               when(got.slopes.size() > 0, heed::grad_alibi(got.slopes)),
                               when(got.sinks.size() > 0, heed::grad_sinks(got.sinks)));
      got.query = result.query;
      got.key = result.key;
      got.value = result.value;
      return 0;
    });
    return got;
  }
  gradients<Scalar> reference() const {
    return run(
        [](const auto&... arguments) { return heed::reference_attention_backward(arguments...); });
  }
};

/// attention_backward on one instruction set.
inline auto backward_on(heed::isa target, int threads = 1) {
  return [target, threads](const auto& query, const auto& key, const auto& value, const auto& out,
                           const auto& lse, const auto& grad_out, heed::attention_options options,
                           const auto&... terms) {
    options.execution.target = target;
    options.execution.threads = threads;
    return heed::attention_backward(query, key, value, out, lse, grad_out, options, terms...);
  };
}

/// A number for each gradient.
struct gradient_numbers {
  long double query = 0, key = 0, value = 0, bias = 0, slopes = 0, sinks = 0;
};

/// How wrong the reference is on inputs like these: as reference_error_on, over a hundred rows.
template <typename Scalar>
gradient_numbers gradient_error_on(const backward_example<Scalar>& e) {
  std::mt19937 engine(17);
  backward_example<Scalar> drawn = e;
  gradient_numbers largest;
  for (size_type rows = 0, draws = 0; rows < 100 && draws < 32;
       rows += (std::max)(e.out.rows(), size_type(1)), ++draws) {
    const gradients<Scalar> same = drawn.reference();
    const gradients<wider_t<Scalar>> exact = drawn.template cast<wider_t<Scalar>>().reference();
    for_each_gradient([](const char*, long double& error, const auto& got,
                         const auto& want) { error = (std::max)(error, max_error(got, want)); },
                      largest, same, exact);
    for (heed::rows<Scalar>* const numbers :
         {&drawn.forward.query, &drawn.forward.key, &drawn.forward.value, &drawn.grad_out})
      shuffle(*numbers, engine);
    drawn.attend();
  }
  return largest;
}

/// What the terms of each gradient add up to where none cancels another. Gradients of scores are
/// differences of sums over d_v, P (dO V^T - rowsum(dO O) + dlse): where one key takes all they are
/// 0, and what is left is one rounding of those sums.
template <typename Scalar>
gradient_numbers gradient_scales(const backward_example<Scalar>& of) {
  const backward_example<double> e = of.template cast<double>();
  const auto largest = [](const auto& m) {
    return m.size() > 0 ? static_cast<long double>(m.cwiseAbs().maxCoeff()) : 0.0L;
  };
  const size_type n_q = e.out.rows(), n_kv = e.forward.key.rows(),
                  d_k = (std::max)(e.forward.query.cols(), size_type(1));
  const heed::rows<double> products =
                               e.grad_out.cwiseAbs() * e.forward.value.cwiseAbs().transpose(),
                           own = e.grad_out.cwiseProduct(e.out).cwiseAbs().rowwise().sum();
  const long double score = largest(products) + largest(own) + largest(e.grad_lse);
  // the sum of a column of weights is the gradient of a value for one that comes in as 1
  backward_example<double> ones = e;
  ones.grad_out.setOnes();
  const long double column = largest(ones.reference().value),
                    scale = std::abs(e.forward.options.scale.value_or(1 / std::sqrt(double(d_k))));
  gradient_numbers scales;
  scales.query = score * scale * largest(e.forward.key);
  scales.key = score * scale * largest(e.forward.query) * column;
  scales.value = largest(e.grad_out) * column;
  scales.bias = score;
  scales.slopes = score * static_cast<long double>(n_q * (std::max)(n_q, n_kv));
  scales.sinks = (largest(own) + largest(e.grad_lse)) * static_cast<long double>(n_q);
  return scales;
}

/// What is right for an example, and how far from it a path may be: as check_error says, with
/// gradient_scales.
template <typename Scalar>
struct judged_gradients {
  gradients<wider_t<Scalar>> exact;
  gradient_numbers error, scales;

  explicit judged_gradients(const backward_example<Scalar>& e)
      : exact(e.template cast<wider_t<Scalar>>().reference()),
        error(gradient_error_on(e)),
        scales(gradient_scales(e)) {}

  void check(const gradients<Scalar>& got) const {
    for_each_gradient(
        [](const char* name, const auto& g, const auto& want, long double wrong,
           long double scale) {
          INFO("gradient of " << name);
          check_error(g, want, wrong, scale);
        },
        got, exact, error, scales);
  }
};

}  // namespace testing
