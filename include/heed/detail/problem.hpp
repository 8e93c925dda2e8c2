#pragma once

#include <heed/detail/caught.hpp>
#include <heed/detail/number.hpp>
#include <heed/detail/score.hpp>
#include <heed/detail/stored.hpp>
#include <heed/options.hpp>
#include <heed/tensor.hpp>
#include <heed/terms.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

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
  accumulator* largest;             // score of each query, n_q of them; null: not wanted
  score_params<accumulator> score;
};

/// The visible band of options on a diagonal: causal and window.
inline band band_on(const attention_options& options, size_type diagonal) {
  band visible;
  if (options.window_left >= 0) visible.low = diagonal - (std::min)(options.window_left, unbounded);
  if (options.window_right >= 0)
    visible.high = diagonal + (std::min)(options.window_right, unbounded);
  if (options.causal != causal::none) visible.high = diagonal;
  return visible;
}

/// Where a call that is a part of a whole lies in a sequence of it: the first query and key of the
/// call are these tokens of `queries` and `keys` ones.
struct place {
  size_type first_query = 0, first_key = 0, queries = 0, keys = 0;

  /// The key that the first query stands at, counted from the first key.
  size_type diagonal(causal kind) const {
    return (kind == causal::top_left ? 0 : keys - queries) + first_query - first_key;
  }
};

/// What a call that is a part of a whole has of it. Its terms are the whole's: they have a head for
/// each of `heads`, a row for each of `rows` queries and a column for each of `columns` keys.
struct whole_call {
  const place* places = nullptr;  // of each sequence; null: the call is the whole
  size_type heads = 0, rows = 0, columns = 0;
  size_type first_head = 0, first_row = 0;  // where the call's begin among those of its terms
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

  accumulator* largest = nullptr;  // score of each row of query, [B,H,n_q]; null: not wanted

  // Of selected keys, only those in the list of a row are looked at; else the lists are a mask.
  bool gathers = false;

  // A call on a cache: queries and keys are tokens of a longer sequence, of which the first
  // key.dropped are gone.
  bool cached = false;

  // A call that is a part of a whole: causal, windows, ALiBi, functions, masks and dropout count
  // tokens of the whole.
  whole_call whole;

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
  /// The sequence of row `row` of all [batch, n_q] rows of queries.
  size_type sequence_of(size_type row) const {
    if (!ragged()) return row / query.rows;
    size_type b = 0, end = batch();
    while (end - b > 1) {
      const size_type middle = b + (end - b) / 2;
      (terms.starts->queries[middle] <= row ? b : end) = middle;
    }
    return b;
  }
  /// The rows of queries that sequence b has in memory, and those that are its queries: the others
  /// are never read.
  size_type stored_queries(size_type b) const {
    return ragged() ? terms.starts->queries[b + 1] - terms.starts->queries[b] : query.rows;
  }
  size_type n_q(size_type b) const {
    return terms.query_lengths ? (*terms.query_lengths)[b] : stored_queries(b);
  }
  index_list query_starts() const { return ragged() ? terms.starts->queries : index_list(); }
  index_list key_starts() const { return ragged() ? terms.starts->keys : index_list(); }
  /// Where sequence b is: its batch entry, and its first rows there.
  size_type query_entry(size_type b) const { return ragged() ? 0 : b; }
  size_type key_entry(size_type b) const { return packs_keys() ? 0 : b; }
  size_type first_query(size_type b) const { return ragged() ? terms.starts->queries[b] : 0; }
  size_type first_row(size_type b) const { return packs_keys() ? terms.starts->keys[b] : 0; }
  size_type first_key(size_type b) const { return first_row(b) + skipped(b); }
  /// The rows of keys that sequence b has in memory, and those of them that are before its first
  /// key or, with these, before its end: the others are never read.
  size_type stored_keys(size_type b) const {
    return packs_keys() ? terms.starts->keys[b + 1] - terms.starts->keys[b] : key.length(b);
  }
  size_type skipped(size_type b) const {
    if (!terms.first_keys) return 0;
    return (std::max)(size_type{0}, (*terms.first_keys)[b] - key.dropped_from(b));
  }
  size_type key_end(size_type b) const {
    return terms.key_lengths ? (*terms.key_lengths)[b] : stored_keys(b);
  }
  /// Keys of sequence b.
  size_type n_kv(size_type b) const { return key_end(b) - skipped(b); }
  /// Keys of sequence b that a rolling cache has dropped.
  size_type dropped(size_type b) const {
    const size_type first = terms.first_keys ? (*terms.first_keys)[b] : 0;
    return (std::max)(size_type{0}, key.dropped_from(b) - first);
  }
  /// Whether the next call may differ from this one in the lengths of its sequences alone, from no
  /// key to key.capacity: a loop of such calls takes its workspace at once. (That of gathered keys
  /// is the same at all lengths.)
  bool grows() const {
    return !ragged() && !terms.query_lengths && !terms.gathers_keys() &&
           (cached || terms.key_lengths);
  }
  /// The keys that the queries of a head of sequence b have selected.
  key_lists selected(size_type b, size_type h) const {
    const auto& all = terms.selected->view;
    auto lists = broadcast_head(all, query_entry(b), h * all.heads / num_heads());
    lists.data += first_query(b) * lists.row_stride;
    return {lists, terms.selected->width};
  }
  double scale() const {
    return options.scale ? *options.scale
                         : 1 / std::sqrt(static_cast<double>((std::max)(query.cols, size_type{1})));
  }

  /// The key that the first query of sequence b stands at.
  size_type diagonal(size_type b) const { return place_of(b).diagonal(options.causal); }
  /// The visible band of sequence b.
  detail::band band(size_type b) const { return band_on(options, diagonal(b)); }

  /// Where sequence b of the call lies in the whole, which is the call itself but for parts.
  place place_of(size_type b) const {
    return whole.places ? whole.places[b] : place{0, 0, n_q(b), n_kv(b)};
  }
  /// The sizes that terms have.
  size_type term_heads() const { return whole.places ? whole.heads : query.heads; }
  size_type term_rows() const { return whole.places ? whole.rows : query.rows; }
  size_type term_columns() const { return whole.places ? whole.columns : key.rows; }
  /// The column of terms that the first key of sequence b has.
  size_type first_column(size_type b) const {
    return whole.places ? whole.places[b].first_key : skipped(b);
  }

  accumulator* largest_scores(size_type b, size_type h) const {
    if (!largest) return nullptr;
    return largest + (query_entry(b) * num_heads() + h) * query.rows + first_query(b);
  }
  /// Makes room for the largest scores where they are wanted and no workspace has it.
  std::vector<accumulator> make_largest() {
    if (!terms.max_logits) return {};
    std::vector<accumulator> room(static_cast<std::size_t>(query.batch * query.heads * query.rows));
    largest = room.data();
    return room;
  }
  /// Rows that are no queries: 0, and -infinity as their lse.
  void write_other_rows() const {
    for (size_type b = 0; terms.query_lengths && b < batch(); ++b)
      for (size_type h = 0; h < num_heads(); ++h)
        for (size_type i = first_query(b) + n_q(b); i < first_query(b) + stored_queries(b); ++i) {
          for (size_type c = 0; c < out.cols; ++c)
            out(query_entry(b), h, i, c) = Scalar(accumulator(0));
          if (lse.data) lse(query_entry(b), h, i, 0) = negative_infinity<accumulator>();
        }
  }
  /// The largest score of each head, of the queries that it counts.
  void write_max_logits() const {
    if (!terms.max_logits) return;
    const auto& view = terms.max_logits->view;
    for (size_type b = 0; b < view.batch; ++b)
      for (size_type h = 0; h < view.heads; ++h)
        view(b, h, 0, 0) = negative_infinity<accumulator>();
    for (size_type b = 0; b < batch(); ++b)
      for (size_type h = 0; h < num_heads(); ++h) {
        accumulator& most = term_head(view, b, h)(0, 0);
        const accumulator* const scores = largest_scores(b, h);
        for (size_type i = 0; i < n_q(b); ++i)
          if (!is_negative_infinity(scores[i]) && (is_negative_infinity(most) || scores[i] > most))
            most = scores[i];
      }
  }
  /// The keys of sequence b that any of its queries may see by position.
  index_range reach(size_type b) const {
    const index_range keys = band(b).keys_of(0, n_q(b), n_kv(b));
    return keys.empty() ? index_range() : keys;
  }

  head_problem<Scalar, Stored> head(size_type b, size_type h) const {
    return head(b, h, 0, n_q(b));
  }
  /// Queries [first, first + count) alone; the score still counts from the first of the sequence.
  head_problem<Scalar, Stored> head(size_type b, size_type h, size_type first,
                                    size_type count) const {
    const size_type h_kv = h / group(), row = first_query(b) + first;
    head_problem<Scalar, Stored> one{query.head(query_entry(b), h, row, count),
                                     key.head(key_entry(b), h_kv, first_key(b), n_kv(b)),
                                     value.head(key_entry(b), h_kv, first_key(b), n_kv(b)),
                                     out.head(query_entry(b), h, row, count),
                                     {},
                                     nullptr,
                                     score(b, h)};
    if (lse.data) one.lse = lse.head(query_entry(b), h, row, count);
    if (largest) one.largest = largest_scores(b, h) + first;
    return one;
  }

  /// What head h of sequence b has of a term with a row for each query and a column for each row of
  /// keys: those of its first query and key are the first.
  template <typename Element>
  matrix_view<Element> from_first_key(const tensor_view<Element>& term, size_type b,
                                      size_type h) const {
    matrix_view<Element> one = term_head(term, b, h);
    one.data += whole.first_row * one.row_stride + first_column(b) * one.col_stride;
    return one;
  }

  /// The hooks of what it returns look at this problem: it must stay where it is while they are
  /// used.
  score_params<accumulator> score(size_type b, size_type h) const {
    h += whole.first_head;
    score_params<accumulator> score;
    if (terms.relative_keys) score.relative_keys = terms.relative_keys->head(h);
    if (terms.relative_values) score.relative_values = terms.relative_values->head(h);
    score.distance_offset = place_of(b).diagonal(causal::none);
    score.scale = accumulator(scale());
    if (terms.logit_scales) score.scale *= terms.logit_scales->values[h];
    score.softcap = accumulator(options.softcap);
    score.band = band(b);
    score.b = b;
    score.h = h;
    const auto add_bias = [&](const auto& bias) {
      using Number = std::decay_t<decltype(*bias.data)>;
      score.bias = bias.data, score.bias_type = bias_numbers_of<Number>;
      score.bias_row = bias.row_stride, score.bias_col = bias.col_stride;
    };
    terms.bias.visit([&](const auto& bias) { add_bias(from_first_key(bias.view, b, h)); });
    terms.bias_each.visit([&](const auto& bias) { add_bias(bias.head(b, h)); });
    if (terms.keep || terms.keep_each) {
      const matrix_view<const bool> keep =
          terms.keep ? from_first_key(terms.keep->view, b, h) : terms.keep_each->head(b, h);
      score.keep = keep.data, score.keep_row = keep.row_stride, score.keep_col = keep.col_stride;
    }
    if (terms.alibi) {
      score.has_alibi = true;
      score.alibi_slope = term_head(terms.alibi->view, b, h)(0, 0);
    }
    if (terms.sparse()) score.blocks = terms.sparse()->params(b, h);
    // A block is whole for the function, not for bits and bytes.
    score.blocks.whole_needs_no_hook = terms.function_blocks && !terms.bits_mask.run &&
                                       !terms.bytes_mask.run && !terms.packed_mask &&
                                       !masks_unselected();
    if (terms.score_function.run) score.score_hook = {&run_score_hook, this};
    if (terms.score_derivative.run) score.slope_hook = {&run_slope_hook, this};
    if (terms.bits_mask.run || terms.bytes_mask.run || terms.packed_mask ||
        terms.mask_function.run || masks_unselected())
      score.mask_hook = {&run_mask_hook, this};
    if (terms.sinks && !is_negative_infinity(terms.sinks->values[h])) {
      score.has_sink = true;
      score.sink = terms.sinks->values[h];
    }
    score.final_weights = terms.weight_function.run != nullptr;
    if (terms.weight_function.run || terms.weight_dropout.run)
      score.weight_hook = {&run_weight_hook, this};
    return score;
  }

  /// Every path ends with this: what a function of the user has thrown reaches the caller.
  void rethrow() const { caught.rethrow(); }

 private:
  mutable caught_exception caught;

  bool masks_unselected() const { return terms.selected && !gathers; }

  /// The visible pairs of a block as the user's functions and dropout count them: rows of the call,
  /// of the whole, or with a cache tokens of the sequence.
  visible_block<accumulator> counted(size_type b, const score_block<accumulator>& block) const {
    if (!cached && !whole.places) return {block, band(b)};
    const size_type before = whole.places ? whole.places[b].first_key : dropped(b);
    return moved(b, block, cached ? before + diagonal(b) : whole.places[b].first_query, before);
  }
  /// The same where the first query and key have other numbers.
  visible_block<accumulator> moved(size_type b, const score_block<accumulator>& block,
                                   size_type first_query, size_type first_key) const {
    visible_block<accumulator> visible{block, band(b)};
    visible.i_begin += first_query, visible.i_end += first_query;
    visible.j_begin += first_key, visible.j_end += first_key;
    visible.band.low += first_key - first_query, visible.band.high += first_key - first_query;
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
    const visible_block<accumulator> in_rows =  // of the mask
        p.moved(b, block, p.whole.first_row, p.first_column(b));
    for (const auto& mask : {p.terms.bits_mask, p.terms.bytes_mask})
      if (mask.run) mask.run(mask.context, b, h, in_rows);
    if (p.terms.packed_mask)
      p.terms.packed_mask(*p.terms.packed_bits, b, p.n_kv(b), {block, p.band(b)});
    if (p.masks_unselected()) p.terms.selected_mask(p.selected(b, h), {block, p.band(b)});
    if (p.terms.mask_function.run)
      p.caught.guard([&] {
        p.terms.mask_function.run(p.terms.mask_function.context, b, h, p.counted(b, block));
      });
  }
  static void run_weight_hook(const void* context, size b, size h,
                              const score_block<accumulator>& block) {
    const problem& p = *static_cast<const problem*>(context);
    const auto& terms = p.terms;
    if (terms.weight_function.run)
      p.caught.guard([&] {
        terms.weight_function.run(terms.weight_function.context, b, h, p.counted(b, block));
      });
    if (terms.weight_dropout.run)
      terms.weight_dropout.run(terms.weight_dropout.context, b, h, p.counted(b, block));
  }
};

}  // namespace detail
HEED_NAMESPACE_END
