#pragma once

#include <heed/detail/params.hpp>

// The boundary between the plan of the gradient and its kernels.

HEED_NAMESPACE_BEGIN
namespace detail {

/// Keys and queries of a block; multiples of the sides of every register tile.
constexpr size backward_keys = 96;
/// Fewer queries where a block of them is copied, as 16-bit types always are: a task's memory stays
/// within a second-level cache. It follows from the type alone, since it is the order of sums.
template <typename In>
constexpr size backward_queries = sizeof(In) == 2 ? 48 : 96;

/// Rows of a tensor, of any strides.
template <typename Element>
struct strided_rows {
  Element* data = nullptr;
  size row = 0, col = 1;

  Element* at(size r) const { return data + r * row; }
};

/// What the products of a head's terms add up to over a block of queries: in double, for what
/// rows add may cancel.
struct backward_sums {
  double alibi = 0, logit_scale = 0;
};

/// A query head of a task.
template <typename In, typename Acc>
struct backward_head {
  strided_rows<const In> query, grad_out;
  strided_rows<Acc> grad_query;  // sums: the output itself, or rows that are rounded to it at last
  const Acc *shift = nullptr, *delta = nullptr;  // of each row: see row_statistics
  score_params<Acc> score;
  Acc logit_scale = 1;  // of the head, in score.scale too
  bool has_logit_scale = false;
  bool keeps_scores = false;      // terms need the dot products after they have become weights
  strided_rows<Acc> grad_bias;    // no data: not wanted
  backward_sums* sums = nullptr;  // of each block of queries; null: not wanted

  /// Whether scores are more than scaled dot products.
  bool changes_scores() const { return keeps_scores || score.changes_scores(); }
  /// Whether scores, weights or gradients are more than those of dot products that position hides.
  bool changes_rows() const {
    return changes_scores() || score.keep || score.mask_hook.run || score.weight_hook.run ||
           grad_bias.data || sums;
  }
};

/// What a call keeps in scratch besides what every call does.
struct backward_needs {
  bool copies = false;  // queries, which cannot be read where they are
  bool scores = false, slopes = false,
       dropped = false;  // of a panel: products, f', P after dropout
};

/// A block of keys of one key/value head, and all queries that see it.
template <typename In, typename Acc>
struct backward_task {
  strided_rows<const In> key, value;  // from row 0 on
  strided_rows<In> grad_key, grad_value;
  size j0 = 0, keys = 0;  // rows [j0, j0 + keys)
  size n_q = 0, d_k = 0, d_v = 0;
  Acc scale = 1;  // of the call
  backward_needs needs;
  void* scratch = nullptr;  // 64-byte aligned, of the bytes of a backward_layout
};

/// What the gradient has to know of each query row.
template <typename In, typename Out, typename Acc>
struct row_statistics {
  strided_rows<const In> grad_out;
  strided_rows<const Out> out;
  strided_rows<const Acc> lse, grad_lse;  // natural; no grad_lse: 0
  size rows = 0, d_v = 0;
  Acc* shift_to = nullptr;  // -lse; -infinity for a row that sees no key
  Acc* delta_to = nullptr;  // D: the sum of dO O, less the gradient of the log-sum-exp. 0 for a row
                            // that sees no key, NaN where lse is no number
};

/// What a task notes down of its keys, and of the block of queries at hand.
struct backward_notes {
  bool keys_finite, careful;
  backward_sums sums;
};

/// Where a task keeps what. A panel is as many keys as a register tile is wide.
template <typename Acc>
struct backward_layout : scratch_layout {
  size weights;               // panels of P, then of dS: queries x keys
  size key, value;            // panels of K^T and of V^T
  size grad_key, grad_value;  // panels of dK^T and of dV^T
  size strips;         // K as dQ wants it: two vectors of columns of all keys, then the next two
  size seen;           // of each pair of the block of queries, where there are NaNs or infinities
  size panels, notes;  // the queries that have seen each panel; backward_notes
  size query_copy, grad_out_copy;
  size scores, slopes, dropped;

  backward_layout(size queries, size d_k, size d_v, const backward_needs& needs) {
    const size wide_k = padded_row(d_k), wide_v = padded_row(d_v);
    weights = take<Acc>(backward_keys * queries);
    key = take<Acc>(backward_keys * wide_k);
    value = take<Acc>(backward_keys * wide_v);
    grad_key = take<Acc>(backward_keys * wide_k);
    grad_value = take<Acc>(backward_keys * wide_v);
    strips = take<Acc>(backward_keys * (wide_k + 16));
    seen = take<bool>(backward_keys * queries);
    panels = take<index_range>(backward_keys);
    notes = take<backward_notes>(1);
    query_copy = take<Acc>(needs.copies ? queries * wide_k : 0);
    grad_out_copy = take<Acc>(needs.copies ? queries * wide_v : 0);
    const size panel = queries * backward_panel_limit;
    scores = take<Acc>(needs.scores ? panel : 0);
    slopes = take<Acc>(needs.slopes ? panel : 0);
    dropped = take<Acc>(needs.dropped ? panel : 0);
  }
  static constexpr size backward_panel_limit = 48;  // keys of the widest panel
};

/// The kernels of the gradient, of one instruction set. Of the two that take a block of queries the
/// second may run only in the task's turn.
template <typename In, typename Out, typename Acc>
struct backward_kernel {
  using task = backward_task<In, Acc>;
  using head = backward_head<In, Acc>;
  void (*measure_rows)(const row_statistics<In, Out, Acc>&) noexcept;
  void (*begin)(const task&) noexcept;
  void (*add_key_grads)(const task&, const head&, size block) noexcept;
  void (*add_query_grads)(const task&, const head&, size block) noexcept;
  void (*end)(const task&) noexcept;
  void (*round_rows)(const Acc* from, size from_row, size rows, size cols, In* to, size row,
                     size col) noexcept;
};

}  // namespace detail
HEED_NAMESPACE_END
