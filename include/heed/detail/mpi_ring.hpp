#pragma once

#include <heed/detail/caught.hpp>
#include <heed/detail/mpi_parts.hpp>
#include <heed/detail/plan.hpp>

#include <algorithm>
#include <type_traits>
#include <vector>

// In step t each rank works on the keys and values of the rank t before it, which sent them
// straight to it while the step before was computed. (From neighbour to neighbour, what a window
// needs from both sides would go nearly all the way round.)

HEED_NAMESPACE_BEGIN
namespace detail {

/// Who works with whom, step by step.
class ring_steps {
 public:
  ring_steps(const process_group& group, const visibility& seen)
      : rank_(group.rank()), size_(group.size()), seen_(seen) {}

  int count() const { return size_; }
  /// Whose keys this rank works on in a step, and who works on this rank's.
  int owner(int step) const { return (rank_ - step + size_) % size_; }
  int user(int step) const { return (rank_ + step) % size_; }
  /// Whether they see each other.
  bool takes(int step) const { return step < size_ && seen_.meet(rank_, owner(step)); }
  bool gives(int step) const { return step < size_ && seen_.meet(user(step), rank_); }
  /// Whether any step after the first does.
  bool takes_any() const {
    return any([&](int step) { return takes(step); });
  }
  bool gives_any() const {
    return any([&](int step) { return gives(step); });
  }
  /// The rows of the largest block that comes.
  size_type most_rows() const {
    size_type most = 0;
    for (int step = 1; step < size_; ++step)
      if (takes(step)) most = (std::max)(most, seen_.keys().rows(owner(step)));
    return most;
  }

 private:
  template <typename Holds>
  bool any(const Holds& holds) const {
    for (int step = 1; step < size_; ++step)
      if (holds(step)) return true;
    return false;
  }
  int rank_, size_;
  const visibility& seen_;
};

/// Query rows that are merged at a time: enough blocks of queries for many threads, and so few that
/// what they leave stays small beside the output. It does not depend on threads.
inline size_type ring_strip(size_type heads) {
  return (std::max)(size_type{384}, 24576 / (std::max)(heads, size_type{1}) / 384 * 384);
}

/// Checks this rank's arguments of a call over a sequence, and makes the problem of them; keys and
/// values are this rank's. Masks have `term_rows` rows. The places must outlive it.
template <typename Scalar, typename... Terms>
problem<Scalar> make_rank_problem(
    const char* function, const process_group& group, const sequence_shards& queries,
    const sequence_shards& keys, const tensor_view<const Scalar>& query,
    const tensor_view<const Scalar>& key, const tensor_view<const Scalar>& value,
    const tensor_view<Scalar>& out, const tensor_view<accumulator_t<Scalar>>& lse,
    const attention_options& options, const std::vector<place>& places, size_type term_rows,
    const Terms&... given) {
  check_view(function, "query", query);
  check_view(function, "key", key);
  check_view(function, "value", value);
  check_shards(function, "queries", group, queries, "query: rows", query);
  check_shards(function, "keys", group, keys, "key: rows", key);
  problem<Scalar> p(query, tensor_view<const Scalar>(key), tensor_view<const Scalar>(value), out,
                    lse, options);
  add_terms(p.terms, given...);
  check_terms_of_group(function, p.terms);
  p.whole = {places.data(), query.heads, term_rows, keys.tokens(), 0, 0};
  check_scores(function, p);
  return p;
}

/// Adds to what is agreed on the sizes of a call over a sequence.
template <typename Scalar>
void agree_on_call(agreement& same, const problem<Scalar>& p, const sequence_shards& queries,
                   const sequence_shards& keys) {
  same.add("batch", std::int64_t{p.query.batch});
  same.add("num_heads", std::int64_t{p.query.heads});
  same.add("num_kv_heads", std::int64_t{p.key.heads});
  same.add("key: head_dim", std::int64_t{p.key.cols});
  same.add("value: head_dim", std::int64_t{p.value.cols});
  same.add("bytes of a scalar", static_cast<std::int64_t>(sizeof(Scalar)));
  same.add("bits of a fraction", std::int64_t{Eigen::NumTraits<Scalar>::digits()});
  same.add("the number of queries", std::int64_t{queries.tokens()});
  same.add("the number of keys", std::int64_t{keys.tokens()});
  same.add("a checksum of queries' shards", queries);
  same.add("a checksum of keys' shards", keys);
  same.add(p.options);
  same.add(p.terms);
}

template <typename Scalar, typename... Terms>
void ring_attention(process_group& group, const sequence_shards& queries,
                    const sequence_shards& keys, const tensor_view<const Scalar>& query,
                    const tensor_view<const Scalar>& key, const tensor_view<const Scalar>& value,
                    const tensor_view<Scalar>& out, const tensor_view<accumulator_t<Scalar>>& lse,
                    const attention_options& options, workspace& memory, const Terms&... given) {
  using Acc = accumulator_t<Scalar>;
  constexpr bool wide = std::is_same<Scalar, Acc>::value;  // enough to sum in
  constexpr group_call call = group_call::ring_attention;
  const char* const name = name_of(call);
  const size_type row_heads = query.batch * query.heads, n_q = query.rows;
  const size_type strip = (std::min)(n_q, ring_strip(row_heads));

  // All that may fail on one rank comes before the first message.
  std::optional<problem<Scalar>> checked;
  std::optional<visibility> seen;
  std::optional<travelling<Scalar>> all_keys, all_values;
  std::vector<place> places;
  part_places part_of;
  pieces room;
  size_type part_at = 0, part_lse_at = 0, query_at = 0, sums_at = 0, lse_at = 0;
  void* base = nullptr;
  agreement same(call);
  same.settle(group, [&] {
    places = whole_places(query.batch, queries.tokens(), keys.tokens());
    checked.emplace(make_rank_problem<Scalar>(name, group, queries, keys, query, key, value, out,
                                              lse, options, places, n_q, given...));
    check_out(name, "out", out, query, value, "n_q");
    check_apart_from_inputs(name, *checked, {"out", out}, {"lse", lse});
    shorten(places, checked->terms);
    seen.emplace(queries, keys, options, places);
    agree_on_call(same, *checked, queries, keys);
    const ring_steps steps(group, *seen);
    part_at = room.room_for<Acc>(row_heads * strip * value.cols);
    part_lse_at = room.room_for<Acc>(row_heads * strip);
    if (!wide) query_at = room.room_for<Acc>(row_heads * n_q * query.cols);
    if (!wide) sums_at = room.room_for<Acc>(row_heads * n_q * value.cols);
    if (!lse.data) lse_at = room.room_for<Acc>(row_heads * n_q);
    all_keys.emplace(key, steps.most_rows(), steps.gives_any(), steps.takes_any(), room);
    all_values.emplace(value, steps.most_rows(), steps.gives_any(), steps.takes_any(), room);
    base = group.messages().reserve(room.bytes());
    part_of.places.reserve(places.size());
    part_of.query_lengths.reserve(places.size());
    part_of.key_lengths.reserve(places.size());
  });

  const ring_steps steps(group, *seen);
  all_keys->use(base);
  all_values->use(base);
  const auto tensor_at = [&](size_type at, size_type rows, size_type cols) {
    return bhnd(scratch_at<Acc>(base, at), query.batch, query.heads, rows, cols);
  };
  tensor_view<const Acc> wide_query;
  tensor_view<Acc> sums;
  if constexpr (wide) {
    wide_query = query;
    sums = out;
  } else {
    copy_numbers(query, tensor_at(query_at, n_q, query.cols));
    wide_query = tensor_at(query_at, n_q, query.cols);
    sums = tensor_at(sums_at, n_q, value.cols);
  }
  const tensor_view<Acc> sums_lse = lse.data ? lse : tensor_at(lse_at, n_q, 1);
  clear_sums(sums, sums_lse);

  messages under_way(group);
  looking_executor looks(options.execution, under_way);
  execution how = options.execution;
  how.executor = &looks;

  // The part of `block`, the keys and values of `owner`, that this rank's queries see.
  const auto attend = [&](const tensor_view<const Scalar>& block_keys,
                          const tensor_view<const Scalar>& block_values, int owner) {
    seen->each_part(group.rank(), owner, [&](const ring_part& whole_part) {
      for (size_type row = 0; row < whole_part.n_q; row += strip) {
        ring_part part = whole_part;
        part.query_row += row, part.first_query += row;
        part.n_q = (std::min)(strip, whole_part.n_q - row);
        part = seen->seen(part);
        if (part.n_q <= 0 || part.n_kv <= 0) continue;
        const tensor_view<Acc> part_out = tensor_at(part_at, part.n_q, value.cols),
                               part_lse = tensor_at(part_lse_at, part.n_q, 1);
        problem<Acc, Scalar> p(rows_of(wide_query, part.query_row, part.n_q),
                               rows_of(block_keys, part.key_row, part.n_kv),
                               rows_of(block_values, part.key_row, part.n_kv), part_out, part_lse,
                               options);
        p.options.execution = how;
        p.terms = checked->terms;
        p.terms.sinks.reset();  // they join once, at the end
        p.whole = checked->whole;
        part_of.place_part(p, part, seen->places(), keys.tokens());
        forward(p, memory);
        merge_rows(part_out, part_lse, rows_of(sums, part.query_row, part.n_q),
                   rows_of(sums_lse, part.query_row, part.n_q), how);
      }
    });
  };

  caught_exception caught;  // of a function of the user: the other ranks get their messages first
  for (int step = 0; step < steps.count(); ++step) {
    if (steps.takes(step + 1)) {
      const int owner = steps.owner(step + 1);
      under_way.receive(all_keys->block(step + 1, keys.rows(owner)), owner, message_tag::key);
      under_way.receive(all_values->block(step + 1, keys.rows(owner)), owner, message_tag::value);
    }
    if (steps.gives(step + 1)) {
      under_way.send(all_keys->own(), steps.user(step + 1), message_tag::key);
      under_way.send(all_values->own(), steps.user(step + 1), message_tag::value);
    }
    caught.guard([&] {
      const computing_time timed(group);
      const int owner = steps.owner(step);
      if (step == 0)
        attend(key, value, owner);
      else if (steps.takes(step))
        attend(all_keys->block(step, keys.rows(owner)), all_values->block(step, keys.rows(owner)),
               owner);
    });
    under_way.wait();
  }
  caught.rethrow();
  merge_sinks(checked->terms.sinks, sums, sums_lse);
  if constexpr (!wide) copy_numbers(tensor_view<const Acc>(sums), out);
}

}  // namespace detail
HEED_NAMESPACE_END
