#pragma once

#include <heed/attention.hpp>
#include <heed/detail/inputs.hpp>
#include <heed/detail/make_problem.hpp>
#include <heed/detail/score.hpp>
#include <heed/streaming.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

HEED_NAMESPACE_BEGIN

/// The output of attention together with its weights n_q x n_kv: row i is the softmax that weighted
/// the values of query i.
template <typename Scalar, int Dv = Eigen::Dynamic>
struct attention_weights_result : attention_result<Scalar, Dv> {
  /// The output and log-sum-exp of a call, without weights.
  explicit attention_weights_result(attention_result<Scalar, Dv> result)
      : attention_result<Scalar, Dv>(std::move(result)) {}
  /// n_q x n_kv.
  rows<accumulator_t<Scalar>> weights;
};

namespace detail {
/// The weights of rows [first_row, first_row + count) of head (b, h), a column for each row of keys
/// in memory; 0 for those that are not the sequence's. lse is that of the head's queries. A score
/// and an lse of several thousand are rounded by more than a weight may be wrong by, so a row is
/// divided by its own sum: the lse only says whether the row saw anything.
template <typename Scalar, typename Stored>
rows<accumulator_t<Scalar>> weights_of(const problem<Scalar, Stored>& call, size_type b,
                                       size_type h,
                                       const matrix_view<const accumulator_t<Scalar>>& lse,
                                       size_type first_row, size_type count) {
  using Acc = accumulator_t<Scalar>;
  using Sum = std::conditional_t<std::is_same<Acc, float>::value, double, Acc>;
  using std::exp;
  constexpr size_type tile = 128;
  const head_problem<Scalar, Stored> p = call.head(b, h);
  const score_params<Acc>& score = p.score;
  const size_type num_keys = p.key.rows;
  rows<Acc> query(count, p.query.cols);
  for (size_type r = 0; r < count; ++r)
    for (size_type c = 0; c < query.cols(); ++c) query(r, c) = Acc(p.query(first_row + r, c));

  // the scores first; a pair that is hidden has -infinity
  rows<Acc> weights = rows<Acc>::Constant(count, num_keys, negative_infinity<Acc>());
  for (size_type j0 = 0; j0 < p.key.rows; j0 += tile) {
    const size_type n = (std::min)(tile, p.key.rows - j0);
    const rows<Acc> dots = query * load_rows<Acc>(p.key, j0, n).transpose();
    for (size_type r = 0; r < count; ++r) {
      const size_type i = first_row + r;
      if (is_negative_infinity(lse(i, 0))) continue;
      const auto of_row = [&](size_type c) { return query(r, c); };
      for (size_type j = 0; j < n; ++j)
        if (visible(score, i, j0 + j)) {
          const Acc dot = with_relative_key(score, dots(r, j), of_row, i, j0 + j);
          weights(r, j0 + j) = score_of(score, dot, i, j0 + j);
        }
    }
  }
  for (size_type r = 0; r < count; ++r) {
    Acc largest = first_maximum(score);
    for (size_type j = 0; j < num_keys; ++j)
      if (weights(r, j) > largest) largest = weights(r, j);
    Sum sum = Sum(score.has_sink ? Acc(exp(score.sink - largest)) : Acc(0));
    for (size_type j = 0; j < num_keys; ++j) {
      if (is_negative_infinity(weights(r, j))) continue;
      weights(r, j) = Acc(exp(weights(r, j) - largest));
      sum += Sum(weights(r, j));
    }
    for (size_type j = 0; j < num_keys; ++j)
      weights(r, j) = is_negative_infinity(weights(r, j))
                          ? Acc(0)
                          : value_weight(score, Acc(Sum(weights(r, j)) / sum), first_row + r, j);
  }
  if (num_keys == call.key.rows) return weights;
  rows<Acc> of_all_rows = rows<Acc>::Constant(count, call.key.rows, Acc(0));
  of_all_rows.middleCols(call.skipped(b), num_keys) = weights;
  return of_all_rows;
}

/// The lse of one head.
template <typename Vector>
auto all_of(const Vector& lse) {
  return view(lse).head(0, 0, 0, lse.size());
}

/// The pass that has the largest scores is the forward call's, and so are the values.
template <typename Problem>
void check_terms_of_weights(const char* function, const Problem& p) {
  if (p.terms.max_logits)
    fail_with("heed::", function, ": max_logits is a result of the forward call; leave it out");
  if (p.terms.relative_values)
    fail_with("heed::", function, ": weights do not depend on relative_values; leave it out");
}

/// The problem of query and key alone, whose lse is known.
template <typename Query, typename Key, typename Lse, typename... Terms>
class known_lse {
  using Scalar = typename scalar_of<Query>::type;
  const inputs<deduced, Eigen::Dynamic, Eigen::Dynamic, Query, Key, Key> in_;
  row_vector<accumulator_t<Scalar>> lse_;
  problem<Scalar> problem_;

  problem<Scalar> make(const char* function, const attention_options& options,
                       const Terms&... terms) {
    check_view(function, "key", in_.key);
    auto p = make_score_problem<Scalar, Scalar>(function, in_.query, in_.key, in_.key,
                                                writable_view(lse_), options, terms...);
    check_terms_of_weights(function, p);
    return p;
  }
  /// A column or row vector, or a matrix of one column.
  static const Lse& one_a_row(const char* function, const Lse& lse) {
    static_assert(is_eigen<Lse>, "lse must be an Eigen vector, one number per query row");
    check_memory(function, "lse", lse);
    if (!Lse::IsVectorAtCompileTime)
      check_equal(function, "lse: columns", lse.cols(), "one number per row:", size_type{1});
    return lse;
  }

 public:
  known_lse(const char* function, const Query& query, const Key& key, const Lse& lse,
            const attention_options& options, const Terms&... terms)
      : in_(function, query, key, key),
        lse_(one_a_row(function, lse)),
        problem_(make(function, options, terms...)) {}
  known_lse(const known_lse&) = delete;

  using accumulator = accumulator_t<Scalar>;
  size_type n_q() const { return in_.query.rows; }
  size_type n_kv() const { return in_.key.rows; }
  rows<accumulator> weights(size_type first_row, size_type count) const {
    rows<accumulator> some = weights_of(problem_, 0, 0, all_of(lse_), first_row, count);
    problem_.rethrow();
    return some;
  }

  /// Calls visit(first_row, weights) for one block of rows after the other: O(n_kv) memory.
  template <typename Visit>
  void for_each_block(const Visit& visit) const {
    constexpr size_type block = 32;
    for (size_type i = 0; i < n_q(); i += block) visit(i, weights(i, (std::min)(block, n_q() - i)));
  }
};
}  // namespace detail

/// Rows [first_row, first_row + count) of the weights softmax(scale Q K^T), rebuilt for the
/// log-sum-exp that attention_with_lse returned with the same options and terms: O(count n_kv)
/// memory.
///
/// query n_q x Dk, key n_kv x Dk, lse n_q -> count x n_kv. Each row is divided by its own sum, so
/// that it sums to 1 to rounding however large the scores are; with a sink the row and the sink's
/// weight do. A row that sees no key is 0. Throws std::invalid_argument for rows that do not exist
/// and sizes that do not fit together.
///
/// @code
/// using rows = heed::rows<float>;
/// const rows query = rows::Random(6, 64), key = rows::Random(10, 64),
///            value = rows::Random(10, 32);
/// const auto result = heed::attention_with_lse(query, key, value);
/// const rows weights =
///     heed::attention_weights(query, key, result.lse, 2, 3);  // of the queries 2, 3 and 4: 3 x 10
/// @endcode
template <typename Query, typename Key, typename Lse, typename... Terms>
auto attention_weights(const Query& query, const Key& key, const Lse& lse, size_type first_row,
                       size_type count, const attention_options& options = {},
                       const Terms&... terms) {
  const detail::known_lse<Query, Key, Lse, Terms...> known("attention_weights", query, key, lse,
                                                           options, terms...);
  if (first_row < 0 || count < 0 || first_row > known.n_q() - count)
    detail::fail_with("heed::attention_weights: ", count, " rows from ", first_row,
                      " on are not all in query's n_q ", known.n_q());
  return known.weights(first_row, count);
}

/// The same for every query of every head of every batch entry, through strided views: query
/// [B, H, n_q, Dk], key [B, H_kv, n_kv, Dk], lse [B, H, n_q, 1] -> weights [B, H, n_q, n_kv], in
/// the scalar of the scores. A key past a length, or before a first key, has 0. Throws
/// std::invalid_argument where sizes do not fit, or weights overlaps itself or an input.
///
/// @code
/// std::vector<float> x(2 * 4 * 10 * 64, 0.5f), out(x.size()), lse(2 * 4 * 10);
/// std::vector<float> weights(2 * 4 * 10 * 10);
/// const auto heads = heed::bhnd(x.data(), 2, 4, 10, 64);
/// const auto rows = heed::bhnd(lse.data(), 2, 4, 10, 1);
/// heed::workspace memory;
/// heed::multi_head_attention_into(heads, heads, heads, heed::bhnd(out.data(), 2, 4, 10, 64), rows,
///                                 {}, memory);
/// heed::multi_head_attention_weights_into(heads, heads, rows,
///                                         heed::bhnd(weights.data(), 2, 4, 10, 10));
/// assert(std::abs(weights[0] - 0.1f) < 1e-6f);
/// @endcode
template <typename Query, typename Key, typename Lse, typename Weight, typename... Terms>
void multi_head_attention_weights_into(const tensor_view<Query>& query, const tensor_view<Key>& key,
                                       const tensor_view<Lse>& lse,
                                       const tensor_view<Weight>& weights,
                                       const attention_options& options = {},
                                       const Terms&... terms) {
  using Scalar = std::remove_const_t<Query>;
  using Acc = accumulator_t<Scalar>;
  static_assert(detail::scalars_fit<Scalar, Key>::value &&
                detail::lse_fits<Scalar, std::remove_const_t<Lse>>::value);
  static_assert(std::is_same<Weight, Acc>::value,
                "weights must have the scalar type of the scores: float for half and bfloat16");
  constexpr const char* name = "multi_head_attention_weights_into";
  const auto p = detail::make_shape_problem<Scalar>(name, tensor_view<const Scalar>(query), key,
                                                    key, options, terms...);
  detail::check_terms_of_weights(name, p);
  detail::check_row_numbers(name, "lse", lse, query, "n_q");
  detail::check_rows(name, "weights", weights, query, "n_q");
  detail::check_equal(name, "weights: columns", weights.cols, "key's kv_length", key.rows);
  detail::check_apart_from_inputs(name, p, {"weights", weights}, detail::no_output(), "lse", lse);
  constexpr size_type block = 32;
  const tensor_view<const Acc> known(lse);
  for (size_type b = 0; b < p.batch(); ++b)
    for (size_type h = 0; h < p.num_heads(); ++h)
      for (size_type i0 = 0; i0 < query.rows; i0 += block) {
        const rows<Acc> some = detail::weights_of(p, b, h, known.head(b, h, 0, query.rows), i0,
                                                  (std::min)(block, query.rows - i0));
        for (size_type i = 0; i < some.rows(); ++i)
          for (size_type j = 0; j < some.cols(); ++j) weights(b, h, i0 + i, j) = some(i, j);
      }
  p.rethrow();
}

/// attention together with its lse and its whole weight matrix, for inspection: the output is the
/// fused one, the weights are rebuilt as by attention_weights. query n_q x Dk, key n_kv x Dk, value
/// n_kv x Dv -> out n_q x Dv, lse n_q, weights n_q x n_kv (O(n_q n_kv) memory).
///
/// @code
/// using rows = heed::rows<float>;
/// const rows query = rows::Random(6, 64), key = rows::Random(10, 64),
///            value = rows::Random(10, 32);
/// const auto result = heed::attention_with_weights(query, key, value);
/// assert((result.weights * value - result.out).norm() < 1e-5f);
/// @endcode
template <typename Scalar = deduced, int Dk = Eigen::Dynamic, int Dv = Dk, typename Query,
          typename Key, typename Value, typename... Terms>
auto attention_with_weights(const Query& query, const Key& key, const Value& value,
                            const attention_options& options = {}, const Terms&... terms) {
  const detail::inputs<Scalar, Dk, Dv, Query, Key, Value> in("attention_with_weights", query, key,
                                                             value);
  attention_weights_result<typename decltype(in)::scalar, decltype(in)::d_v> result(
      typename decltype(in)::result(in.query.rows, in.value.cols));
  workspace memory;
  const auto problem =
      detail::make_problem("attention_with_weights", in.query, in.key, in.value,
                           writable_view(result.out), writable_view(result.lse), options, terms...);
  detail::forward(problem, memory);
  result.weights = detail::weights_of(problem, 0, 0, detail::all_of(result.lse), 0, in.query.rows);
  problem.rethrow();
  return result;
}

/// The total weight of each key: the column sums of the weights, n_kv numbers whose sum is the
/// number of rows that see a key. Keys of the least weight are those that a cache may evict (Zhang
/// et al. 2023). Arguments and errors as those of attention_weights; O(n_kv) memory.
///
/// @code
/// using rows = heed::rows<float>;
/// const rows query = rows::Random(6, 64), key = rows::Random(10, 64),
///            value = rows::Random(10, 32);
/// const auto lse = heed::attention_with_lse(query, key, value).lse;
/// const auto mass = heed::key_mass(query, key, lse);
/// assert(mass.size() == 10 && std::abs(mass.sum() - 6) < 1e-4f);
/// @endcode
template <typename Query, typename Key, typename Lse, typename... Terms>
auto key_mass(const Query& query, const Key& key, const Lse& lse,
              const attention_options& options = {}, const Terms&... terms) {
  const detail::known_lse<Query, Key, Lse, Terms...> known("key_mass", query, key, lse, options,
                                                           terms...);
  using Acc = typename decltype(known)::accumulator;
  row_vector<Acc> mass = row_vector<Acc>::Zero(known.n_kv());
  known.for_each_block(
      [&](size_type, const rows<Acc>& weights) { mass += weights.colwise().sum().transpose(); });
  return mass;
}

/// The entropy of each row of weights, -sum p ln p in nats: 0 where a query attends to one key,
/// ln(n) where it attends to n keys alike; 0 for a row that sees no key. Arguments and errors as
/// those of attention_weights; O(n_kv) memory.
///
/// @code
/// using rows = heed::rows<float>;
/// const rows query = rows::Random(6, 64), key = rows::Random(10, 64),
///            value = rows::Random(10, 32);
/// const auto lse = heed::attention_with_lse(query, key, value).lse;
/// const auto entropy = heed::row_entropy(query, key, lse);
/// assert(entropy.maxCoeff() < 1e-5f + std::log(10.0f));
/// @endcode
template <typename Query, typename Key, typename Lse, typename... Terms>
auto row_entropy(const Query& query, const Key& key, const Lse& lse,
                 const attention_options& options = {}, const Terms&... terms) {
  const detail::known_lse<Query, Key, Lse, Terms...> known("row_entropy", query, key, lse, options,
                                                           terms...);
  using Acc = typename decltype(known)::accumulator;
  using std::log;
  row_vector<Acc> entropy = row_vector<Acc>::Zero(known.n_q());
  known.for_each_block([&](size_type first, const rows<Acc>& weights) {
    for (size_type r = 0; r < weights.rows(); ++r)
      for (size_type j = 0; j < weights.cols(); ++j)
        if (weights(r, j) != Acc(0))
          entropy(first + r) -= Acc(weights(r, j) * Acc(log(weights(r, j))));
  });
  return entropy;
}

/// The heaviest keys of each query: row i holds their numbers and weights, the heaviest first.
template <typename Acc>
struct top_keys_result {
  rows<size_type> keys;  ///< n_q x k: the numbers of the keys
  rows<Acc> weights;     ///< n_q x k: their weights
};

/// The k heaviest keys of each row (the lower number first among equals; a weight that is NaN comes
/// before all numbers). k must be in [0, n_kv]. Arguments and errors as those of attention_weights;
/// O(n_kv) memory besides the result.
///
/// @code
/// using rows = heed::rows<float>;
/// const rows query = rows::Random(6, 64), key = rows::Random(10, 64),
///            value = rows::Random(10, 32);
/// const auto lse = heed::attention_with_lse(query, key, value).lse;
/// const auto top = heed::top_keys(query, key, lse, 3);
/// assert(top.weights(0, 0) >= top.weights(0, 2) && top.keys(0, 0) < 10);
/// @endcode
template <typename Query, typename Key, typename Lse, typename... Terms>
auto top_keys(const Query& query, const Key& key, const Lse& lse, size_type k,
              const attention_options& options = {}, const Terms&... terms) {
  const detail::known_lse<Query, Key, Lse, Terms...> known("top_keys", query, key, lse, options,
                                                           terms...);
  using Acc = typename decltype(known)::accumulator;
  if (k < 0 || k > known.n_kv())
    detail::fail_with("heed::top_keys: k ", k, " is not in [0, n_kv ", known.n_kv(), "]");
  top_keys_result<Acc> top{rows<size_type>(known.n_q(), k), rows<Acc>(known.n_q(), k)};
  std::vector<size_type> order(static_cast<std::size_t>(known.n_kv()));
  known.for_each_block([&](size_type first, const rows<Acc>& weights) {
    for (size_type r = 0; r < weights.rows(); ++r) {
      std::iota(order.begin(), order.end(), size_type{0});
      const auto is_nan = [&](size_type j) { return !(weights(r, j) >= Acc(0)); };
      std::partial_sort(order.begin(), order.begin() + k, order.end(),
                        [&](size_type a, size_type b) {
                          if (is_nan(a) != is_nan(b)) return is_nan(a);
                          if (!is_nan(a) && weights(r, a) != weights(r, b))
                            return weights(r, a) > weights(r, b);
                          return a < b;
                        });
      for (size_type n = 0; n < k; ++n) {
        top.keys(first + r, n) = order[static_cast<std::size_t>(n)];
        top.weights(first + r, n) = weights(r, top.keys(first + r, n));
      }
    }
  });
  return top;
}

HEED_NAMESPACE_END
