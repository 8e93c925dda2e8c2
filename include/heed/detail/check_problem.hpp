#pragma once

#include <heed/detail/check.hpp>
#include <heed/detail/number.hpp>
#include <heed/detail/pages.hpp>
#include <heed/detail/problem.hpp>
#include <heed/detail/sizes.hpp>
#include <heed/detail/starts.hpp>
#include <heed/executor.hpp>
#include <heed/options.hpp>

// What a call refuses: options out of range, terms and sizes that do not fit together.

HEED_NAMESPACE_BEGIN
namespace detail {

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

/// Lists of keys name no key that their sequence does not have.
template <typename Scalar, typename Stored>
void check_selected_keys(const char* function, const problem<Scalar, Stored>& p) {
  if (!p.terms.selected) return;
  constexpr const char* what = "selected_keys";
  const auto& lists = p.terms.selected->view;
  check_view(function, what, lists);
  check_extent(function, what, "batch", lists.batch, p.query.batch);
  check_extent(function, what, "n_q", lists.rows, p.query.rows);
  if (lists.heads != 1 && lists.heads != p.key.heads && lists.heads != p.num_heads())
    fail_with("heed::", function, ": ", what, " has num_heads ", lists.heads,
              ", which is neither 1 nor the call's num_kv_heads ", p.key.heads,
              " nor its num_heads ", p.num_heads());
  product(function, "scratch for selected_keys, in bytes",
          {lists.cols, size_type{sizeof(size_type)}, workers_of(p.options.execution)});
  for (size_type b = 0; b < p.batch(); ++b)
    for (size_type g = 0; g < (std::min)(lists.heads, p.num_heads()); ++g) {
      const key_lists of_head = p.selected(b, g * (p.num_heads() / lists.heads));
      for (size_type i = 0; i < (lists.rows == 1 ? (std::min)(p.n_q(b), size_type{1}) : p.n_q(b));
           ++i) {
        const key_list list = of_head.of(i);
        for (size_type n = 0; n < list.count; ++n)
          if (list[n] < -1 || list[n] >= p.n_kv(b))
            fail_with("heed::", function, ": ", what, ": query ", i, " of batch entry ", b,
                      " and head ", g, ": entry ", n, " is ", list[n], ", but n_kv is ", p.n_kv(b),
                      " (and -1 is no key)");
      }
    }
}

template <typename Scalar, typename Stored>
void check_terms(const char* function, const problem<Scalar, Stored>& p) {
  const auto& terms = p.terms;
  const size_type batch = p.ragged() ? p.batch() : p.query.batch, heads = p.term_heads(),
                  n_q = p.term_rows(), n_kv = p.term_columns();
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
  terms.bias.visit(
      [&](const auto& bias) { check_mask("bias", bias.view, bias.times, "n_kv", n_kv); });
  if (terms.keep_bits) {
    check_mask("keep_bits", terms.keep_bits->view, 1, "bytes", (n_kv + 7) / 8);
    check_equal(function, "keep_bits: n_kv", terms.keep_bits->n_kv, "the call's n_kv", n_kv);
    check_equal(function, "keep_bits: bytes per row", terms.keep_bits->view.cols,
                "those of n_kv bits:", (n_kv + 7) / 8);
  }
  const auto check_entries = [&](const char* what, const auto& term) {
    if (!term) return;
    check_equal(function, what, term->view.heads, "query's num_heads", heads);
    check_extent(function, what, "batch", term->view.batch, batch);
    check_view(function, what, term->view);
  };
  const auto check_relative = [&](const char* what, const auto& term, const char* whose,
                                  size_type head_dim) {
    if (!term) return;
    const auto& table = term->view;
    check_view(function, what, table);
    if (table.batch != 1)
      fail_with("heed::", function, ": ", what, ": batch ", table.batch,
                " is not that of a table for all, 1");
    check_extent(function, what, "num_heads", table.heads, heads);
    if (term->left < 0 || term->right < 0 || term->left >= table.rows ||
        term->right != table.rows - 1 - term->left)
      fail_with("heed::", function, ": ", what, ": ", table.rows, " rows are not those of ",
                term->left, " places to the left, the query's own and ", term->right,
                " to the right");
    check_axis(function, what, "head_dim", table.cols, whose, head_dim);
    if (table.col_stride != 1 && table.cols > 1)
      fail_with("heed::", function, ": ", what,
                ": the numbers of a row must be side by side in memory, but are ", table.col_stride,
                " apart");
    product(function, "scratch for relative positions, in bytes",
            {table.rows, size_type{1} << 16, workers_of(p.options.execution)});
  };
  check_relative("relative_keys", terms.relative_keys, "query", p.query.cols);
  check_relative("relative_values", terms.relative_values, "value", p.value.cols);
  check_entries("alibi: slopes", terms.alibi);
  check_entries("max_logits", terms.max_logits);
  if (terms.max_logits && terms.sinks)
    fail_with("heed::", function,
              ": max_logits is that of scores, which a sink hides; leave sinks or max_logits out");
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
  const auto check_entries_of = [&](const char* what, const char* entries, const auto& list,
                                    const char* but, const auto& limit) {
    if (!list) return;
    check_list(function, what, *list);
    check_equal(function, entries, list->size, "query's batch", batch);
    for (size_type b = 0; b < batch; ++b)
      if ((*list)[b] < 0 || (*list)[b] > limit(b))
        fail_with("heed::", function, ": ", what, ": entry ", b, " is ", (*list)[b], ", but ", but,
                  " ", limit(b));
  };
  check_entries_of("query_lengths", "query_lengths: entries", terms.query_lengths, "n_q is",
                   [&](size_type b) {
                     return p.whole.places ? p.whole.places[b].queries : p.stored_queries(b);
                   });
  check_entries_of(
      "key_lengths", "key_lengths: entries", terms.key_lengths, "kv_length is",
      [&](size_type b) { return p.whole.places ? p.whole.places[b].keys : p.stored_keys(b); });
  check_entries_of("first_keys", "first_keys: entries", terms.first_keys,
                   "the keys of the sequence end at",
                   [&](size_type b) { return p.key.dropped_from(b) + p.key_end(b); });
  if (terms.first_keys && terms.sparse())
    fail_with(
        "heed::", function,
        ": blocks count rows of keys from the first in memory; with first_keys give keep or a "
        "mask function");
  if (terms.blocks && terms.function_blocks)
    fail_with("heed::", function,
              ": a call takes one block mask, but was given 2: blocks, and that of mask_function");
  if (const block_mask* const mask = terms.sparse()) {
    check_extent(function, "blocks", "batch", mask->batch(), batch);
    check_extent(function, "blocks", "num_heads", mask->heads(), heads);
    check_equal(function, "blocks: n_q", mask->n_q(), "query's n_q", n_q);
    check_equal(function, "blocks: n_kv", mask->n_kv(), "key's kv_length", n_kv);
  }
  check_selected_keys(function, p);
  if (!(terms.dropout.probability >= 0 && terms.dropout.probability < 1))
    fail_with("heed::", function, ": dropout: probability must be in [0, 1), but is ",
              terms.dropout.probability);
}

/// What a call writes is apart from all that its scores and values come from, and from `others`:
/// the one list of what a problem reads.
template <typename Scalar, typename Stored, typename... Others>
void check_apart_from_inputs(const char* function, const problem<Scalar, Stored>& p,
                             const named_region& first, const named_region& second,
                             const Others&... others) {
  const auto &key = p.key, &value = p.value;
  const auto& terms = p.terms;
  check_apart(function, first, second, "query", p.query, "key", key.elements, "value",
              value.elements, "keep", terms.keep, "keep", terms.keep_bytes, "keep_bits",
              terms.keep_bits, "keep_each", terms.keep_each, "packed_keep_bits", terms.packed_bits,
              "packed_keep_bits: starts",
              terms.packed_bits ? terms.packed_bits->starts : index_list(), "selected_keys",
              terms.selected, "bias", terms.bias, "bias_each", terms.bias_each, "relative_keys",
              terms.relative_keys, "relative_values", terms.relative_values, "alibi: slopes",
              terms.alibi, "sinks: logits", terms.sinks, "logit_scales: factors",
              terms.logit_scales, "query_lengths", terms.query_lengths, "key_lengths",
              terms.key_lengths, "first_keys", terms.first_keys, "query_starts", p.query_starts(),
              "key_starts", p.key_starts(), "key's scales", key.scales, "value's scales",
              value.scales, "the table of pages", key.table.region(), "the table's starts",
              key.table.starts(), "lengths", key.lengths, "sequences", key.sequences, others...);
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
  check_paged_lengths(function, key);
  if (p.ragged()) check_ragged(function, p);
  auto sequences = query;  // each has a batch entry of keys, or all have one
  if (p.ragged() && !p.packs_keys()) sequences.batch = key.batch;
  check_query_key_value(function, sequences, key, value, "kv_length");
  if (!is_none(p.lse)) check_row_numbers(function, "lse", p.lse, query, "n_q");
  check_options<accumulator_t<Scalar>>(function, p.options);
  check_terms(function, p);
  check_each_sequence(function, p);
  check_scratch(function, p);
  check_pages(function, p);
}

}  // namespace detail
HEED_NAMESPACE_END
