#pragma once

#include <heed/detail/caught.hpp>
#include <heed/detail/check.hpp>
#include <heed/detail/number.hpp>
#include <heed/detail/score.hpp>
#include <heed/detail/sizes.hpp>
#include <heed/detail/starts.hpp>
#include <heed/detail/stored.hpp>
#include <heed/executor.hpp>
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

  matrix_view<const Scalar> query;  // n_q x d_k
  stored_rows<Stored> key, value;   // n_kv x d_k, n_kv x d_v
  matrix_view<Scalar> out;          // n_q x d_v
  matrix_view<accumulator> lse;     // n_q x 1; no data: not wanted
  score_params<accumulator> score;
};

/// One call, checked: what the reference, the streaming form and the kernels all start from. Making
/// one is the only place where arguments are looked at; nothing has been written when it fails.
/// Stored is the scalar of keys and values, which a cache may keep in another type.
template <typename Scalar, typename Stored = Scalar>
struct problem {
  using accumulator = accumulator_t<Scalar>;

  problem(const tensor_view<const Scalar>& q, const stored_tensor<Stored>& k,
          const stored_tensor<Stored>& v, const tensor_view<Scalar>& o,
          const tensor_view<accumulator>& l, const attention_options& opts)
      : query(q), key(k), value(v), out(o), lse(l), options(opts) {}

  tensor_view<const Scalar> query;   // [B,H,n_q,d_k]
  stored_tensor<Stored> key, value;  // [B,H_kv,n_kv,d_k], [B,H_kv,n_kv,d_v]
  tensor_view<Scalar> out;           // [B,H,n_q,d_v]
  tensor_view<accumulator> lse;      // [B,H,n_q,1]; no data: not wanted
  attention_options options;
  detail::terms<accumulator> terms;

  // A call on a cache: queries and keys are tokens of a longer sequence, of which the first
  // key.dropped are gone.
  bool cached = false;

  /// Whether sequences have different numbers of queries, one after the other in one batch entry;
  /// and whether keys are packed so too, or are those of a cache.
  bool ragged() const { return bool(terms.starts); }
  bool packs_keys() const { return terms.starts && terms.starts->packs_keys; }
  size_type batch() const { return ragged() ? terms.starts->queries.size - 1 : query.batch; }
  size_type num_heads() const { return query.heads; }
  /// Whether a row of keys, and of values, continues with that of the next head: those of a token
  /// are one run of memory.
  bool heads_adjoin() const {
    return key.elements.head_stride == key.elements.cols &&
           value.elements.head_stride == value.elements.cols;
  }
  /// Query heads that share one key/value head.
  size_type group() const { return key.heads > 0 ? query.heads / key.heads : 1; }
  size_type n_q(size_type b) const {
    return ragged() ? terms.starts->queries[b + 1] - terms.starts->queries[b] : query.rows;
  }
  index_list query_starts() const { return ragged() ? terms.starts->queries : index_list(); }
  index_list key_starts() const { return ragged() ? terms.starts->keys : index_list(); }
  /// Where sequence b is: its batch entry, and its first rows there.
  size_type query_entry(size_type b) const { return ragged() ? 0 : b; }
  size_type key_entry(size_type b) const { return packs_keys() ? 0 : b; }
  size_type first_query(size_type b) const { return ragged() ? terms.starts->queries[b] : 0; }
  size_type first_key(size_type b) const { return packs_keys() ? terms.starts->keys[b] : 0; }
  /// Keys of sequence b that exist; those past them are never read.
  size_type n_kv(size_type b) const {
    if (packs_keys()) return terms.starts->keys[b + 1] - terms.starts->keys[b];
    return terms.key_lengths ? (*terms.key_lengths)[b] : key.length(b);
  }
  /// Whether the next call may differ from this one in the lengths of its sequences alone, from no
  /// key to key.capacity: a loop of such calls takes its workspace at once.
  bool grows() const { return !ragged() && (cached || terms.key_lengths); }
  double scale() const {
    return options.scale ? *options.scale
                         : 1 / std::sqrt(static_cast<double>((std::max)(query.cols, size_type{1})));
  }

  /// The key that the first query of sequence b stands at.
  size_type diagonal(size_type b) const {
    return options.causal == causal::top_left ? 0 : n_kv(b) - n_q(b);
  }
  /// The visible band of sequence b: causal and window on one diagonal.
  detail::band band(size_type b) const {
    const size_type offset = diagonal(b);
    detail::band visible;
    if (options.window_left >= 0) visible.low = offset - (std::min)(options.window_left, unbounded);
    if (options.window_right >= 0)
      visible.high = offset + (std::min)(options.window_right, unbounded);
    if (options.causal != causal::none) visible.high = offset;
    return visible;
  }

  head_problem<Scalar, Stored> head(size_type b, size_type h) const {
    const size_type h_kv = h / group();
    head_problem<Scalar, Stored> one{query.head(query_entry(b), h, first_query(b), n_q(b)),
                                     key.head(key_entry(b), h_kv, first_key(b), n_kv(b)),
                                     value.head(key_entry(b), h_kv, first_key(b), n_kv(b)),
                                     out.head(query_entry(b), h, first_query(b), n_q(b)),
                                     {},
                                     score(b, h)};
    if (lse.data) one.lse = lse.head(query_entry(b), h, first_query(b), n_q(b));
    return one;
  }

  /// The hooks of what it returns look at this problem: it must stay where it is while they are
  /// used.
  score_params<accumulator> score(size_type b, size_type h) const {
    score_params<accumulator> score;
    score.scale = accumulator(scale());
    if (terms.logit_scales) score.scale *= terms.logit_scales->values[h];
    score.softcap = accumulator(options.softcap);
    score.band = band(b);
    score.b = b;
    score.h = h;
    if (terms.bias || terms.bias_each) {
      const matrix_view<const accumulator> bias =
          terms.bias ? term_head(terms.bias->view, b, h) : terms.bias_each->head(b, h);
      score.bias = bias.data, score.bias_row = bias.row_stride, score.bias_col = bias.col_stride;
    }
    if (terms.keep || terms.keep_each) {
      const matrix_view<const bool> keep =
          terms.keep ? term_head(terms.keep->view, b, h) : terms.keep_each->head(b, h);
      score.keep = keep.data, score.keep_row = keep.row_stride, score.keep_col = keep.col_stride;
    }
    if (terms.alibi) {
      score.has_alibi = true;
      score.alibi_slope = terms.alibi->values[h];
      score.alibi_offset = n_kv(b) - n_q(b);
    }
    if (terms.sparse()) score.blocks = terms.sparse()->params(b, h);
    // A block is whole for the function, not for bits and bytes.
    score.blocks.whole_needs_no_hook = terms.function_blocks && !terms.bits_mask.run &&
                                       !terms.bytes_mask.run && !terms.packed_mask;
    if (terms.score_function.run) score.score_hook = {&run_score_hook, this};
    if (terms.score_derivative.run) score.slope_hook = {&run_slope_hook, this};
    if (terms.bits_mask.run || terms.bytes_mask.run || terms.packed_mask || terms.mask_function.run)
      score.mask_hook = {&run_mask_hook, this};
    if (terms.sinks && !is_negative_infinity(terms.sinks->values[h])) {
      score.has_sink = true;
      score.sink = terms.sinks->values[h];
    }
    if (terms.weight_dropout.run) score.weight_hook = {&run_weight_hook, this};
    return score;
  }

  /// Every path ends with this: what a function of the user has thrown reaches the caller.
  void rethrow() const { caught.rethrow(); }

 private:
  mutable caught_exception caught;

  /// The visible pairs of a block as the user's functions and dropout count them: rows of the call,
  /// or with a cache tokens of the sequence.
  visible_block<accumulator> counted(size_type b, const score_block<accumulator>& block) const {
    visible_block<accumulator> visible{block, band(b)};
    if (!cached) return visible;
    const size_type first_key = key.dropped ? key.dropped[b] : 0,
                    first_query = first_key + diagonal(b);
    visible.i_begin += first_query, visible.i_end += first_query;
    visible.j_begin += first_key, visible.j_end += first_key;
    visible.band.low -= diagonal(b), visible.band.high -= diagonal(b);
    return visible;
  }
  static void run_score_hook(const void* context, size b, size h,
                             const score_block<accumulator>& block) {
    const problem& p = *static_cast<const problem*>(context);
    p.caught.guard([&] {
      p.terms.score_function.run(p.terms.score_function.context, b, h, p.counted(b, block));
    });
  }
  static void run_slope_hook(const void* context, size b, size h,
                             const score_block<accumulator>& block) {
    const problem& p = *static_cast<const problem*>(context);
    p.caught.guard([&] {
      p.terms.score_derivative.run(p.terms.score_derivative.context, b, h, p.counted(b, block));
    });
  }
  static void run_mask_hook(const void* context, size b, size h,
                            const score_block<accumulator>& block) {
    const problem& p = *static_cast<const problem*>(context);
    for (const auto& mask : {p.terms.bits_mask, p.terms.bytes_mask})
      if (mask.run) mask.run(mask.context, b, h, {block, p.band(b)});
    if (p.terms.packed_mask)
      p.terms.packed_mask(*p.terms.packed_bits, b, p.n_kv(b), {block, p.band(b)});
    if (p.terms.mask_function.run)
      p.caught.guard([&] {
        p.terms.mask_function.run(p.terms.mask_function.context, b, h, p.counted(b, block));
      });
  }
  static void run_weight_hook(const void* context, size b, size h,
                              const score_block<accumulator>& block) {
    const problem& p = *static_cast<const problem*>(context);
    p.terms.weight_dropout.run(p.terms.weight_dropout.context, b, h, p.counted(b, block));
  }
};

template <typename Acc>
void check_options(const char* function, const attention_options& options) {
  if (options.scale) check_number<Acc>(function, "scale", *options.scale);
  check_number<Acc>(function, "softcap", options.softcap);
  if (options.softcap < 0)
    fail_with("heed::", function, ": softcap must be 0 (off) or positive, but is ",
              options.softcap);
  if (options.causal > causal::bottom_right)
    fail_with("heed::", function, ": causal must be none, top_left or bottom_right, but is ",
              int(options.causal));
  if (options.window_left < -1)
    fail_with("heed::", function, ": window_left must be -1 (unbounded) or more, but is ",
              options.window_left);
  if (options.window_right < -1)
    fail_with("heed::", function, ": window_right must be -1 (unbounded) or more, but is ",
              options.window_right);
  check_execution(function, options.execution);
}

template <typename Scalar, typename Stored>
void check_terms(const char* function, const problem<Scalar, Stored>& p) {
  const auto& terms = p.terms;
  const size_type batch = p.ragged() ? p.batch() : p.query.batch, heads = p.query.heads,
                  n_q = p.query.rows, n_kv = p.key.rows;
  const auto check_mask = [&](const char* what, const auto& mask, size_type times,
                              const char* columns, size_type wanted) {
    check_view(function, what, mask);
    if (times == 1) check_extent(function, what, "batch", mask.batch, batch);
    if (times < 1 || batch % times != 0 || (times > 1 && mask.batch != batch / times))
      fail_with("heed::", function, ": ", what, " has batch ", mask.batch, " repeated ", times,
                " times, which is not the call's batch ", batch);
    check_extent(function, what, "num_heads", mask.heads, heads);
    check_extent(function, what, "n_q", mask.rows, n_q);
    check_extent(function, what, columns, mask.cols, wanted);
  };
  const auto check_heads = [&](const char* what, const auto& term) {
    if (!term) return;
    check_equal(function, what, term->count, "query's num_heads", heads);
    if (!term->values && heads > 0) fail_view(function, what, 1, 1, 1, heads);
  };
  if (terms.keep) check_mask("keep", terms.keep->view, terms.keep->times, "n_kv", n_kv);
  if (terms.keep_bytes)
    check_mask("keep", terms.keep_bytes->view, terms.keep_bytes->times, "n_kv", n_kv);
  if (terms.bias) check_mask("bias", terms.bias->view, terms.bias->times, "n_kv", n_kv);
  if (terms.keep_bits) {
    check_mask("keep_bits", terms.keep_bits->view, 1, "bytes", (n_kv + 7) / 8);
    check_equal(function, "keep_bits: n_kv", terms.keep_bits->n_kv, "the call's n_kv", n_kv);
    check_equal(function, "keep_bits: bytes per row", terms.keep_bits->view.cols,
                "those of n_kv bits:", (n_kv + 7) / 8);
  }
  check_heads("alibi: slopes", terms.alibi);
  check_heads("sinks: logits", terms.sinks);
  check_heads("logit_scales: factors", terms.logit_scales);
  using Acc = accumulator_t<Scalar>;
  const Acc most = Acc(largest_score<Acc>());
  if (terms.logit_scales)
    for (size_type h = 0; h < heads; ++h) {
      const Acc scale = Acc(p.scale()) * terms.logit_scales->values[h];
      if (scale > most || scale < -most)
        fail_with("heed::", function, ": logit_scales: factor ", h, " is ",
                  shown(terms.logit_scales->values[h]), ", which times the scale ", p.scale(),
                  " is more than a score may be, ", largest_score<Acc>());
    }
  if (terms.sinks)
    for (size_type h = 0; h < heads; ++h) {
      const Acc& sink = terms.sinks->values[h];
      if (sink > most || (sink < -most && !is_negative_infinity(sink)))
        fail_with("heed::", function, ": sinks: logit ", h, " is ", shown(sink),
                  ", but a score's magnitude is at most ", largest_score<Acc>(),
                  " (and no sink is -infinity)");
    }
  if (terms.key_lengths) {
    const index_list& lengths = *terms.key_lengths;
    check_list(function, "key_lengths", lengths);
    check_equal(function, "key_lengths: entries", lengths.size, "query's batch", batch);
    for (size_type b = 0; b < batch; ++b)
      if (lengths[b] < 0 || lengths[b] > n_kv)
        fail_with("heed::", function, ": key_lengths: entry ", b, " is ", lengths[b],
                  ", but kv_length is ", n_kv);
  }
  if (terms.blocks && terms.function_blocks)
    fail_with("heed::", function,
              ": a call takes one block mask, but was given 2: blocks, and that of mask_function");
  if (const block_mask* const mask = terms.sparse()) {
    check_extent(function, "blocks", "batch", mask->batch(), batch);
    check_extent(function, "blocks", "num_heads", mask->heads(), heads);
    check_equal(function, "blocks: n_q", mask->n_q(), "query's n_q", n_q);
    check_equal(function, "blocks: n_kv", mask->n_kv(), "key's kv_length", n_kv);
  }
  if (!(terms.dropout.probability >= 0 && terms.dropout.probability < 1))
    fail_with("heed::", function, ": dropout: probability must be in [0, 1), but is ",
              terms.dropout.probability);
}

/// The bytes that a plan sets aside must be a number.
template <typename Scalar, typename Stored>
void check_scratch(const char* function, const problem<Scalar, Stored>& p) {
  constexpr size_type a_result = size_type{1} << 9;  // bytes at most, of a part of a row
  check_row_scratch(function, p.query.cols, p.value.cols, workers_of(p.options.execution));
  product(function, "scratch for parts of rows, in bytes",
          {p.query.batch, p.query.heads, p.query.rows, p.value.cols + 2, a_result});
}

/// Checks all that the scores of a problem come from.
template <typename Scalar, typename Stored>
void check_scores(const char* function, const problem<Scalar, Stored>& p) {
  const auto& query = p.query;
  const auto &key = p.key, &value = p.value;
  check_view(function, "query", query);
  if (p.ragged()) check_ragged(function, p);
  auto sequences = query;  // each has a batch entry of keys, or all have one
  if (p.ragged() && !p.packs_keys()) sequences.batch = key.batch;
  check_query_key_value(function, sequences, key, value, "kv_length");
  if (!is_none(p.lse)) check_row_numbers(function, "lse", p.lse, query, "n_q");
  check_options<accumulator_t<Scalar>>(function, p.options);
  check_terms(function, p);
  check_each_sequence(function, p);
  check_scratch(function, p);
}

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
  const auto& terms = p.terms;
  check_apart(function, {"out", out}, {"lse", lse}, "query", query, "key", key.elements, "value",
              value.elements, "keep", terms.keep, "keep", terms.keep_bytes, "keep_bits",
              terms.keep_bits, "packed_keep_bits", terms.packed_bits, "bias", terms.bias,
              "alibi: slopes", terms.alibi, "sinks: logits", terms.sinks, "logit_scales: factors",
              terms.logit_scales, "key_lengths", terms.key_lengths, "query_starts",
              p.query_starts(), "key_starts", p.key_starts());
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
