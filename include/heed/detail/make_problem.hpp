#pragma once

#include <heed/detail/check_problem.hpp>
#include <heed/detail/problem.hpp>
#include <heed/options.hpp>
#include <heed/tensor.hpp>

// From the arguments of a call to a problem.

HEED_NAMESPACE_BEGIN
namespace detail {

/// Makes a problem of all that scores come from, and lse, that has no out yet.
template <typename Scalar, typename Stored, typename... Terms>
problem<Scalar, Stored> make_score_problem(
    const char* function, const tensor_view<const Scalar>& query, const stored_tensor<Stored>& key,
    const stored_tensor<Stored>& value, const tensor_view<accumulator_t<Scalar>>& lse,
    const attention_options& options, const Terms&... given) {
  problem<Scalar, Stored> p(query, key, value, {}, lse, options);
  add_terms(p.terms, given...);
  check_scores(function, p);
  return p;
}

/// The same for keys and values in plain tensors of the query's type.
template <typename Scalar, typename Key, typename Value, typename... Terms>
problem<Scalar> make_shape_problem(const char* function, const tensor_view<const Scalar>& query,
                                   const tensor_view<Key>& key, const tensor_view<Value>& value,
                                   const attention_options& options, const Terms&... given) {
  static_assert(scalars_fit<Scalar, Key, Value>::value);
  check_view(function, "key", key);
  check_view(function, "value", value);
  return make_score_problem<Scalar, Scalar>(function, query, tensor_view<const Scalar>(key),
                                            tensor_view<const Scalar>(value), {}, options,
                                            given...);
}

/// Checks every argument of `function` and makes the problem of them.
template <typename Scalar, typename Stored, typename... Terms>
problem<Scalar, Stored> make_stored_problem(
    const char* function, const tensor_view<const Scalar>& query, const stored_tensor<Stored>& key,
    const stored_tensor<Stored>& value, const tensor_view<Scalar>& out,
    const tensor_view<accumulator_t<Scalar>>& lse, const attention_options& options,
    const Terms&... given) {
  problem<Scalar, Stored> p =
      make_score_problem(function, query, key, value, lse, options, given...);
  check_out(function, "out", out, query, value, "n_q");
  p.out = out;
  const auto& largest = p.terms.max_logits;
  check_apart_from_inputs(function, p, {"out", out}, {"lse", lse}, "max_logits", largest);
  if (largest) check_apart_from_inputs(function, p, {"max_logits", largest}, no_output());
  return p;
}

/// The same for keys and values in plain tensors of the query's type.
template <typename Scalar, typename Query, typename Key, typename Value,
          typename Lse = accumulator_t<Scalar>, typename... Terms>
problem<Scalar> make_problem(const char* function, const tensor_view<Query>& query,
                             const tensor_view<Key>& key, const tensor_view<Value>& value,
                             const tensor_view<Scalar>& out, const tensor_view<Lse>& lse,
                             const attention_options& options, const Terms&... given) {
  static_assert(scalars_fit<Scalar, Query, Key, Value>::value && lse_fits<Scalar, Lse>::value);
  check_view(function, "key", key);
  check_view(function, "value", value);
  return make_stored_problem<Scalar, Scalar>(function, query, tensor_view<const Scalar>(key),
                                             tensor_view<const Scalar>(value), out, lse, options,
                                             given...);
}

}  // namespace detail
HEED_NAMESPACE_END
