#pragma once

#include <heed/detail/inputs.hpp>
#include <heed/detail/make_problem.hpp>
#include <heed/detail/score.hpp>
#include <heed/detail/selected.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

HEED_NAMESPACE_BEGIN
namespace detail {

/// Rows [first, first + count) of keys or values as a matrix of the accumulator's type.
template <typename Acc, typename Stored>
rows<Acc> load_rows(const stored_rows<Stored>& stored, size_type first, size_type count) {
  rows<Acc> loaded(count, stored.cols);
  for (size_type j = 0; j < count; ++j)
    for (size_type c = 0; c < stored.cols; ++c)
      loaded(j, c) = stored.template at<Acc>(first + j, c);
  return loaded;
}

/// Attention a tile at a time: of the keys seen so far it keeps, for each query row, the largest
/// score, the sum of exp(s - max) and the mean of the values under these weights. A new tile with a
/// larger maximum rescales the sum by exp(max_old - max_new), and the mean gives way by as much as
/// the tile adds to it, so no n_q x n_kv matrix ever exists (Milakov and Gimelshein 2018, algorithm
/// 3; Dao et al. 2022, algorithm 1, which divides after each tile too: a mean overflows no sooner
/// than the values). A weight function needs the weights themselves: then a first pass through the
/// keys has the maxima and the sums.
template <typename Scalar, typename Stored>
void streaming_head(const head_problem<Scalar, Stored>& p) {
  using Acc = accumulator_t<Scalar>;
  using std::exp;
  constexpr size_type tile_q = 32, tile_k = 64;
  const score_params<Acc>& score = p.score;
  std::vector<size_type> seen;  // the keys of a tile that a row sees

  for (size_type i0 = 0; i0 < p.query.rows; i0 += tile_q) {
    const size_type m = (std::min)(tile_q, p.query.rows - i0);
    rows<Acc> query(m, p.query.cols);
    for (size_type i = 0; i < m; ++i)
      for (size_type c = 0; c < query.cols(); ++c) query(i, c) = Acc(p.query(i0 + i, c));
    rows<Acc> out = rows<Acc>::Constant(m, p.value.cols, Acc(0));
    row_vector<Acc> largest = row_vector<Acc>::Constant(m, first_maximum(score));
    row_vector<Acc> sum = row_vector<Acc>::Constant(m, score.has_sink ? Acc(1) : Acc(0));

    // the keys that the band leaves to this block of queries
    const size_type first = (std::max)(size_type{0}, i0 + score.band.low),
                    last = (std::min)(p.key.rows - 1, i0 + m - 1 + score.band.high);
    for (const bool measures : {true, false}) {
      if (measures && !score.final_weights) continue;
      for (size_type j0 = first; j0 <= last; j0 += tile_k) {
        const size_type n = (std::min)(tile_k, last + 1 - j0);
        const rows<Acc> value = load_rows<Acc>(p.value, j0, n);
        rows<Acc> weights = query * load_rows<Acc>(p.key, j0, n).transpose();
        for (size_type i = 0; i < m; ++i) {
          const auto of_row = [&](size_type c) { return query(i, c); };
          seen.clear();
          Acc new_max = largest(i);
          for (size_type j = 0; j < n; ++j) {
            if (!visible(score, i0 + i, j0 + j)) continue;
            const Acc dot = with_relative_key(score, weights(i, j), of_row, i0 + i, j0 + j);
            weights(i, j) = score_of(score, dot, i0 + i, j0 + j);
            if (masked_by_function(score, weights(i, j))) continue;
            seen.push_back(j);
            if (weights(i, j) > new_max) new_max = weights(i, j);
          }
          if (seen.empty()) continue;
          Acc kept(1);  // of the mean so far
          if (measures || !score.final_weights) {
            kept = sum(i) * Acc(exp(Acc(largest(i) - new_max)));
            largest(i) = new_max;
            sum(i) = kept;
          }
          for (const size_type j : seen) {
            weights(i, j) = exp(Acc(weights(i, j) - largest(i)));
            if (measures || !score.final_weights) sum(i) += weights(i, j);
          }
          if (measures || is_empty_row(sum(i))) continue;
          if (!score.final_weights) kept /= sum(i);
          out.row(i) *= kept;
          for (const size_type j : seen) {  // a hidden pair is skipped: 0 times a masked NaN is NaN
            const Acc weight = value_weight(score, Acc(weights(i, j) / sum(i)), i0 + i, j0 + j);
            if (const Acc* const row = relative_row(score, score.relative_values, i0 + i, j0 + j)) {
              for (size_type c = 0; c < value.cols(); ++c)
                out(i, c) += Acc(weight * Acc(value(j, c) + row[c]));
            } else {
              out.row(i) += weight * value.row(j);
            }
          }
        }
      }
    }

    for (size_type i = 0; i < m; ++i) {
      for (size_type c = 0; c < p.value.cols; ++c) p.out(i0 + i, c) = Scalar(out(i, c));
      if (p.lse.data) p.lse(i0 + i, 0) = natural_log_sum_exp(largest(i), sum(i));
      if (p.largest)
        p.largest[i0 + i] = is_empty_row(sum(i)) ? negative_infinity<Acc>() : largest(i);
    }
  }
}

/// The same a query at a time, with the keys of its list.
template <typename Scalar, typename Stored>
void streaming_selected(const problem<Scalar, Stored>& p, size_type b, size_type h) {
  std::vector<size_type> keys(static_cast<std::size_t>(p.terms.selected->view.cols));
  std::vector<std::uint64_t> taken(static_cast<std::size_t>(key_set_words(p.n_kv(b))));
  selected_row<accumulator_t<Scalar>> row;
  for (size_type i = 0; i < p.n_q(b); ++i) {
    const size_type count = gather_keys(p, b, i, p.selected(b, h).of(i), taken.data(), keys.data());
    streaming_head(selected_head(p, b, h, i, keys.data(), count, row));
  }
}

template <typename Scalar, typename Stored>
void streaming(problem<Scalar, Stored> p) {
  p.gathers = p.terms.gathers_keys();
  const std::vector<accumulator_t<Scalar>> largest = p.make_largest();
  for (size_type b = 0; b < p.batch(); ++b)
    for (size_type h = 0; h < p.num_heads(); ++h)
      p.gathers ? streaming_selected(p, b, h) : streaming_head(p.head(b, h));
  p.write_other_rows();
  p.write_max_logits();
  p.rethrow();
}

}  // namespace detail

/// attention in its tiled, online-softmax form, in plain Eigen for any scalar type: O(n) memory,
/// the readable twin of the kernels.
///
/// query n_q x Dk, key n_kv x Dk, value n_kv x Dv -> n_q x Dv. A row that sees no key is 0. Throws
/// std::invalid_argument for sizes that do not fit together and for options out of range.
///
/// @code
/// const heed::rows<long double> x = heed::rows<long double>::Random(20, 8);
/// const heed::rows<long double> out = heed::streaming_attention(x, x, x);
/// @endcode
template <typename Scalar = deduced, int Dk = Eigen::Dynamic, int Dv = Dk, typename Query,
          typename Key, typename Value, typename... Terms>
auto streaming_attention(const Query& query, const Key& key, const Value& value,
                         const attention_options& options = {}, const Terms&... terms) {
  const detail::inputs<Scalar, Dk, Dv, Query, Key, Value> in("streaming_attention", query, key,
                                                             value);
  typename decltype(in)::output out(in.query.rows, in.value.cols);
  detail::streaming(detail::make_problem("streaming_attention", in.query, in.key, in.value,
                                         writable_view(out), {}, options, terms...));
  return out;
}

/// The same together with the natural-log sum of exponentials of each row (-infinity for a row that
/// sees no key; sinks included).
template <typename Scalar = deduced, int Dk = Eigen::Dynamic, int Dv = Dk, typename Query,
          typename Key, typename Value, typename... Terms>
auto streaming_attention_with_lse(const Query& query, const Key& key, const Value& value,
                                  const attention_options& options = {}, const Terms&... terms) {
  const detail::inputs<Scalar, Dk, Dv, Query, Key, Value> in("streaming_attention_with_lse", query,
                                                             key, value);
  typename decltype(in)::result result(in.query.rows, in.value.cols);
  detail::streaming(detail::make_problem("streaming_attention_with_lse", in.query, in.key, in.value,
                                         writable_view(result.out), writable_view(result.lse),
                                         options, terms...));
  return result;
}

HEED_NAMESPACE_END
