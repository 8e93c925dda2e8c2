#pragma once

#include <heed/detail/check.hpp>
#include <heed/mpi_group.hpp>
#include <heed/types.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

HEED_NAMESPACE_BEGIN

/// Tokens [first, first + count) of a sequence.
struct token_range {
  size_type first;  ///< the number of the first
  size_type count;  ///< how many
};

/// Which tokens of a sequence each rank holds: the rows of a rank are those of its ranges, one
/// after the other. The same on every rank. Invariant: each token is held by one rank.
///
/// @code
/// const auto shards = heed::sequence_shards::zigzag(2, 100);  // tokens 0-24 and 75-99; 25-74
/// assert(shards.rows(0) == 50 && shards.ranges(1)[0].first == 25);
/// const heed::sequence_shards any({{{0, 90}}, {}, {{95, 5}, {90, 5}}});  // of three ranks
/// assert(any.tokens() == 100);
/// @endcode
class sequence_shards {
 public:
  /// Any ranges, those of rank r being of_rank[r], which may be none. Throws std::invalid_argument
  /// where a token of the sequence is held by no rank or twice, or a rank holds 2^31 or more.
  explicit sequence_shards(std::vector<std::vector<token_range>> of_rank)
      : ranges_(std::move(of_rank)) {
    std::vector<token_range> all;
    for (const auto& ranges : ranges_) {
      size_type rows = 0;
      for (const token_range& range : ranges) {
        if (range.first < 0 || range.count < 0)
          detail::fail_with("heed::sequence_shards: a range must not be negative, but is ",
                            range.count, " tokens from token ", range.first);
        if (range.count > 0) all.push_back(range);
        rows += range.count;
        if (range.count > most_rows || rows > most_rows)
          detail::fail_with("heed::sequence_shards: a rank holds at most ", most_rows,
                            " tokens, but rank ", rows_.size(), " has ", rows);
      }
      rows_.push_back(rows);
    }
    std::sort(all.begin(), all.end(),
              [](const token_range& a, const token_range& b) { return a.first < b.first; });
    for (const token_range& range : all) {
      if (range.first != tokens_)
        detail::fail_with("heed::sequence_shards: token ", (std::min)(range.first, tokens_),
                          range.first < tokens_ ? " is held twice" : " is held by no rank");
      tokens_ += range.count;
    }
  }

  /// n tokens in one range a rank, as many each as can be. Without a causal mask, that is the same
  /// work for each.
  static sequence_shards contiguous(int ranks, size_type n) {
    return cut(ranks, n, ranks, [](int rank) { return std::vector<int>{rank}; });
  }
  /// n tokens in 2 R pieces, of which rank r has pieces r and 2 R - 1 - r: under a causal mask that
  /// is the same work for each (Grattafiori et al. 2024, "The Llama 3 herd of models",
  /// section 3.3.2).
  static sequence_shards zigzag(int ranks, size_type n) {
    return cut(ranks, n, 2 * ranks, [=](int rank) {
      return std::vector<int>{rank, 2 * ranks - 1 - rank};
    });
  }
  /// One range a rank, in the order of the ranks, of as many tokens as each rank says it has.
  /// Called by all ranks.
  static sequence_shards contiguous(process_group& group, size_type rows) {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()));
    const std::int64_t mine = rows;
    detail::check_mpi("MPI_Allgather", MPI_Allgather(&mine, 1, MPI_INT64_T, counts.data(), 1,
                                                     MPI_INT64_T, group.comm()));
    std::vector<std::vector<token_range>> of_rank;
    size_type first = 0;
    for (const size_type count : counts) {
      of_rank.push_back({{first, count}});
      first += (std::max)(count, size_type{0});
    }
    return sequence_shards(std::move(of_rank));
  }

  /// How many ranks there are.
  int ranks() const { return static_cast<int>(ranges_.size()); }
  /// How many tokens the sequence has.
  size_type tokens() const { return tokens_; }
  /// How many of them a rank holds.
  size_type rows(int rank) const { return rows_[static_cast<std::size_t>(rank)]; }
  /// Which.
  const std::vector<token_range>& ranges(int rank) const {
    return ranges_[static_cast<std::size_t>(rank)];
  }

 private:
  static constexpr size_type most_rows = (std::numeric_limits<int>::max)();

  template <typename Pieces>
  static sequence_shards cut(int ranks, size_type n, int pieces, const Pieces& pieces_of) {
    if (ranks < 1)
      detail::fail_with("heed::sequence_shards: there must be a rank at least, but are ", ranks);
    detail::checked_size("sequence_shards", "tokens", n);
    const auto begin_of = [&](int piece) {
      return n / pieces * piece + n % pieces * piece / pieces;
    };
    std::vector<std::vector<token_range>> of_rank;
    for (int rank = 0; rank < ranks; ++rank) {
      of_rank.emplace_back();
      for (const int piece : pieces_of(rank))
        of_rank.back().push_back({begin_of(piece), begin_of(piece + 1) - begin_of(piece)});
    }
    return sequence_shards(std::move(of_rank));
  }

  std::vector<std::vector<token_range>> ranges_;
  std::vector<size_type> rows_;
  size_type tokens_ = 0;
};

HEED_NAMESPACE_END
