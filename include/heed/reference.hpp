#pragma once

#include <heed/detail/inputs.hpp>
#include <heed/detail/make_problem.hpp>
#include <heed/detail/score.hpp>

#include <cmath>
#include <vector>

HEED_NAMESPACE_BEGIN
namespace detail {

/// Attention as the formula reads, one query row after the other. The weights of one row are all
/// that it keeps.
template <typename Scalar, typename Stored>
void reference_head(const head_problem<Scalar, Stored>& p) {
  using Acc = accumulator_t<Scalar>;
  using std::exp;
  std::vector<size_type> seen;  // the keys that the row sees
  std::vector<Acc> weights;  // their scores s_ij, then exp(s_ij - max), then the same over its sum:
                             // a mean overflows no sooner than values

  for (size_type i = 0; i < p.query.rows; ++i) {
    seen.clear();
    weights.clear();
    const auto query = [&](size_type c) { return p.query(i, c); };
    Acc max = first_maximum(p.score);
    for (size_type j = 0; j < p.key.rows; ++j) {
      if (!visible(p.score, i, j)) continue;
      Acc dot(0);
      for (size_type c = 0; c < p.query.cols; ++c)
        dot += Acc(Acc(p.query(i, c)) * p.key.template at<Acc>(j, c));
      const Acc s = score_of(p.score, with_relative_key(p.score, dot, query, i, j), i, j);
      if (masked_by_function(p.score, s)) continue;
      seen.push_back(j);
      weights.push_back(s);
      if (s > max) max = s;
    }

    Acc sum = p.score.has_sink ? Acc(exp(Acc(p.score.sink - max))) : Acc(0);
    for (Acc& weight : weights) {
      weight = exp(Acc(weight - max));
      sum += weight;
    }
    const bool empty = is_empty_row(sum);
    for (std::size_t n = 0; n < seen.size() && !empty; ++n)
      weights[n] = value_weight(p.score, Acc(weights[n] / sum), i, seen[n]);

    for (size_type c = 0; c < p.value.cols; ++c) {
      Acc mean(0);
      for (std::size_t n = 0; n < seen.size() && !empty; ++n) {
        Acc value = p.value.template at<Acc>(seen[n], c);
        if (const Acc* const row = relative_row(p.score, p.score.relative_values, i, seen[n]))
          value += row[c];
        mean += Acc(weights[n] * value);
      }
      p.out(i, c) = Scalar(mean);
    }
    if (p.lse.data) p.lse(i, 0) = natural_log_sum_exp(max, sum);
    if (p.largest) p.largest[i] = empty ? negative_infinity<Acc>() : max;
  }
}

template <typename Scalar, typename Stored>
void reference(problem<Scalar, Stored> p) {
  const std::vector<accumulator_t<Scalar>> largest = p.make_largest();
  for (size_type b = 0; b < p.batch(); ++b)
    for (size_type h = 0; h < p.num_heads(); ++h) reference_head(p.head(b, h));
  p.write_other_rows();
  p.write_max_logits();
  p.rethrow();
}

}  // namespace detail

/// softmax(scale Q K^T) V computed directly in O(n_q n_kv d) time, for any scalar type with the
/// arithmetic, exp, log and tanh: the oracle that every other path is tested against (Vaswani et
/// al. 2017, equation 1).
///
/// query n_q x Dk, key n_kv x Dk, value n_kv x Dv -> n_q x Dv. A row that sees no key is 0. Throws
/// std::invalid_argument for sizes that do not fit together and for options out of range.
///
/// @code
/// using rows = heed::rows<float>;
/// const rows query = rows::Random(6, 64), key = rows::Random(10, 64),
///            value = rows::Random(10, 32);
/// const auto exact =
///     heed::reference_attention(query.cast<double>(), key.cast<double>(), value.cast<double>());
/// assert((heed::attention(query, key, value).cast<double>() - exact).norm() < 1e-5);
/// @endcode
template <typename Scalar = deduced, int Dk = Eigen::Dynamic, int Dv = Dk, typename Query,
          typename Key, typename Value, typename... Terms>
auto reference_attention(const Query& query, const Key& key, const Value& value,
                         const attention_options& options = {}, const Terms&... terms) {
  const detail::inputs<Scalar, Dk, Dv, Query, Key, Value> in("reference_attention", query, key,
                                                             value);
  typename decltype(in)::output out(in.query.rows, in.value.cols);
  detail::reference(detail::make_problem("reference_attention", in.query, in.key, in.value,
                                         writable_view(out), {}, options, terms...));
  return out;
}

/// The same together with the natural-log sum of exponentials of each row (-infinity for a row that
/// sees no key; sinks included).
template <typename Scalar = deduced, int Dk = Eigen::Dynamic, int Dv = Dk, typename Query,
          typename Key, typename Value, typename... Terms>
auto reference_attention_with_lse(const Query& query, const Key& key, const Value& value,
                                  const attention_options& options = {}, const Terms&... terms) {
  const detail::inputs<Scalar, Dk, Dv, Query, Key, Value> in("reference_attention_with_lse", query,
                                                             key, value);
  typename decltype(in)::result result(in.query.rows, in.value.cols);
  detail::reference(detail::make_problem("reference_attention_with_lse", in.query, in.key, in.value,
                                         writable_view(result.out), writable_view(result.lse),
                                         options, terms...));
  return result;
}

HEED_NAMESPACE_END
