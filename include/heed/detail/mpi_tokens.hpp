#pragma once

#include <heed/detail/mpi_parts.hpp>

#include <algorithm>

// A sequence that one rank has, shared out and brought together.

HEED_NAMESPACE_BEGIN
namespace detail {

/// Checks the two arguments on this rank, agrees on them, and returns memory for the rows of the
/// largest shard.
template <typename Whole, typename Mine>
void* agree_on_tokens(group_call call, process_group& group, const sequence_shards& shards,
                      const tensor_view<Whole>& whole, const tensor_view<Mine>& mine, int root,
                      const char* whole_name, const char* mine_name) {
  const char* const name = name_of(call);
  void* base = nullptr;
  agreement same(call);
  same.settle(group, [&] {
    check_view(name, mine_name, mine);
    if (root < 0 || root >= group.size())
      fail_with("heed::", name, ": root ", root, " is not a rank of the group's ", group.size());
    check_shards(name, "shards", group, shards, "rows", mine);
    if (group.rank() == root) {
      check_view(name, whole_name, whole);
      check_axis(name, whole_name, "batch", whole.batch, mine_name, mine.batch);
      check_axis(name, whole_name, "num_heads", whole.heads, mine_name, mine.heads);
      check_axis(name, whole_name, "head_dim", whole.cols, mine_name, mine.cols);
      check_equal(name, "the whole: rows", whole.rows, "the shards' tokens", shards.tokens());
      if (call == group_call::scatter_tokens)
        check_apart(name, {mine_name, mine}, whole_name, whole);
      else
        check_apart(name, {whole_name, whole}, mine_name, mine);
    }
    same.add("batch", std::int64_t{mine.batch});
    same.add("num_heads", std::int64_t{mine.heads});
    same.add("head_dim", std::int64_t{mine.cols});
    same.add("bytes of a scalar", static_cast<std::int64_t>(sizeof(Mine)));
    same.add("root", std::int64_t{root});
    same.add("a checksum of the shards", shards);
    size_type most = 0;
    for (int rank = 0; rank < shards.ranks(); ++rank) most = (std::max)(most, shards.rows(rank));
    pieces room;
    room.room_for<Mine>(mine.batch * mine.heads * most * mine.cols);
    base = group.messages().reserve(room.bytes());
  });
  return base;
}

/// Calls visit(row, range) for each range of a rank and the row where it begins.
template <typename Visit>
void each_range(const sequence_shards& shards, int rank, const Visit& visit) {
  size_type row = 0;
  for (const token_range& range : shards.ranges(rank)) {
    visit(row, range);
    row += range.count;
  }
}

template <typename Scalar>
void scatter_tokens(process_group& group, const sequence_shards& shards,
                    const tensor_view<const Scalar>& whole, const tensor_view<Scalar>& mine,
                    int root) {
  Scalar* const memory = static_cast<Scalar*>(agree_on_tokens(
      group_call::scatter_tokens, group, shards, whole, mine, root, "whole", "mine"));
  const auto dense = [&](int rank) {
    return bhnd(memory, mine.batch, mine.heads, shards.rows(rank), mine.cols);
  };
  const auto take = [&](int rank, const tensor_view<Scalar>& to) {
    each_range(shards, rank, [&](size_type row, const token_range& range) {
      copy_numbers(rows_of(whole, range.first, range.count), rows_of(to, row, range.count));
    });
  };
  messages under_way(group);
  if (group.rank() != root) {
    const bool direct = is_dense(mine);
    under_way.receive(direct ? mine : dense(group.rank()), root, message_tag::tokens);
    under_way.wait();
    if (!direct) copy_numbers(tensor_view<const Scalar>(dense(group.rank())), mine);
    return;
  }
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == root) {
      take(rank, mine);
      continue;
    }
    take(rank, dense(rank));
    under_way.send(dense(rank), rank, message_tag::tokens);
    under_way.wait();
  }
}

template <typename Scalar>
void gather_tokens(process_group& group, const sequence_shards& shards,
                   const tensor_view<const Scalar>& mine, const tensor_view<Scalar>& whole,
                   int root) {
  Scalar* const memory =
      static_cast<Scalar*>(agree_on_tokens(group_call::gather_tokens, group, shards, whole,
                                           tensor_view<const Scalar>(mine), root, "whole", "mine"));
  const auto dense = [&](int rank) {
    return bhnd(memory, mine.batch, mine.heads, shards.rows(rank), mine.cols);
  };
  const auto put = [&](int rank, const tensor_view<const Scalar>& from) {
    each_range(shards, rank, [&](size_type row, const token_range& range) {
      copy_numbers(rows_of(from, row, range.count), rows_of(whole, range.first, range.count));
    });
  };
  messages under_way(group);
  if (group.rank() != root) {
    tensor_view<const Scalar> sent = mine;
    if (!is_dense(mine)) {
      copy_numbers(mine, dense(group.rank()));
      sent = dense(group.rank());
    }
    under_way.send(sent, root, message_tag::tokens);
    under_way.wait();
    return;
  }
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == root) {
      put(rank, mine);
      continue;
    }
    under_way.receive(dense(rank), rank, message_tag::tokens);
    under_way.wait();
    put(rank, dense(rank));
  }
}

}  // namespace detail
HEED_NAMESPACE_END
