#pragma once

#include <heed/detail/caught.hpp>
#include <heed/detail/mpi_parts.hpp>
#include <heed/detail/mpi_ring.hpp>
#include <heed/detail/plan.hpp>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

// Tokens for heads and back: in between, each rank has all tokens of some heads.

HEED_NAMESPACE_BEGIN
namespace detail {

/// Heads of a tensor that a rank works on.
struct head_range {
  size_type first, count;
};
/// Which query heads, and which key/value heads they read.
inline head_range query_heads_of(size_type heads, int rank, int ranks) {
  return {heads / ranks * rank, heads / ranks};
}
inline head_range key_heads_of(size_type heads, size_type kv_heads, int rank, int ranks) {
  const head_range q = query_heads_of(heads, rank, ranks);
  const size_type group = heads / kv_heads, first = q.first / group,
                  end = (q.first + q.count + group - 1) / group;
  return {first, end - first};
}
/// Each rank must have whole groups, or a part of one.
inline void check_heads_of_ranks(const char* function, size_type heads, size_type kv_heads,
                                 int ranks) {
  check_multiple(function, "query", heads, "heads", "the group's size", ranks);
  if (kv_heads == 0) return;
  const size_type each = heads / ranks, group = heads / kv_heads;
  if (each > 0 && each % group != 0 && group % each != 0)
    fail_with("heed::", function, ": ", each, " query heads a rank and ", group,
              " to a key/value head: one must be a multiple of the other");
}

/// Sends each rank its heads of this rank's tokens, and takes this rank's heads of theirs: `own`
/// [B, heads, rows of this rank, cols] and `whole` [B, heads of this rank, all tokens, cols].
template <typename Scalar>
class head_exchange {
 public:
  template <typename HeadsOf>
  head_exchange(process_group& group, const sequence_shards& shards, size_type batch,
                size_type cols, const HeadsOf& heads_of_rank, pieces& room)
      : group_(group), shards_(shards), batch_(batch), cols_(cols) {
    for (int rank = 0; rank < group.size(); ++rank) heads_.push_back(heads_of_rank(rank));
    size_type mine = 0;
    for (const head_range& heads : heads_) mine += heads.count;
    mine_at_ = room.room_for<Scalar>(batch * mine * shards.rows(group.rank()) * cols);
    theirs_at_ = room.room_for<Scalar>(batch * heads_here().count * shards.tokens() * cols);
  }
  void use(void* memory) {
    Scalar* mine = scratch_at<Scalar>(memory, mine_at_);
    Scalar* theirs = scratch_at<Scalar>(memory, theirs_at_);
    const size_type own = shards_.rows(group_.rank());
    for (int rank = 0; rank < group_.size(); ++rank) {
      mine_.push_back(bhnd(mine, batch_, heads_[at(rank)].count, own, cols_));
      theirs_.push_back(bhnd(theirs, batch_, heads_here().count, shards_.rows(rank), cols_));
      mine += batch_ * heads_[at(rank)].count * own * cols_;
      theirs += batch_ * heads_here().count * shards_.rows(rank) * cols_;
    }
  }
  /// Tokens for heads.
  void to_heads(const tensor_view<const Scalar>& own, const tensor_view<Scalar>& whole) {
    for (int rank = 0; rank < group_.size(); ++rank)
      copy_numbers(heads_of(own, heads_[at(rank)].first, heads_[at(rank)].count), mine_[at(rank)]);
    swap(mine_, theirs_);
    each_range([&](int rank, size_type row, const token_range& range) {
      copy_numbers(tensor_view<const Scalar>(rows_of(theirs_[at(rank)], row, range.count)),
                   rows_of(whole, range.first, range.count));
    });
  }
  /// And back, where every head is one rank's.
  void to_tokens(const tensor_view<const Scalar>& whole, const tensor_view<Scalar>& own) {
    each_range([&](int rank, size_type row, const token_range& range) {
      copy_numbers(rows_of(whole, range.first, range.count),
                   rows_of(theirs_[at(rank)], row, range.count));
    });
    swap(theirs_, mine_);
    for (int rank = 0; rank < group_.size(); ++rank)
      copy_numbers(tensor_view<const Scalar>(mine_[at(rank)]),
                   heads_of(own, heads_[at(rank)].first, heads_[at(rank)].count));
  }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  const head_range& heads_here() const { return heads_[at(group_.rank())]; }
  template <typename Visit>
  void each_range(const Visit& visit) const {
    for (int rank = 0; rank < group_.size(); ++rank) {
      size_type row = 0;
      for (const token_range& range : shards_.ranges(rank)) {
        visit(rank, row, range);
        row += range.count;
      }
    }
  }
  /// Each with each, one after the other: in step t with the ranks t before and after.
  void swap(const std::vector<tensor_view<Scalar>>& from,
            const std::vector<tensor_view<Scalar>>& to) {
    const int ranks = group_.size(), rank = group_.rank();
    copy_numbers(tensor_view<const Scalar>(from[at(rank)]), to[at(rank)]);
    for (int step = 1; step < ranks; ++step) {
      const int before = (rank - step + ranks) % ranks, after = (rank + step) % ranks;
      messages under_way(group_);
      under_way.receive(to[at(before)], before, message_tag::tokens);
      under_way.send(from[at(after)], after, message_tag::tokens);
      under_way.wait();
    }
  }

  process_group& group_;
  const sequence_shards& shards_;
  size_type batch_, cols_;
  std::vector<head_range> heads_;
  size_type mine_at_ = 0, theirs_at_ = 0;
  std::vector<tensor_view<Scalar>> mine_, theirs_;
};

template <typename Scalar, typename... Terms>
void exchange_attention(process_group& group, const sequence_shards& queries,
                        const sequence_shards& keys, const tensor_view<const Scalar>& query,
                        const tensor_view<const Scalar>& key,
                        const tensor_view<const Scalar>& value, const tensor_view<Scalar>& out,
                        const tensor_view<accumulator_t<Scalar>>& lse,
                        const attention_options& options, workspace& memory,
                        const Terms&... given) {
  using Acc = accumulator_t<Scalar>;
  constexpr group_call call = group_call::exchange_attention;
  const char* const name = name_of(call);
  const int ranks = group.size(), rank = group.rank();
  std::vector<place> places;
  terms<Acc> all_terms;
  std::optional<head_exchange<Scalar>> of_query, of_key, of_value, of_out;
  std::optional<head_exchange<Acc>> of_lse;
  pieces room;
  size_type q_at = 0, k_at = 0, v_at = 0, o_at = 0, l_at = 0;
  head_range q_heads{0, 0}, k_heads{0, 0};
  void* base = nullptr;
  agreement same(call);
  same.settle(group, [&] {
    places = whole_places(query.batch, queries.tokens(), keys.tokens());
    problem<Scalar> p =
        make_rank_problem<Scalar>(name, group, queries, keys, query, key, value, out, lse, options,
                                  places, queries.tokens(), given...);
    check_out(name, "out", out, query, value, "n_q");
    check_apart_from_inputs(name, p, {"out", out}, {"lse", lse});
    check_heads_of_ranks(name, query.heads, key.heads, ranks);
    shorten(places, p.terms);
    all_terms = p.terms;
    agree_on_call(same, p, queries, keys);
    same.add("whether there is an lse", std::int64_t{!is_none(lse)});
    const auto for_queries = [&](int r) { return query_heads_of(query.heads, r, ranks); };
    const auto for_keys = [&](int r) {
      return key.heads > 0 ? key_heads_of(query.heads, key.heads, r, ranks) : head_range{0, 0};
    };
    q_heads = for_queries(rank);
    k_heads = for_keys(rank);
    const size_type batch = query.batch, n_q = queries.tokens(), n_kv = keys.tokens();
    of_query.emplace(group, queries, batch, query.cols, for_queries, room);
    of_key.emplace(group, keys, batch, key.cols, for_keys, room);
    of_value.emplace(group, keys, batch, value.cols, for_keys, room);
    of_out.emplace(group, queries, batch, value.cols, for_queries, room);
    of_lse.emplace(group, queries, batch, size_type{1}, for_queries, room);
    q_at = room.room_for<Scalar>(batch * q_heads.count * n_q * query.cols);
    k_at = room.room_for<Scalar>(batch * k_heads.count * n_kv * key.cols);
    v_at = room.room_for<Scalar>(batch * k_heads.count * n_kv * value.cols);
    o_at = room.room_for<Scalar>(batch * q_heads.count * n_q * value.cols);
    l_at = room.room_for<Acc>(batch * q_heads.count * n_q);
    base = group.messages().reserve(room.bytes());
  });
  of_query->use(base);
  of_key->use(base);
  of_value->use(base);
  of_out->use(base);
  of_lse->use(base);
  const auto whole = [&](auto* numbers, size_type heads, size_type n, size_type cols) {
    return bhnd(numbers, query.batch, heads, n, cols);
  };
  const auto q = whole(scratch_at<Scalar>(base, q_at), q_heads.count, queries.tokens(), query.cols);
  const auto k = whole(scratch_at<Scalar>(base, k_at), k_heads.count, keys.tokens(), key.cols);
  const auto v = whole(scratch_at<Scalar>(base, v_at), k_heads.count, keys.tokens(), value.cols);
  const auto o = whole(scratch_at<Scalar>(base, o_at), q_heads.count, queries.tokens(), value.cols);
  auto l = whole(scratch_at<Acc>(base, l_at), q_heads.count, queries.tokens(), size_type{1});
  if (is_none(lse)) l = {};

  of_query->to_heads(query, q);
  of_key->to_heads(key, k);
  of_value->to_heads(value, v);
  caught_exception caught;
  caught.guard([&] {
    const computing_time timed(group);
    problem<Scalar> p(q, tensor_view<const Scalar>(k), tensor_view<const Scalar>(v), o, l, options);
    p.terms = all_terms;
    p.whole = {places.data(), query.heads, queries.tokens(), keys.tokens(), q_heads.first, 0};
    forward(p, memory);
  });
  if (all_terms.score_function.run || all_terms.mask_function.run)
    settle_exceptions(group, call, caught);
  caught.rethrow();
  of_out->to_tokens(o, out);
  if (!is_none(lse)) of_lse->to_tokens(l, lse);
}

}  // namespace detail
HEED_NAMESPACE_END
