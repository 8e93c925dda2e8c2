#pragma once

#include <heed/detail/check.hpp>
#include <heed/detail/given.hpp>
#include <heed/detail/number.hpp>
#include <heed/detail/recurrence.hpp>
#include <heed/detail/sizes.hpp>
#include <heed/executor.hpp>
#include <heed/linear_options.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

HEED_NAMESPACE_BEGIN
namespace detail {
template <typename Scalar>
struct log_gate_term {
  tensor_view<const Scalar> view;
};
template <typename Scalar>
struct bonus_term {
  tensor_view<const Scalar> view;
};

/// Where the state after every so many tokens goes, and after the last.
template <typename Scalar>
struct chunk_states_term {
  tensor_view<Scalar> view;
  size_type tokens;
};

/// All terms of one call, typed for its accumulator.
template <typename Acc>
struct linear_terms {
  std::optional<tensor_view<const Acc>> log_gate, bonus;
  std::optional<tensor_view<Acc>> carry;
  std::optional<chunk_states_term<Acc>> states;
  std::optional<index_list> starts;

  void add(const sequence_starts_term& term) { starts = term.starts; }
  void add(const chunk_states_term<Acc>& term) { states = term; }
  void add(const log_gate_term<Acc>& term) { log_gate = term.view; }
  void add(const bonus_term<Acc>& term) { bonus = term.view; }
  void add(const carry_term<Acc>& term) { carry = term.view; }
  template <typename Other>
  void add(const Other&) {
    static_assert(sizeof(Other) == 0,
                  "not a term of linear attention, or one of another scalar type: log_gate, bonus, "
                  "carry and chunk_states take the type of the state "
                  "(float for float, half and bfloat16; double for double)");
  }
};

/// One key/value head of one sequence together with the query heads that read its state.
template <typename Scalar>
struct linear_head {
  using accumulator = accumulator_t<Scalar>;

  tensor_view<const Scalar> query;          // [1,group,T,d_k]
  matrix_view<const Scalar> key, value;     // T x d_k, T x d_v
  tensor_view<Scalar> out;                  // [1,group,T,d_v]
  matrix_view<const accumulator> log_gate;  // T x 1 or T x d_k; no data: no decay
  matrix_view<const accumulator> beta;      // T x 1; no data: plain sums instead of the delta rule
  matrix_view<const accumulator> bonus;     // 1 x d_k; no data: the state is read after the update
  matrix_view<accumulator> state;  // d_k x state_cols; no data: starts at 0 and is not kept
};

/// Tokens [begin, end) of a sequence that run as one call would, and the entry of the wanted states
/// that has the one after them; -1: none is wanted.
struct linear_part {
  size_type begin, end, entry;
};

/// One call of linear attention or of the delta rule, checked: what the recurrent and the chunked
/// form both start from.
template <typename Scalar>
struct linear_problem {
  using accumulator = accumulator_t<Scalar>;

  tensor_view<const Scalar> query, key, value;  // [B,H,T,d_k], [B,H_k,T,d_k], [B,H_v,T,d_v]
  tensor_view<Scalar> out;                      // [B,max(H,H_v),T,d_v]
  std::optional<tensor_view<const accumulator>>
      beta;  // of the delta rule: [B,H_v,T,1], each extent its own or 1
  linear_attention_options options;
  linear_terms<accumulator> terms;
  detail::sequences sequences;

  /// Heads that have a state: those of values.
  size_type heads() const { return value.heads; }
  /// Query heads that read a state; several states may have the same.
  size_type group() const { return out_heads() / (std::max)(heads(), size_type{1}); }
  size_type out_heads() const { return query.heads > 0 ? (std::max)(query.heads, heads()) : 0; }
  size_type state_cols() const { return value.cols + (options.normalise ? 1 : 0); }
  /// Whether the rows of a token come before those of the next, as where heads are the columns of
  /// one matrix: they share pages, whatever is between them.
  bool heads_interleave() const {
    return heads() > 1 && key.head_stride < key.row_stride && value.head_stride < value.row_stride;
  }
  double scale() const {
    if (options.scale) return *options.scale;
    return options.feature_map == feature_map::none
               ? 1 / std::sqrt(static_cast<double>((std::max)(query.cols, size_type{1})))
               : 1.0;
  }
  linear_head<Scalar> head(size_type b, size_type h, const linear_part& part) const {
    linear_head<Scalar> one;
    const size_type length = part.end - part.begin;
    const auto from_begin = [&](auto view) {
      view.data += part.begin * view.row_stride;
      return view;
    };
    one.query = from_begin(group_of(sequences.of(query, b), h));
    one.key = sequences.of(key, b).head(0, h * key.heads / heads(), part.begin, length);
    one.value = sequences.of(value, b).head(0, h, part.begin, length);
    one.out = from_begin(group_of(sequences.of(out, b), h));
    if (terms.log_gate)
      one.log_gate = from_begin(broadcast_head(sequences.of(*terms.log_gate, b), 0, h));
    if (beta) one.beta = from_begin(broadcast_head(sequences.of(*beta, b), 0, h));
    if (terms.bonus) one.bonus = broadcast_head(sequences.of(*terms.bonus, b), 0, h);
    if (part.entry >= 0)
      one.state = state_at(terms.states->view, part.entry, h);
    else if (terms.carry)
      one.state = state_at(*terms.carry, b, h);
    return one;
  }
  /// How many states of sequence b are wanted.
  size_type states(size_type b) const {
    const size_type tokens = terms.states->tokens, length = sequences.length(b);
    return length / tokens + (length % tokens != 0);
  }
  /// Calls run(part) for the parts of sequence b, one after the other, each of which begins with
  /// the state of the one before it: of heads [first, first + count).
  template <typename Run>
  void for_each_part(size_type b, size_type first, size_type count, const Run& run) const {
    const size_type length = sequences.length(b);
    if (!terms.states) return run(linear_part{0, length, -1});
    size_type entry = 0;
    for (size_type earlier = 0; earlier < b; ++earlier) entry += states(earlier);
    for (size_type begin = 0; begin < length; ++entry) {
      const size_type end = begin + (std::min)(terms.states->tokens, length - begin);
      for (size_type h = first; h < first + count; ++h) begin_state(b, h, begin, entry);
      run(linear_part{begin, end, entry});
      for (size_type h = first; terms.carry && end == length && h < first + count; ++h)
        copy_state(state_at(terms.states->view, entry, h), state_at(*terms.carry, b, h));
      begin = end;
    }
  }

 private:
  using state_view = matrix_view<accumulator>;

  static state_view state_at(const tensor_view<accumulator>& states, size_type entry, size_type h) {
    return states.head(entry, h, 0, states.rows);
  }
  static void copy_state(const state_view& from, const state_view& to) {
    for (size_type d = 0; d < to.rows; ++d)
      for (size_type c = 0; c < to.cols; ++c) to(d, c) = from(d, c);
  }
  void begin_state(size_type b, size_type h, size_type begin, size_type entry) const {
    const state_view state = state_at(terms.states->view, entry, h);
    if (begin > 0) {
      copy_state(state_at(terms.states->view, entry - 1, h), state);
    } else if (terms.carry) {
      copy_state(state_at(*terms.carry, b, h), state);
    } else {
      for (size_type d = 0; d < state.rows; ++d)
        for (size_type c = 0; c < state.cols; ++c) state(d, c) = accumulator(0);
    }
  }
  template <typename T>
  tensor_view<T> group_of(tensor_view<T> view, size_type h) const {
    view.data += h * view.heads / heads() * view.head_stride;
    view.heads = group();
    return view;
  }
};

inline bool is_positive(float x) { return bits_of(x) - 1 < 0x7f800000u; }  // a NaN is not
inline bool is_positive(double x) { return bits_of(x) - 1 < 0x7ff0000000000000u; }
template <typename Acc>
bool is_positive(const Acc& x) {
  return x > Acc(0);
}

/// A decay lets nothing grow: its logarithm is 0 or less. A NaN passes wherever it stands, for the
/// output to show.
template <typename Acc>
void check_decays(const char* function, const tensor_view<const Acc>& log_gate) {
  const auto refuse = [&](size_type b, size_type h, size_type t, size_type c) {
    fail_with("heed::", function, ": log_gate must be 0 or less, but is ",
              shown(log_gate(b, h, t, c)), " at [", b, ", ", h, ", ", t, ", ", c, "]");
  };
  for (size_type b = 0; b < log_gate.batch; ++b)
    for (size_type h = 0; h < log_gate.heads; ++h)
      for (size_type t = 0; t < log_gate.rows; ++t) {
        if constexpr (std::is_arithmetic<Acc>::value) {
          if (log_gate.col_stride == 1 && log_gate.cols > 8) {  // which Eigen does in vectors
            const Eigen::Map<const Eigen::Array<Acc, 1, Eigen::Dynamic>> row(&log_gate(b, h, t, 0),
                                                                             log_gate.cols);
            if (is_zero((row.max)(Acc(0)).sum()))
              continue;  // a NaN may count as 0 here, or make the sum one
          }
        }
        for (size_type c = 0; c < log_gate.cols; ++c)
          if (is_positive(log_gate(b, h, t, c))) refuse(b, h, t, c);
      }
}

/// The bytes that a plan sets aside must be a number, those for states too, which may be nowhere
/// but in the workspace.
template <typename Scalar>
void check_scratch(const char* function, const linear_problem<Scalar>& p) {
  constexpr size_type an_entry = size_type{1} << 8;  // bytes at most, of a worker's heads
  const size_type workers = workers_of(p.options.execution);
  check_row_scratch(function, p.query.cols, p.value.cols, workers);
  product(function, "scratch for states, in bytes",
          {p.query.cols, p.value.cols + 16, an_entry, workers});
}

/// Checks all but out, and makes a problem of it.
template <typename Scalar, typename Query, typename Key, typename Value, typename... Terms>
linear_problem<Scalar> make_linear_shape_problem(
    const char* function, const tensor_view<Query>& query, const tensor_view<Key>& key,
    const tensor_view<Value>& value,
    const std::optional<tensor_view<const accumulator_t<Scalar>>>& beta,
    const linear_attention_options& options, const Terms&... given) {
  static_assert(scalars_fit<Scalar, Query, Key, Value>::value);
  linear_problem<Scalar> p{query, key, value, {}, beta, options, {}, {}};
  add_terms(p.terms, given...);

  check_view(function, "query", query);
  check_view(function, "key", key);
  check_view(function, "value", value);
  check_axis(function, "key", "length", key.rows, "query", query.rows);
  check_tokens_fit(function, query, key, value, "length");
  const auto shares = [](size_type many, size_type few) {
    return few == 0 ? many == 0 : many % few == 0;
  };
  if (!shares(value.heads, key.heads) || (value.heads == 0 && key.heads > 0))
    fail_with("heed::", function, ": value: num_kv_heads ", value.heads,
              " is not a multiple of key's num_kv_heads ", key.heads);
  if (!shares(query.heads, value.heads) &&
      (query.heads < key.heads || !shares(value.heads, query.heads)))
    fail_with("heed::", function, ": query: num_heads ", query.heads,
              " is not a multiple of num_kv_heads ", value.heads, ", nor a part of them");
  const auto check_broadcast = [&](const char* what, const auto& view, size_type length,
                                   size_type dim) {
    if (!view) return;
    check_view(function, what, *view);
    check_extent(function, what, "batch", view->batch, key.batch);
    check_extent(function, what, "num_kv_heads", view->heads, p.heads());
    check_extent(function, what, "length", view->rows, length);
    check_extent(function, what, "head_dim", view->cols, dim);
  };
  check_broadcast("log_gate", p.terms.log_gate, key.rows, key.cols);
  check_broadcast("beta", beta, key.rows, 1);
  check_broadcast("bonus", p.terms.bonus, 1, key.cols);
  p.sequences = sequences(function, "query", p.query, p.terms.starts);
  check_carry(
      function, p.terms.carry, p.sequences.count(), p.heads(), key.cols, "key's head_dim",
      p.state_cols(),
      options.normalise ? "value's head_dim and one for the normaliser," : "value's head_dim");
  if (p.terms.states) {
    const auto& states = *p.terms.states;
    if (states.tokens < 1)
      fail_with("heed::", function, ": chunk_states: tokens must be 1 or more, but is ",
                states.tokens);
    check_view(function, "chunk_states", states.view);
    size_type entries = 0;
    for (size_type b = 0; b < p.sequences.count(); ++b) entries += p.states(b);
    check_equal(function, "chunk_states: batch", states.view.batch, "the chunks of all sequences,",
                entries);
    check_equal(function, "chunk_states: heads", states.view.heads, "the call's heads", p.heads());
    check_equal(function, "chunk_states: rows", states.view.rows, "key's head_dim", key.cols);
    check_equal(function, "chunk_states: columns", states.view.cols, "those of a carry,",
                p.state_cols());
  }
  if (options.scale) check_number<accumulator_t<Scalar>>(function, "scale", *options.scale);
  check_number<accumulator_t<Scalar>>(function, "epsilon", options.epsilon);
  if (options.epsilon < 0)
    fail_with("heed::", function, ": epsilon must be 0 or positive, but is ", options.epsilon);
  if (options.feature_map > feature_map::elu_plus_one)
    fail_with("heed::", function, ": feature_map must be none or elu_plus_one, but is ",
              int(options.feature_map));
  if (options.chunk < 0)
    fail_with("heed::", function, ": chunk must be 0 (automatic) or more, but is ", options.chunk);
  check_execution(function, options.execution);
  check_scratch(function, p);
  if (p.terms.log_gate) check_decays(function, *p.terms.log_gate);
  return p;
}

/// Checks every argument of `function` and makes the problem of them.
template <typename Scalar, typename Query, typename Key, typename Value, typename... Terms>
linear_problem<Scalar> make_linear_problem(
    const char* function, const tensor_view<Query>& query, const tensor_view<Key>& key,
    const tensor_view<Value>& value, const tensor_view<Scalar>& out,
    const std::optional<tensor_view<const accumulator_t<Scalar>>>& beta,
    const linear_attention_options& options, const Terms&... given) {
  linear_problem<Scalar> p =
      make_linear_shape_problem<Scalar>(function, query, key, value, beta, options, given...);
  auto readers = query;
  readers.heads = p.out_heads();
  check_out(function, "out", out, readers, value, "length");
  p.out = out;
  const auto are_apart = [&](const named_region& first, const named_region& second,
                             const auto&... later) {
    check_apart(function, first, second, "query", query, "key", key, "value", value, "log_gate",
                p.terms.log_gate, "beta", beta, "bonus", p.terms.bonus, "sequence_starts",
                p.terms.starts, later...);
  };
  are_apart({"out", out}, {"carry", p.terms.carry}, "chunk_states", p.terms.states);
  if (p.terms.states) are_apart({"chunk_states", p.terms.states}, no_output());
  return p;
}

template <typename Acc>
Acc mapped(feature_map map, const Acc& x) {
  using std::exp;
  if (map == feature_map::none) return x;
  return x > Acc(0) ? Acc(x + Acc(1)) : Acc(exp(x));
}

/// Token after token, as the recurrence reads (a product becomes an Acc before it is added: see
/// score.hpp):
///   S = diag(exp(g)) S
///   u = v, or beta (v - S^T k) for the delta rule
///   S = S + k u^T
///   o = scale S^T q
/// With a bonus the read comes first: o = scale (S^T q + (q . (bonus * k)) v). A gate of -infinity
/// makes a row of S 0 whatever it held.
template <typename Scalar>
void recurrent_head(const linear_problem<Scalar>& p, const linear_head<Scalar>& head) {
  using Acc = accumulator_t<Scalar>;
  using std::exp;
  const size_type d_k = p.key.cols, d_v = p.value.cols, cols = p.state_cols();
  rows<Acc> own;
  matrix_view<Acc> state = head.state;
  if (!state.data) {
    own.setConstant(d_k, cols, Acc(0));
    state = {own.data(), d_k, cols, cols, 1};
  }
  const Acc scale = Acc(p.scale());
  const bool fades = head.log_gate.data || head.beta.data;
  const auto query = [&](size_type h, size_type t, size_type d) {
    return mapped(p.options.feature_map, Acc(head.query(0, h, t, d)));
  };
  std::vector<Acc> key(static_cast<std::size_t>(d_k)), update(static_cast<std::size_t>(cols)),
      read(static_cast<std::size_t>(cols));

  const auto write = [&](size_type t) {
    for (size_type h = 0; h < head.query.heads; ++h) {
      std::fill(read.begin(), read.end(), Acc(0));
      for (size_type d = 0; d < d_k; ++d)
        for (size_type c = 0; c < cols; ++c)
          read[std::size_t(c)] += Acc(query(h, t, d) * state(d, c));
      if (head.bonus.data) {
        Acc own_weight(0);
        for (size_type d = 0; d < d_k; ++d)
          own_weight += Acc(Acc(query(h, t, d) * head.bonus(0, d)) * key[std::size_t(d)]);
        for (size_type c = 0; c < cols; ++c)
          read[std::size_t(c)] += Acc(own_weight * update[std::size_t(c)]);
      }
      const Acc divisor = p.options.normalise
                              ? Acc(Acc(scale * read[std::size_t(d_v)]) + Acc(p.options.epsilon))
                              : Acc(1);
      for (size_type c = 0; c < d_v; ++c)
        head.out(0, h, t, c) = Scalar(Acc(Acc(scale * read[std::size_t(c)]) / divisor));
    }
  };

  for (size_type t = 0; t < head.key.rows; ++t) {
    for (size_type d = 0; d < d_k; ++d)
      key[std::size_t(d)] = mapped(p.options.feature_map, Acc(head.key(t, d)));
    for (size_type c = 0; c < d_v; ++c) update[std::size_t(c)] = Acc(head.value(t, c));
    if (p.options.normalise) update[std::size_t(d_v)] = Acc(1);
    if (head.bonus.data) write(t);
    if (head.log_gate.data)
      for (size_type d = 0; d < d_k; ++d) {
        const Acc gate = head.log_gate(t, d), decay = exp(gate);
        const bool forget = is_negative_infinity(gate);
        for (size_type c = 0; c < cols; ++c)
          state(d, c) = forget ? Acc(0) : Acc(state(d, c) * decay);
      }
    if (head.beta.data)
      for (size_type c = 0; c < cols; ++c) {
        Acc known(0);
        for (size_type d = 0; d < d_k; ++d) known += Acc(key[std::size_t(d)] * state(d, c));
        update[std::size_t(c)] = head.beta(t, 0) * Acc(update[std::size_t(c)] - known);
      }
    for (size_type d = 0; d < d_k; ++d)
      for (size_type c = 0; c < cols; ++c) {
        const Acc sum = state(d, c) + Acc(key[std::size_t(d)] * update[std::size_t(c)]);
        state(d, c) = fades ? settled(sum) : sum;
      }
    if (!head.bonus.data) write(t);
  }
}

template <typename Scalar>
void recurrent(const linear_problem<Scalar>& p) {
  for_each_head(p.sequences.count(), p.heads(), p.options.execution, [&](size_type b, size_type h) {
    p.for_each_part(b, h, 1,
                    [&](const linear_part& part) { recurrent_head(p, p.head(b, h, part)); });
  });
}

}  // namespace detail
HEED_NAMESPACE_END
