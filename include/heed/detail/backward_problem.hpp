#pragma once

#include <heed/detail/make_problem.hpp>
#include <heed/detail/sizes.hpp>
#include <heed/gradient_terms.hpp>

#include <type_traits>

HEED_NAMESPACE_BEGIN
namespace detail {

/// One backward call, checked. Out is the type of the forward call's output: Scalar, or that of the
/// sums.
template <typename Scalar, typename Out = Scalar>
struct backward_problem {
  using accumulator = accumulator_t<Scalar>;

  problem<Scalar> forward;  // query, key, value, options and terms of the forward call
  tensor_view<const Out> out;
  tensor_view<const accumulator> lse;
  tensor_view<const Scalar> grad_out;
  tensor_view<Scalar> grad_query, grad_key, grad_value;
  gradient_terms<accumulator> terms;

  /// The rows of queries [B,H,n_q,..] or of keys [B,H_kv,n_kv,..] of head h of sequence b.
  template <typename Element>
  matrix_view<Element> query_rows(const tensor_view<Element>& rows, size_type b,
                                  size_type h) const {
    return rows.head(forward.query_entry(b), h, forward.first_query(b), forward.n_q(b));
  }
  template <typename Element>
  matrix_view<Element> key_rows(const tensor_view<Element>& rows, size_type b, size_type h) const {
    return rows.head(forward.key_entry(b), h, forward.first_key(b), forward.n_kv(b));
  }
  /// Makes the gradient of rows that are no queries 0.
  void clear_other_queries() const {
    for (size_type b = 0; forward.terms.query_lengths && b < forward.batch(); ++b)
      for (size_type h = 0; h < forward.num_heads(); ++h) {
        const auto all = grad_query.head(forward.query_entry(b), h, forward.first_query(b),
                                         forward.stored_queries(b));
        for (size_type i = forward.n_q(b); i < all.rows; ++i)
          for (size_type c = 0; c < all.cols; ++c) all(i, c) = Scalar(accumulator(0));
      }
  }
  /// Makes the gradient of rows that are not keys 0: those before a sequence's first key, and those
  /// past its length.
  void clear_other_rows(const tensor_view<Scalar>& rows) const {
    for (size_type b = 0; b < forward.batch(); ++b)
      for (size_type g = 0; g < forward.key.heads; ++g) {
        const auto all =
            rows.head(forward.key_entry(b), g, forward.first_row(b), forward.stored_keys(b));
        for (size_type j = 0; j < all.rows; ++j)
          if (j < forward.skipped(b) || j >= forward.key_end(b))
            for (size_type c = 0; c < all.cols; ++c) all(j, c) = Scalar(0);
      }
  }
  /// The gradient that comes in for the log-sum-exp of query i of head h of sequence b.
  accumulator grad_lse(size_type b, size_type h, size_type i) const {
    return terms.grad_lse ? query_rows(terms.grad_lse->view, b, h)(i, 0) : accumulator(0);
  }
};

template <typename Scalar, typename Out>
void check_gradient_terms(const char* function, const backward_problem<Scalar, Out>& p) {
  const auto& forward = p.forward.terms;
  if (forward.selected)
    fail_with("heed::", function,
              ": selected_keys has no gradient; give keep with the mask that the lists make");
  if (p.terms.grad_lse)
    check_row_numbers(function, "grad_lse", p.terms.grad_lse->view, p.forward.query, "n_q");
  const auto missing = [&](const char* what, const char* term) {
    fail_with("heed::", function, ": ", what, " is the gradient of ", term,
              ", which the call does not have");
  };
  if (p.terms.grad_bias) {
    if (!forward.bias) missing("grad_bias", "bias");
    forward.bias.visit([&](const auto& bias) {
      check_same_sizes(function, "grad_bias", p.terms.grad_bias->view, "bias", bias.view);
    });
  }
  if (p.terms.grad_alibi) {
    if (!forward.alibi) missing("grad_alibi", "alibi");
    const auto& slopes = p.terms.grad_alibi->view;
    check_equal(function, "grad_alibi", slopes.heads, "query's num_heads", p.forward.num_heads());
    check_same_sizes(function, "grad_alibi", slopes, "alibi: slopes", forward.alibi->view);
  }
  const auto check_heads = [&](const char* what, const char* name, const auto& gradient,
                               const auto& term) {
    if (!gradient) return;
    if (!term) missing(what, name);
    check_equal(function, what, gradient->count, "query's num_heads", p.forward.num_heads());
  };
  const auto refuse = [&](bool given, const char* term) {
    if (given)
      fail_with("heed::", function, ": ", term,
                " is a term of the forward call alone: its gradient is not computed");
  };
  refuse(forward.relative_keys.has_value(), "relative_keys");
  refuse(forward.relative_values.has_value(), "relative_values");
  refuse(forward.weight_function.run, "weight_function");
  check_heads("grad_sinks", "sinks", p.terms.grad_sinks, forward.sinks);
  check_heads("grad_logit_scales", "logit_scales", p.terms.grad_logit_scales, forward.logit_scales);
}

/// Every output is apart from all that is read and from the outputs after it.
template <typename Scalar, typename Out>
void check_outputs_apart(const char* function, const backward_problem<Scalar, Out>& p) {
  const auto& terms = p.terms;
  const auto are_apart = [&](const named_region& first, const named_region& second,
                             const auto&... later) {
    check_apart_from_inputs(function, p.forward, first, second, "out", p.out, "lse", p.lse,
                            "grad_out", p.grad_out, "grad_lse", terms.grad_lse, later...);
  };
  are_apart({"grad_query", p.grad_query}, {"grad_key", p.grad_key}, "grad_value", p.grad_value,
            "grad_bias", terms.grad_bias, "grad_alibi", terms.grad_alibi, "grad_sinks",
            terms.grad_sinks, "grad_logit_scales", terms.grad_logit_scales);
  are_apart({"grad_value", p.grad_value}, {"grad_bias", terms.grad_bias}, "grad_alibi",
            terms.grad_alibi, "grad_sinks", terms.grad_sinks, "grad_logit_scales",
            terms.grad_logit_scales);
  are_apart({"grad_alibi", terms.grad_alibi}, {"grad_sinks", terms.grad_sinks}, "grad_logit_scales",
            terms.grad_logit_scales);
  are_apart({"grad_logit_scales", terms.grad_logit_scales}, no_output());
}

/// Checks all of a backward call.
template <typename Scalar, typename Out>
void check_backward(const char* function, const backward_problem<Scalar, Out>& p) {
  const tensor_view<const Scalar>&query = p.forward.query, &key = p.forward.key.elements,
                          &value = p.forward.value.elements;
  check_scores(function, p.forward);
  check_out(function, "out", p.out, query, value, "n_q");
  check_row_numbers(function, "lse", p.lse, query, "n_q");
  check_out(function, "grad_out", p.grad_out, query, value, "n_q");
  check_same_sizes(function, "grad_query", p.grad_query, "query", query);
  check_same_sizes(function, "grad_key", p.grad_key, "key", key);
  check_same_sizes(function, "grad_value", p.grad_value, "value", value);
  check_gradient_terms(function, p);
  check_outputs_apart(function, p);
}

/// Checks every argument of `function` and makes the problem of them.
template <typename Scalar, typename Query, typename Key, typename Value, typename Out, typename Lse,
          typename GradOut, typename... Terms>
auto make_backward_problem(const char* function, const tensor_view<Query>& query,
                           const tensor_view<Key>& key, const tensor_view<Value>& value,
                           const tensor_view<Out>& out, const tensor_view<Lse>& lse,
                           const tensor_view<GradOut>& grad_out,
                           const tensor_view<Scalar>& grad_query,
                           const tensor_view<Scalar>& grad_key,
                           const tensor_view<Scalar>& grad_value, const attention_options& options,
                           const Terms&... given) {
  using Acc = accumulator_t<Scalar>;
  using OutScalar = std::remove_const_t<Out>;
  static_assert(scalars_fit<Scalar, Query, Key, Value, GradOut>::value &&
                lse_fits<Scalar, std::remove_const_t<Lse>>::value);
  static_assert(std::is_same<OutScalar, Scalar>::value || std::is_same<OutScalar, Acc>::value,
                "out must have the scalar type of query, or that of the scores (float for half and "
                "bfloat16)");
  check_view(function, "key", key);
  check_view(function, "value", value);
  backward_terms<Acc> terms;
  add_terms(terms, given...);
  backward_problem<Scalar, OutScalar> p{
      problem<Scalar>(query, tensor_view<const Scalar>(key), tensor_view<const Scalar>(value), {},
                      {}, options),
      out,
      lse,
      grad_out,
      grad_query,
      grad_key,
      grad_value,
      terms};
  p.forward.terms = terms;
  check_backward(function, p);
  return p;
}

/// The same for a ragged batch.
template <typename Scalar, typename... Arguments>
auto make_ragged_backward_problem(const char* function, const index_list& query_starts,
                                  const index_list& key_starts, const Arguments&... arguments) {
  return make_backward_problem<Scalar>(function, arguments...,
                                       starts_term{query_starts, key_starts});
}

}  // namespace detail
HEED_NAMESPACE_END
