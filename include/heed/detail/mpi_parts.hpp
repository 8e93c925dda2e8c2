#pragma once

#include <heed/detail/make_problem.hpp>
#include <heed/detail/mpi_agreement.hpp>
#include <heed/detail/mpi_messages.hpp>
#include <heed/merge.hpp>
#include <heed/mpi_shards.hpp>

#include <algorithm>
#include <vector>

// A call whose queries and keys lie on many ranks: which parts of it there are, and what each sees.

HEED_NAMESPACE_BEGIN
namespace detail {

/// Rows [query_row, query_row + n_q) of a rank's queries and rows [key_row, key_row + n_kv) of a
/// block of keys, which are tokens from first_query and first_key on of the whole.
struct ring_part {
  size_type query_row, key_row, n_q, n_kv, first_query, first_key;
};

/// Which tokens of which rank see which: the same on every rank.
class visibility {
 public:
  visibility(const sequence_shards& queries, const sequence_shards& keys,
             const attention_options& options, std::vector<place> places)
      : queries_(queries), keys_(keys), options_(options), places_(std::move(places)) {}

  /// Whether a query of one rank sees a key of another.
  bool meet(int query_rank, int key_rank) const {
    bool any = false;
    each_part(query_rank, key_rank, [&](const ring_part&) { any = true; });
    return any;
  }
  /// Calls visit(part) for each range of a rank's queries and each of another's keys, without what
  /// sees nothing or is seen by none.
  template <typename Visit>
  void each_part(int query_rank, int key_rank, const Visit& visit) const {
    size_type query_row = 0;
    for (const token_range& q : queries_.ranges(query_rank)) {
      size_type key_row = 0;
      for (const token_range& k : keys_.ranges(key_rank)) {
        const ring_part part = seen({query_row, key_row, q.count, k.count, q.first, k.first});
        if (part.n_q > 0 && part.n_kv > 0) visit(part);
        key_row += k.count;
      }
      query_row += q.count;
    }
  }
  /// The same part without rows at its edges that see nothing, in any sequence.
  ring_part seen(const ring_part& part) const {
    index_range rows{part.n_q, 0}, columns{part.n_kv, 0};
    for (const place& whole : places_) {
      const place here{part.first_query, part.first_key, whole.queries, whole.keys};
      const band visible = band_on(options_, here.diagonal(options_.causal));
      const size_type n_q = (std::min)(part.n_q, whole.queries - part.first_query),
                      n_kv = (std::min)(part.n_kv, whole.keys - part.first_key);
      const index_range q = visible.queries_of(0, n_kv, n_q);
      if (n_q <= 0 || n_kv <= 0 || q.empty()) continue;
      const index_range k = visible.keys_of(q.begin, q.end, n_kv);
      rows = {(std::min)(rows.begin, q.begin), (std::max)(rows.end, q.end)};
      columns = {(std::min)(columns.begin, k.begin), (std::max)(columns.end, k.end)};
    }
    return {part.query_row + rows.begin,   part.key_row + columns.begin,
            rows.end - rows.begin,         columns.end - columns.begin,
            part.first_query + rows.begin, part.first_key + columns.begin};
  }

  const sequence_shards& keys() const { return keys_; }
  /// Of each sequence, from its first query and key on.
  const std::vector<place>& places() const { return places_; }

 private:
  const sequence_shards &queries_, &keys_;
  attention_options options_;
  std::vector<place> places_;
};

/// Places and lengths of the sequences of a part, which a problem points at.
struct part_places {
  std::vector<place> places;
  std::vector<size_type> query_lengths, key_lengths;

  /// Makes `p` the part of the whole that it is.
  template <typename Problem>
  void place_part(Problem& p, const ring_part& part, const std::vector<place>& whole,
                  size_type total_keys) {
    places = whole;
    query_lengths.clear();
    key_lengths.clear();
    for (place& at : places) {
      at.first_query = part.first_query;
      at.first_key = part.first_key;
      const auto clip = [](size_type length, size_type most) {
        return (std::max)(size_type{0}, (std::min)(length, most));
      };
      query_lengths.push_back(clip(at.queries - part.first_query, part.n_q));
      key_lengths.push_back(clip(at.keys - part.first_key, part.n_kv));
    }
    p.whole.places = places.data();
    p.whole.columns = total_keys;
    p.whole.first_row = part.query_row;
    if (p.terms.query_lengths) p.terms.query_lengths = index_list(query_lengths);
    if (p.terms.key_lengths) p.terms.key_lengths = index_list(key_lengths);
  }
};

/// Places of the sequences of a whole call.
inline std::vector<place> whole_places(size_type batch, size_type queries, size_type keys) {
  return std::vector<place>(static_cast<std::size_t>(batch), place{0, 0, queries, keys});
}
/// Those that lengths leave.
template <typename Acc>
void shorten(std::vector<place>& places, const terms<Acc>& given) {
  for (std::size_t b = 0; b < places.size(); ++b) {
    const size_type at = static_cast<size_type>(b);
    if (given.query_lengths) places[b].queries = (*given.query_lengths)[at];
    if (given.key_lengths) places[b].keys = (*given.key_lengths)[at];
  }
}

/// Terms that count rows of one call, and not tokens of a whole.
template <typename Acc>
void check_terms_of_group(const char* function, const terms<Acc>& given) {
  const auto refuse = [&](bool has, const char* what) {
    if (has)
      fail_with("heed::", function, ": ", what,
                " is not for a sequence that lies on many ranks: give keep, bias or a function");
  };
  refuse(given.keep_each.has_value(), "keep_each");
  refuse(bool(given.bias_each), "bias_each");
  refuse(given.packed_bits.has_value(), "packed_keep_bits");
  refuse(given.first_keys.has_value(), "first_keys");
  refuse(given.starts.has_value(), "a ragged batch");
  refuse(given.sparse() != nullptr, "blocks");
  refuse(given.selected.has_value(), "selected_keys");
  refuse(given.weight_function.run != nullptr, "weight_function");
  refuse(given.max_logits.has_value(), "max_logits");
  if (given.weight_function.run)
    fail_with("heed::", function,
              ": weight_function needs the weights of whole rows, which a rank does not have");
}

/// Shards must be those of the group, and of this rank's rows.
template <typename Scalar>
void check_shards(const char* function, const char* name, const process_group& group,
                  const sequence_shards& shards, const char* rows_name,
                  const tensor_view<Scalar>& rows) {
  if (shards.ranks() != group.size())
    fail_with("heed::", function, ": ", name, " are for ", shards.ranks(),
              " ranks, but the group has ", group.size());
  check_equal(function, rows_name, rows.rows, "what the shards give this rank,",
              shards.rows(group.rank()));
}

/// Merges a part into (out, lse), its rows shared out among the workers.
template <typename Acc>
void merge_rows(const tensor_view<Acc>& part, const tensor_view<Acc>& part_lse,
                const tensor_view<Acc>& out, const tensor_view<Acc>& lse, const execution& how) {
  const size_type heads = out.batch * out.heads;
  for_each_task(heads, workers_of(how, heads), how.executor, [&](size_type task, int) {
    const size_type b = task / out.heads, h = task % out.heads;
    merge_part(out.head(b, h, 0, out.rows), lse.head(b, h, 0, out.rows),
               tensor_view<const Acc>(part).head(b, h, 0, out.rows),
               tensor_view<const Acc>(part_lse).head(b, h, 0, out.rows));
  });
}
/// Merges the sinks: a part whose values are 0.
template <typename Acc>
void merge_sinks(const std::optional<head_term<Acc, sinks_tag>>& sinks, const tensor_view<Acc>& out,
                 const tensor_view<Acc>& lse) {
  if (!sinks) return;
  const Acc zero(0);
  const tensor_view<const Acc> nothing{&zero, out.batch, out.heads, out.rows, out.cols, 0, 0, 0, 0},
      logits{sinks->values, out.batch, out.heads, out.rows, 1, 0, 1, 0, 0};
  for (size_type b = 0; b < out.batch; ++b)
    for (size_type h = 0; h < out.heads; ++h)
      merge_part(out.head(b, h, 0, out.rows), lse.head(b, h, 0, out.rows),
                 nothing.head(b, h, 0, out.rows), logits.head(b, h, 0, out.rows));
}
/// Nothing seen yet.
template <typename Acc>
void clear_sums(const tensor_view<Acc>& out, const tensor_view<Acc>& lse) {
  for (size_type b = 0; b < out.batch; ++b)
    for (size_type h = 0; h < out.heads; ++h)
      for (size_type i = 0; i < out.rows; ++i) {
        lse(b, h, i, 0) = negative_infinity<Acc>();
        for (size_type c = 0; c < out.cols; ++c) out(b, h, i, c) = Acc(0);
      }
}

/// Pieces of memory for numbers, one after the other.
class pieces : public scratch_layout {
 public:
  /// Where `view` of numbers begins, once memory is there.
  template <typename Scalar>
  size_type room_for(size_type count) {
    return this->template take<Scalar>(count);
  }
};

/// Keys, or values, on their way round: this rank's own, ready to be sent, and two blocks that take
/// turns.
template <typename Scalar>
class travelling {
 public:
  travelling(const tensor_view<const Scalar>& own, size_type most_rows, bool sent, bool received,
             pieces& room)
      : own_(own), copied_(sent && !is_dense(own)) {
    const size_type row = own.batch * own.heads * own.cols;
    if (copied_) own_at_ = room.room_for<Scalar>(row * own.rows);
    if (received)
      for (size_type& at : at_) at = room.room_for<Scalar>(row * most_rows);
  }
  void use(void* memory) {
    memory_ = memory;
    if (!copied_) return;
    const tensor_view<Scalar> copy = dense(own_at_, own_.rows);
    copy_numbers(own_, copy);
    own_ = copy;
  }
  /// This rank's, in one piece where they are sent.
  const tensor_view<const Scalar>& own() const { return own_; }
  /// The block of step t.
  tensor_view<Scalar> block(int step, size_type rows) const { return dense(at_[step % 2], rows); }

 private:
  tensor_view<Scalar> dense(size_type at, size_type rows) const {
    return bhnd(scratch_at<Scalar>(memory_, at), own_.batch, own_.heads, rows, own_.cols);
  }
  tensor_view<const Scalar> own_;
  bool copied_;
  size_type own_at_ = 0, at_[2] = {0, 0};
  void* memory_ = nullptr;
};

}  // namespace detail
HEED_NAMESPACE_END
