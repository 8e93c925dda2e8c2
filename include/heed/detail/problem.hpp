#pragma once

#include <heed/detail/check.hpp>
#include <heed/detail/score.hpp>
#include <heed/detail/stored.hpp>
#include <heed/options.hpp>
#include <heed/tensor.hpp>
#include <heed/terms.hpp>

#include <algorithm>
#include <cmath>

HEED_NAMESPACE_BEGIN
namespace detail {

/// One head of one sequence: what a path computes at a time.
template <typename Scalar, typename Stored = Scalar>
struct head_problem {
  using accumulator = accumulator_t<Scalar>;

  matrix_view<const Scalar> query;              // n_q x d_k
  stored_rows<Stored> key, value;               // n_kv x d_k, n_kv x d_v
  matrix_view<Scalar> out;                      // n_q x d_v
  matrix_view<accumulator> lse;                 // n_q x 1; no data: not wanted
  score_params<accumulator> score;
};

/// One call, checked: what the reference, the streaming form and the kernels all start from. Making one is the only place where arguments
/// are looked at; nothing has been written when it fails. Stored is the scalar of keys and values, which a cache may keep in another type.
template <typename Scalar, typename Stored = Scalar>
struct problem {
  using accumulator = accumulator_t<Scalar>;

  tensor_view<const Scalar> query;              // [B,H,n_q,d_k]
  stored_tensor<Stored> key, value;             // [B,H_kv,n_kv,d_k], [B,H_kv,n_kv,d_v]
  tensor_view<Scalar> out;                      // [B,H,n_q,d_v]
  tensor_view<accumulator> lse;                 // [B,H,n_q,1]; no data: not wanted
  attention_options options;
  detail::terms<accumulator> terms;

  // A ragged batch: sequence b has these rows of the tensors' one batch entry. Null: every batch entry is a sequence.
  const index* query_starts = nullptr;
  const index* key_starts = nullptr;
  index sequences = 0;

  index batch() const { return query_starts ? sequences : query.batch; }
  index num_heads() const { return query.heads; }
  /// Query heads that share one key/value head.
  index group() const { return key.heads > 0 ? query.heads / key.heads : 1; }
  index n_q(index b) const { return query_starts ? query_starts[b + 1] - query_starts[b] : query.rows; }
  /// Keys of sequence b that exist; those behind are never read.
  index n_kv(index b) const {
    if (key_starts) return key_starts[b + 1] - key_starts[b];
    return terms.key_lengths.lengths.data ? terms.key_lengths.lengths[b] : key.rows;
  }
  double scale() const { return options.scale ? *options.scale : 1 / std::sqrt(static_cast<double>((std::max)(query.cols, index(1)))); }

  /// The visible band of sequence b: causal and window on one diagonal.
  detail::band band(index b) const {
    const index offset = options.causal == causal::top_left ? 0 : n_kv(b) - n_q(b);
    detail::band visible;
    if (options.window_left >= 0) visible.low = offset - (std::min)(options.window_left, unbounded);
    if (options.window_right >= 0) visible.high = offset + (std::min)(options.window_right, unbounded);
    if (options.causal != causal::none) visible.high = offset;
    return visible;
  }

  head_problem<Scalar, Stored> head(index b, index h) const {
    const index h_kv = h / group();
    const index entry = query_starts ? 0 : b, first_query = query_starts ? query_starts[b] : 0, first_key = key_starts ? key_starts[b] : 0;
    head_problem<Scalar, Stored> one{query.head(entry, h, first_query, n_q(b)),
                                     key.head(entry, h_kv, first_key, n_kv(b)),
                                     value.head(entry, h_kv, first_key, n_kv(b)),
                                     out.head(entry, h, first_query, n_q(b)),
                                     {},
                                     score(b, h)};
    if (lse.data) one.lse = lse.head(entry, h, first_query, n_q(b));
    return one;
  }

  score_params<accumulator> score(index b, index h) const {
    const auto at = [](index stride, index extent) { return extent > 1 ? stride : 0; };  // an extent of 1 is broadcast
    score_params<accumulator> score;
    score.scale = accumulator(scale());
    score.softcap = accumulator(options.softcap);
    score.band = band(b);
    score.b = b;
    score.h = h;
    if (terms.bias.data) {
      score.bias = terms.bias.data + b * at(terms.bias.batch_stride, terms.bias.batch) + h * at(terms.bias.head_stride, terms.bias.heads);
      score.bias_row = at(terms.bias.row_stride, terms.bias.rows);
      score.bias_col = at(terms.bias.col_stride, terms.bias.cols);
    }
    if (terms.keep.data) {
      score.keep = terms.keep.data + b * at(terms.keep.batch_stride, terms.keep.batch) + h * at(terms.keep.head_stride, terms.keep.heads);
      score.keep_row = at(terms.keep.row_stride, terms.keep.rows);
      score.keep_col = at(terms.keep.col_stride, terms.keep.cols);
    }
    if (terms.alibi.slopes) {
      score.alibi_slope = terms.alibi.slopes[h];
      score.alibi_offset = n_kv(b) - n_q(b);
    }
    if (terms.sinks.logits && !is_negative_infinity(terms.sinks.logits[h])) {
      score.has_sink = true;
      score.sink = terms.sinks.logits[h];
    }
    return score;
  }
};

inline void check_options(const char* function, const attention_options& options) {
  if (options.scale && !is_finite(*options.scale)) fail_with("heed::", function, ": scale must be finite, but is ", *options.scale);
  if (!is_finite(options.softcap) || options.softcap < 0)
    fail_with("heed::", function, ": softcap must be 0 (off) or positive and finite, but is ", options.softcap);
  if (options.window_left < -1) fail_with("heed::", function, ": window_left must be -1 (unbounded) or more, but is ", options.window_left);
  if (options.window_right < -1) fail_with("heed::", function, ": window_right must be -1 (unbounded) or more, but is ", options.window_right);
  if (options.threads < 1) fail_with("heed::", function, ": threads must be 1 or more, but is ", options.threads);
}

template <typename Element, typename Problem>
void check_broadcast(const char* function, const char* what, const tensor_view<const Element>& mask, const Problem& p) {
  if (!mask.data) return;
  const auto check = [&](const char* axis, index extent, index wanted) {
    if (extent != 1 && extent != wanted)
      fail_with("heed::", function, ": ", what, " has ", axis, " ", extent, ", which is neither 1 nor the call's ", axis, " ", wanted);
  };
  check("batch", mask.batch, p.query.batch);
  check("num_heads", mask.heads, p.query.heads);
  check("n_q", mask.rows, p.query.rows);
  check("n_kv", mask.cols, p.key.rows);
}

/// Checks every argument of `function` and makes the problem of them.
template <typename Scalar, typename Stored, typename... Terms>
problem<Scalar, Stored> make_stored_problem(const char* function, const tensor_view<const Scalar>& query, const stored_tensor<Stored>& key,
                                            const stored_tensor<Stored>& value, const tensor_view<Scalar>& out,
                                            const tensor_view<accumulator_t<Scalar>>& lse, const attention_options& options,
                                            const Terms&... given) {
  problem<Scalar, Stored> p{query, key, value, out, lse, options, {}, nullptr, nullptr, 0};
  (p.terms.add(given), ...);

  check_equal(function, "key: head_dim", key.cols, "query's head_dim", query.cols);
  check_equal(function, "value: kv_length", value.rows, "key's kv_length", key.rows);
  check_equal(function, "key: batch", key.batch, "query's batch", query.batch);
  check_equal(function, "value: batch", value.batch, "key's batch", key.batch);
  check_equal(function, "value: num_kv_heads", value.heads, "key's num_kv_heads", key.heads);
  if (key.heads == 0 ? query.heads != 0 : query.heads % key.heads != 0)
    fail_with("heed::", function, ": query: num_heads ", query.heads, " is not a multiple of num_kv_heads ", key.heads);
  check_equal(function, "out: batch", out.batch, "query's batch", query.batch);
  check_equal(function, "out: num_heads", out.heads, "query's num_heads", query.heads);
  check_equal(function, "out: n_q", out.rows, "query's n_q", query.rows);
  check_equal(function, "out: head_dim", out.cols, "value's head_dim", value.cols);
  if (lse.data) {
    check_equal(function, "lse: batch", lse.batch, "query's batch", query.batch);
    check_equal(function, "lse: num_heads", lse.heads, "query's num_heads", query.heads);
    check_equal(function, "lse: n_q", lse.rows, "query's n_q", query.rows);
    check_equal(function, "lse: columns", lse.cols, "one number a row:", index(1));
  }
  check_options(function, options);

  check_broadcast(function, "keep", p.terms.keep, p);
  check_broadcast(function, "bias", p.terms.bias, p);
  if (p.terms.alibi.slopes) check_equal(function, "alibi: slopes", p.terms.alibi.count, "query's num_heads", query.heads);
  if (p.terms.sinks.logits) check_equal(function, "sinks: logits", p.terms.sinks.count, "query's num_heads", query.heads);
  if (p.terms.key_lengths.lengths.data) {
    check_equal(function, "key_lengths: entries", p.terms.key_lengths.lengths.size, "query's batch", query.batch);
    for (index b = 0; b < query.batch; ++b)
      if (p.n_kv(b) < 0 || p.n_kv(b) > key.rows)
        fail_with("heed::", function, ": key_lengths: entry ", b, " is ", p.n_kv(b), ", but kv_length is ", key.rows);
  }
  return p;
}

/// The same for keys and values in plain tensors of the query's type.
template <typename Scalar, typename... Terms>
problem<Scalar> make_problem(const char* function, const tensor_view<const Scalar>& query, const tensor_view<const Scalar>& key,
                             const tensor_view<const Scalar>& value, const tensor_view<Scalar>& out,
                             const tensor_view<accumulator_t<Scalar>>& lse, const attention_options& options, const Terms&... given) {
  return make_stored_problem<Scalar, Scalar>(function, query, key, value, out, lse, options, given...);
}

}  // namespace detail
HEED_NAMESPACE_END
