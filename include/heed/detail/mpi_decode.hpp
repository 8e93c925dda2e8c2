#pragma once

#include <heed/cached_attention.hpp>
#include <heed/detail/caught.hpp>
#include <heed/detail/mpi_parts.hpp>
#include <heed/detail/plan.hpp>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

// Decoding against a cache that lies on many ranks: each attends to what it holds, then the parts
// are merged in the order of the ranks.

HEED_NAMESPACE_BEGIN
namespace detail {

/// Rows [begin, end) of a rank's cache, of each sequence: tokens from first_token on.
struct cache_run {
  std::vector<size_type> begin, end, first_token;
};

/// What a rank's cache holds of sequences of `total` tokens.
struct cache_share {
  std::vector<cache_run> runs;
  std::vector<size_type> total;
};
/// As shards say.
inline cache_share share_of(const sequence_shards& shards, int rank, size_type batch) {
  const std::size_t sequences = static_cast<std::size_t>(batch);
  cache_share share;
  share.total.assign(sequences, shards.tokens());
  size_type row = 0;
  for (const token_range& range : shards.ranges(rank)) {
    share.runs.push_back({std::vector<size_type>(sequences, row),
                          std::vector<size_type>(sequences, row + range.count),
                          std::vector<size_type>(sequences, range.first)});
    row += range.count;
  }
  return share;
}
/// In the order of the ranks, as many tokens of each sequence as each holds.
template <typename Stored>
cache_share share_of(process_group& group, const stored_tensor<Stored>& keys) {
  const std::size_t sequences = static_cast<std::size_t>(keys.batch),
                    ranks = static_cast<std::size_t>(group.size());
  std::vector<std::int64_t> mine, all(ranks * sequences);
  for (size_type b = 0; b < keys.batch; ++b) mine.push_back(keys.length(b));
  check_mpi("MPI_Allgather",
            MPI_Allgather(mine.data(), static_cast<int>(sequences), MPI_INT64_T, all.data(),
                          static_cast<int>(sequences), MPI_INT64_T, group.comm()));
  cache_share share;
  share.total.assign(sequences, 0);
  cache_run run;
  for (std::size_t b = 0; b < sequences; ++b) {
    run.begin.push_back(0);
    run.end.push_back(mine[b]);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (rank == static_cast<std::size_t>(group.rank())) run.first_token.push_back(share.total[b]);
      share.total[b] += all[rank * sequences + b];
    }
  }
  share.runs.push_back(std::move(run));
  return share;
}

/// Rows of (out, lse), each a record of the numbers of out and then lse.
template <typename Acc>
struct records {
  Acc* data;
  size_type out_cols;

  size_type size() const { return out_cols + 1; }
  Acc* at(size_type record) const { return data + record * size(); }
  matrix_view<Acc> out(size_type first, size_type count) const {
    return {at(first), count, out_cols, size(), 1};
  }
  matrix_view<Acc> lse(size_type first, size_type count) const {
    return {at(first) + out_cols, count, 1, size(), 1};
  }
  tensor_view<Acc> out(size_type batch, size_type heads, size_type rows) const {
    return {data, batch, heads, rows, out_cols, heads * rows * size(), rows * size(), size(), 1};
  }
  tensor_view<Acc> lse(size_type batch, size_type heads, size_type rows) const {
    return {data + out_cols,       batch,         heads,  rows, 1,
            heads * rows * size(), rows * size(), size(), 1};
  }
  /// Nothing seen yet.
  void clear(size_type first, size_type count) const {
    for (size_type i = first; i < first + count; ++i) {
      std::fill_n(at(i), out_cols, Acc(0));
      at(i)[out_cols] = negative_infinity<Acc>();
    }
  }
  /// Merges `parts` lists of `count` records, `step` records apart, into the first, in order.
  void merge(size_type parts, size_type count, size_type step) const {
    const auto readable = [](const matrix_view<Acc>& x) {
      return matrix_view<const Acc>{x.data, x.rows, x.cols, x.row_stride, x.col_stride};
    };
    for (size_type part = 1; part < parts; ++part)
      merge_part(out(0, count), lse(0, count), readable(out(part * step, count)),
                 readable(lse(part * step, count)));
  }
};

/// Up to so many bytes each rank gets all parts and merges them; beyond, each merges some rows and
/// all get those, so that what a rank receives does not grow with the ranks. The bits are the same.
constexpr size_type gathered_bytes = size_type{256} << 10;

/// `shards` null: in the order of the ranks.
template <typename Scalar, typename Cache, typename... Terms>
void sharded_cache_attention(process_group& group, const sequence_shards* shards,
                             const tensor_view<const Scalar>& query, const Cache& cache,
                             const tensor_view<Scalar>& out,
                             const tensor_view<accumulator_t<Scalar>>& lse,
                             const attention_options& options, workspace& memory,
                             const Terms&... given) {
  using Acc = accumulator_t<Scalar>;
  constexpr bool wide = std::is_same<Scalar, Acc>::value;
  constexpr group_call call = group_call::sharded_cache_attention;
  const char* const name = name_of(call);
  const auto keys = cache.keys(), values = cache.values();
  using Stored = std::remove_const_t<std::remove_pointer_t<decltype(keys.elements.data)>>;
  const size_type ranks = group.size(), heads = query.heads, n_q = query.rows,
                  rows = query.batch * heads * n_q, share_rows = (rows + ranks - 1) / ranks,
                  record_bytes = (values.cols + 1) * size_type{sizeof(Acc)};
  const bool gathers = ranks * rows * record_bytes <= gathered_bytes;

  terms<Acc> all_terms;
  size_type columns = 0;  // of masks and biases
  pieces room;
  size_type query_at = 0, mine_at = 0, run_at = 0, parts_at = 0;
  void* base = nullptr;
  std::vector<place> places;
  agreement same(call);
  same.settle(group, [&] {
    problem<Scalar, Stored> p(query, keys, values, out, lse, options);
    add_terms(p.terms, given...);
    check_terms_of_group(name, p.terms);
    const auto count = [&](size_type n) { columns = (std::max)(columns, n); };
    p.terms.bias.visit([&](const auto& bias) { count(bias.view.cols); });
    if (p.terms.keep) count(p.terms.keep->view.cols);
    if (p.terms.keep_bytes) count(p.terms.keep_bytes->view.cols);
    if (p.terms.keep_bits) count(p.terms.keep_bits->n_kv);
    // As if this rank held the newest tokens: no other place reads more of the pages.
    for (size_type b = 0; b < keys.batch; ++b) places.push_back({0, 0, n_q, keys.length(b)});
    p.whole = {places.data(), heads, n_q, columns, 0, 0};
    check_scores(name, p);
    check_out(name, "out", out, query, values, "n_q");
    check_apart_from_inputs(name, p, {"out", out}, {"lse", lse});
    bind_cache(name, cache, p);
    for (size_type b = 0; b < keys.batch; ++b)
      if (keys.dropped_from(b) > 0)
        fail_with("heed::", name, ": sequence ", b, " of the cache has dropped ",
                  keys.dropped_from(b), " tokens: a rank's part must be whole");
    if (shards) {
      if (shards->ranks() != group.size())
        fail_with("heed::", name, ": shards are for ", shards->ranks(),
                  " ranks, but the group has ", group.size());
      for (size_type b = 0; b < keys.batch; ++b)
        check_equal(name, "the cache's tokens of a sequence", keys.length(b),
                    "what the shards give this rank,", shards->rows(group.rank()));
    }
    all_terms = p.terms;
    same.add("batch", std::int64_t{query.batch});
    same.add("num_heads", std::int64_t{heads});
    same.add("num_kv_heads", std::int64_t{keys.heads});
    same.add("n_q", std::int64_t{n_q});
    same.add("key: head_dim", std::int64_t{keys.cols});
    same.add("value: head_dim", std::int64_t{values.cols});
    same.add("bytes of a scalar of the scores", static_cast<std::int64_t>(sizeof(Acc)));
    same.add("columns of keep and bias", std::int64_t{columns});
    same.add("whether there are shards", std::int64_t{shards != nullptr});
    if (shards) same.add("a checksum of the shards", *shards);
    same.add(options);
    same.add(p.terms);
    if (!wide) query_at = room.room_for<Acc>(rows * query.cols);
    const size_type record = values.cols + 1;
    mine_at = room.room_for<Acc>(share_rows * ranks * record);
    run_at = room.room_for<Acc>(rows * record);
    parts_at = room.room_for<Acc>(share_rows * ranks * record * (gathers ? ranks : 1));
    base = group.messages().reserve(room.bytes());
  });
  const cache_share share =
      shards ? share_of(*shards, group.rank(), keys.batch) : share_of(group, keys);
  size_type longest = 0;
  for (const size_type total : share.total) longest = (std::max)(longest, total);
  if (columns > 1)
    check_equal(name, "keep or bias: n_kv", columns, "the tokens of all ranks:", longest);

  tensor_view<const Acc> wide_query;
  if constexpr (wide) {
    wide_query = query;
  } else {
    const auto copy = bhnd(scratch_at<Acc>(base, query_at), query.batch, heads, n_q, query.cols);
    copy_numbers(query, copy);
    wide_query = copy;
  }
  const records<Acc> mine{scratch_at<Acc>(base, mine_at), values.cols},
      of_run{scratch_at<Acc>(base, run_at), values.cols},
      parts{scratch_at<Acc>(base, parts_at), values.cols};
  mine.clear(0, share_rows * ranks);
  caught_exception caught;
  caught.guard([&] {
    const computing_time timed(group);
    for (std::size_t r = 0; r < share.runs.size(); ++r) {
      const cache_run& run = share.runs[r];
      const records<Acc>& to = r == 0 ? mine : of_run;
      problem<Acc, Stored> p(wide_query, keys, values, to.out(query.batch, heads, n_q),
                             to.lse(query.batch, heads, n_q), options);
      p.cached = true;
      p.terms = all_terms;
      p.terms.sinks.reset();  // they join once, at the end
      if (share.runs.size() > 1) {
        p.terms.first_keys = index_list(run.begin);
        p.terms.key_lengths = index_list(run.end);
      }
      for (std::size_t b = 0; b < places.size(); ++b)
        places[b] = {
            0, run.first_token[b],
            all_terms.query_lengths ? (*all_terms.query_lengths)[static_cast<size_type>(b)] : n_q,
            share.total[b]};
      p.whole = {places.data(), heads, n_q, longest, 0, 0};
      forward(p, memory);
      if (r > 0) {
        const auto readable = [](const matrix_view<Acc>& x) {
          return matrix_view<const Acc>{x.data, x.rows, x.cols, x.row_stride, x.col_stride};
        };
        merge_part(mine.out(0, rows), mine.lse(0, rows), readable(of_run.out(0, rows)),
                   readable(of_run.lse(0, rows)));
      }
    }
  });
  if (all_terms.score_function.run || all_terms.mask_function.run)
    settle_exceptions(group, call, caught);
  caught.rethrow();

  group_times* const times = group.times();
  const double begin = times ? MPI_Wtime() : 0;
  const rows_type type(1, record_bytes);
  const int all_rows = static_cast<int>(share_rows * ranks), some = static_cast<int>(share_rows);
  if (gathers) {
    check_mpi("MPI_Allgather",
              MPI_Allgather(mine.data, all_rows, type, parts.data, all_rows, type, group.comm()));
    parts.merge(ranks, rows, share_rows * ranks);
  } else {
    check_mpi("MPI_Alltoall",
              MPI_Alltoall(mine.data, some, type, parts.data, some, type, group.comm()));
    parts.merge(ranks, share_rows, share_rows);
    std::copy_n(parts.data, share_rows * parts.size(), mine.data);
    check_mpi("MPI_Allgather",
              MPI_Allgather(mine.data, some, type, parts.data, some, type, group.comm()));
  }
  if (times) {
    times->waiting += MPI_Wtime() - begin;
    times->bytes_sent += (gathers ? rows : share_rows * ranks) * record_bytes;
  }
  const auto merged = parts.out(query.batch, heads, n_q),
             merged_lse = parts.lse(query.batch, heads, n_q);
  merge_sinks(all_terms.sinks, merged, merged_lse);
  copy_numbers(tensor_view<const Acc>(merged), out);
  if (lse.data) copy_numbers(tensor_view<const Acc>(merged_lse), lse);
}

}  // namespace detail
HEED_NAMESPACE_END
