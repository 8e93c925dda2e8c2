#pragma once

#include <heed/attention.hpp>
#include <heed/detail/inputs.hpp>
#include <heed/detail/problem.hpp>

#include <cmath>

HEED_NAMESPACE_BEGIN

/// attention's output with the matrix it never made: weights n_q x n_kv, each row the softmax under which the values were summed.
template <typename Scalar, int Dv = Eigen::Dynamic>
struct attention_weights_result : attention_result<Scalar, Dv> {
  explicit attention_weights_result(attention_result<Scalar, Dv> result) : attention_result<Scalar, Dv>(std::move(result)) {}
  rows<accumulator_t<Scalar>> weights;
};

namespace detail {
/// exp(s_ij - lse_i) for rows [first_row, first_row + count) of one head; num_keys columns, of which those past the head's keys are 0.
template <typename Scalar, typename Stored>
rows<accumulator_t<Scalar>> weights_of(const head_problem<Scalar, Stored>& p, index first_row, index count, index num_keys) {
  using Acc = accumulator_t<Scalar>;
  using std::exp;
  rows<Acc> weights = rows<Acc>::Constant(count, num_keys, Acc(0));
  for (index r = 0; r < count; ++r) {
    const index i = first_row + r;
    const Acc lse = p.lse(i, 0);
    if (is_negative_infinity(lse)) continue;
    for (index j = 0; j < p.key.rows; ++j) {
      if (!visible(p.score, i, j)) continue;
      Acc dot(0);
      for (index c = 0; c < p.query.cols; ++c) dot += Acc(p.query(i, c)) * p.key.template at<Acc>(j, c);
      weights(r, j) = dropped(p.score, Acc(exp(score_of(p.score, dot, i, j) - lse)), i, j);
    }
  }
  return weights;
}
}  // namespace detail

/// Rows [first_row, first_row + count) of the weights softmax(scale Q K^T), rebuilt from the log-sum-exp that attention_with_lse returned for
/// the same options and terms: O(count n_kv) memory.
///
/// query n_q x Dk, key n_kv x Dk, lse n_q -> count x n_kv. A row that sees no key is 0; with a sink a row sums to less than 1.
/// Throws std::invalid_argument for rows that do not exist and sizes that do not fit together.
template <typename Query, typename Key, typename Lse, typename... Terms>
auto attention_weights(const Query& query, const Key& key, const Lse& lse, index first_row, index count, const attention_options& options = {},
                       const Terms&... terms) {
  constexpr const char* name = "attention_weights";
  using Scalar = typename detail::scalar_of<Query>::type;
  const detail::inputs<deduced, Eigen::Dynamic, Eigen::Dynamic, Query, Key, Key> in(name, query, key, key);
  row_vector<accumulator_t<Scalar>> lse_values = lse;
  if (first_row < 0 || count < 0 || first_row > in.query.rows - count)
    detail::fail_with("heed::", name, ": rows [", first_row, ", ", first_row + count, ") are not all in query's n_q ", in.query.rows);
  detail::check_equal(name, "lse: n_q", lse_values.size(), "query's n_q", in.query.rows);
  const tensor_view<Scalar> no_out{nullptr, 1, 1, in.query.rows, in.key.cols, 0, 0, 0, 0};
  const auto problem = detail::make_problem<Scalar>(name, in.query, in.key, in.key, no_out, writable_view(lse_values), options, terms...);
  return detail::weights_of(problem.head(0, 0), first_row, count, in.key.rows);
}

/// attention together with its lse and its whole weight matrix, for looking at: the output is the fused one, the weights are rebuilt from the
/// log-sum-exp. query n_q x Dk, key n_kv x Dk, value n_kv x Dv -> out n_q x Dv, lse n_q, weights n_q x n_kv (O(n_q n_kv) memory).
template <typename Scalar = deduced, int Dk = Eigen::Dynamic, int Dv = Dk, typename Query, typename Key, typename Value, typename... Terms>
auto attention_with_weights(const Query& query, const Key& key, const Value& value, const attention_options& options = {},
                            const Terms&... terms) {
  const detail::inputs<Scalar, Dk, Dv, Query, Key, Value> in("attention_with_weights", query, key, value);
  attention_weights_result<typename decltype(in)::scalar, decltype(in)::d_v> result(typename decltype(in)::result(in.query.rows, in.value.cols));
  workspace memory;
  const auto problem = detail::make_problem("attention_with_weights", in.query, in.key, in.value, writable_view(result.out),
                                            writable_view(result.lse), options, terms...);
  detail::forward(problem, memory);
  result.weights = detail::weights_of(problem.head(0, 0), 0, in.query.rows, in.key.rows);
  return result;
}

HEED_NAMESPACE_END
