// A sequence that is too long for one machine: its tokens lie on the ranks of an MPI program, keys
// and values go round, and each rank attends with its own queries (Liu, Zaharia and Abbeel 2023).
// Then the next tokens, against a cache of which each rank has its part; and what both would cost
// on more ranks, from what this machine measured. `./run ring` starts it.

#include <heed/mpi.hpp>

#include "support/command_line.hpp"
#include "support/progress.hpp"
#include "support/table.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

namespace {

using heed::size_type;
using heed::token_range;
using matrix = heed::rows<float>;
using support::bytes;
using support::fixed;
using support::seconds;

constexpr size_type heads = 4, d = 64;  // the query heads share one head of keys and values

enum class input { query, key, value };

/// A number of mean 0 and variance 1 that every rank finds the same, so that each can check its
/// rows against keys that it never had (splitmix64, Steele et al. 2014).
float number(input kind, size_type head, size_type token, size_type column) {
  const size_type place = ((static_cast<int>(kind) * heads + head) << 40) + token * d + column;
  std::uint64_t x = static_cast<std::uint64_t>(place) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<float>(std::sqrt(12.0) * (std::ldexp(double(x >> 11), -53) - 0.5));
}

/// Rows of heads first, first + 1, ... of the tokens of some ranges, one head below the other.
matrix rows_of(input kind, size_type first, size_type count,
               const std::vector<token_range>& ranges) {
  size_type n = 0;
  for (const token_range& range : ranges) n += range.count;
  matrix rows(count * n, d);
  size_type row = 0;
  for (size_type head = first; head < first + count; ++head)
    for (const token_range& range : ranges)
      for (size_type i = 0; i < range.count; ++i, ++row)
        for (size_type c = 0; c < d; ++c) rows(row, c) = number(kind, head, range.first + i, c);
  return rows;
}

/// [1, H, n, d] of them.
heed::tensor_view<float> by_heads(matrix& rows, size_type count) {
  return heed::bhnd(rows.data(), 1, count, rows.rows() / count, d);
}

/// The largest distance to the reference in double, of heed's rows and of the reference in float.
struct errors {
  double ours = 0, plain = 0;

  void add(const float* out, size_type head, size_type token) {
    const std::vector<token_range> seen{{0, token + 1}};
    const matrix query = rows_of(input::query, head, 1, {{token, 1}}),
                 key = rows_of(input::key, 0, 1, seen), value = rows_of(input::value, 0, 1, seen);
    const heed::rows<double> exact =
        heed::reference_attention(query.cast<double>(), key.cast<double>(), value.cast<double>());
    const matrix in_float = heed::reference_attention(query, key, value);
    for (size_type c = 0; c < d; ++c) {
      const double error = std::abs(double(out[c]) - exact(0, c));
      ours = error <= ours ? ours : error;  // a NaN too
      plain = (std::max)(plain, std::abs(double(in_float(0, c)) - exact(0, c)));
    }
  }
  /// Those of all ranks; what comes out is printed, and whether it is good is told.
  bool good(const std::string& what) {
    double all[2];
    const double mine[2] = {std::isfinite(ours) ? ours : HUGE_VAL, plain};
    MPI_Allreduce(mine, all, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    const bool is_good = all[0] <= 2 * all[1];
    std::cout << "  " << what << ": largest error " << support::scientific(all[0])
              << ", of plain attention in float " << support::scientific(all[1])
              << (is_good ? "\n" : ": WRONG\n");
    return is_good;
  }
};

/// What the ranks are to each other: seconds for a message of no length, bytes a second of long
/// ones.
struct wire {
  double latency = 0, bandwidth = 0;

  /// Between the first two ranks, the best of some round trips.
  static wire measured(int rank) {
    const auto one_way = [rank](int size, int trips) {
      std::vector<char> message(static_cast<std::size_t>(size));
      double best = HUGE_VAL;
      for (int trip = 0; trip < trips; ++trip) {
        const double begin = MPI_Wtime();
        for (const int sender : {0, 1}) {
          if (rank == sender)
            MPI_Send(message.data(), size, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD);
          else if (rank == 1 - sender)
            MPI_Recv(message.data(), size, MPI_BYTE, sender, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        best = (std::min)(best, (MPI_Wtime() - begin) / 2);
      }
      return best;
    };
    constexpr int large = 1 << 23;
    wire result;
    result.latency = one_way(1, 200);
    result.bandwidth = large / one_way(large, 10);
    MPI_Bcast(&result, 2, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return result;
  }
};

/// The time of causal attention over zigzag shards: each rank computes one block for each rank, and
/// sends its keys and values on meanwhile. docs/distributed.md explains it.
double model_seconds(double n, int ranks, double flops, const wire& between) {
  const double own = n / ranks, block = 4.0 * heads * d * own * own / 2 / flops,
               message = between.latency + 2.0 * d * own * sizeof(float) / between.bandwidth;
  return block + (ranks - 1) * (std::max)(block, message);
}

/// What a rank tells the first one.
struct report {
  double computing, looking, waiting, sent;
};

int run(heed::process_group& group, size_type n, bool quick) {
  const int rank = group.rank(), ranks = group.size(), rounds = quick ? 1 : 4;
  const size_type new_tokens = quick ? 8 : 64;
  std::optional<support::progress> progress;
  if (rank == 0) progress.emplace(rounds + 3);
  const auto step = [&](const std::string& what) {
    if (progress) progress->step(what);
  };

  // Attention of the whole sequence.
  step("making tokens");
  const auto shards = heed::sequence_shards::zigzag(ranks, n);
  const auto& mine = shards.ranges(rank);
  const size_type own = shards.rows(rank);
  matrix query = rows_of(input::query, 0, heads, mine), key = rows_of(input::key, 0, 1, mine),
         value = rows_of(input::value, 0, 1, mine), out(heads * own, d);
  heed::attention_options causal;
  causal.causal = heed::causal::bottom_right;
  heed::workspace memory;
  heed::group_times times;
  double elapsed = 0;
  for (int round = 0; round < rounds; ++round) {
    step("attention, round " + std::to_string(round + 1) + " of " + std::to_string(rounds));
    if (round == 1 || rounds == 1) {  // the first pays for memory that is new
      group.measure(&times);
      MPI_Barrier(MPI_COMM_WORLD);
      elapsed = -MPI_Wtime();
    }
    heed::ring_attention_into(group, shards, shards, by_heads(query, heads), by_heads(key, 1),
                              by_heads(value, 1), by_heads(out, heads), {}, causal, memory);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  const int measured = (std::max)(rounds - 1, 1);
  elapsed = (elapsed + MPI_Wtime()) / measured;
  group.measure(nullptr);

  // The next tokens: each goes to one rank's cache, and all ranks attend with its query.
  step("decoding");
  heed::kv_cache<float> cache(1, 1, d, d, own + new_tokens);
  cache.append(by_heads(key, 1), by_heads(value, 1));
  std::vector<std::vector<token_range>> held;
  for (int r = 0; r < ranks; ++r) held.push_back(shards.ranges(r));
  matrix next_out(heads, d);
  double decoding = 0;
  for (size_type t = n; t < n + new_tokens; ++t) {
    const int owner = static_cast<int>(t % ranks);
    held[static_cast<std::size_t>(owner)].push_back({t, 1});
    matrix next = rows_of(input::query, 0, heads, {{t, 1}}),
           next_key = rows_of(input::key, 0, 1, {{t, 1}}),
           next_value = rows_of(input::value, 0, 1, {{t, 1}});
    const double begin = MPI_Wtime();
    if (rank == owner) cache.append(by_heads(next_key, 1), by_heads(next_value, 1));
    heed::sharded_cache_attention_into(group, heed::sequence_shards(held), by_heads(next, heads),
                                       cache, by_heads(next_out, heads), {}, {}, memory);
    decoding += (MPI_Wtime() - begin) / double(new_tokens);
  }

  step("checking");
  errors of_rows, of_decoding;
  size_type before = 0;
  for (const token_range& range : mine) {
    for (size_type head = 0; head < (std::min)(heads, range.count); ++head) {
      const size_type last = range.count - 1 - head;  // another token for each head
      of_rows.add(out.row(head * own + before + last).data(), head, range.first + last);
    }
    before += range.count;
  }
  for (size_type head = 0; head < heads; ++head)
    of_decoding.add(next_out.row(head).data(), head, n + new_tokens - 1);
  if (progress) progress->clear();

  // What comes out.
  std::cout << n << " tokens, causal, " << heads << " query heads of " << d
            << " that share their keys; " << ranks << (ranks == 1 ? " rank" : " ranks")
            << ", one thread each.\n\n";
  const report part{times.computing / measured, times.looking / measured, times.waiting / measured,
                    double(times.bytes_sent) / measured};
  std::vector<report> parts(static_cast<std::size_t>(ranks));
  MPI_Gather(&part, 4, MPI_DOUBLE, parts.data(), 4, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  double computing = 0;
  for (int r = 0; r < ranks; ++r) {
    const report& p = parts[static_cast<std::size_t>(r)];
    computing += p.computing;
    const auto stripes = [&](double time, char mark) {
      return std::string(
          static_cast<std::size_t>(std::lround(40 * (std::min)(1.0, time / elapsed))), mark);
    };
    std::string tokens;
    for (const token_range& range : shards.ranges(r))
      tokens += (tokens.empty() ? "" : " and ") + std::to_string(range.first) + "-" +
                std::to_string(range.first + range.count - 1);
    std::cout << "  rank " << r << "  " << stripes(p.computing, '#') << stripes(p.looking, ':')
              << stripes(p.waiting, '.') << "  computing " << seconds(p.computing) << ", waiting "
              << seconds(p.waiting) << ", sent " << bytes(p.sent) << "; tokens " << tokens << "\n";
  }
  const double flops = 4.0 * heads * d * double(n) * double(n + 1) / 2 / computing;
  std::cout << "           # computing   : looking for messages   . waiting\n\n"
            << "  attention " << seconds(elapsed) << ", " << fixed(flops * 1e-9, 1)
            << " GFLOP/s a rank while it computes; decoding " << seconds(decoding) << " a token\n";
  const bool rows_good = of_rows.good("sampled rows"), decoding_good = of_decoding.good("decoding");
  if (ranks == 1) return rows_good && decoding_good ? 0 : 1;

  const wire between = wire::measured(rank);
  std::cout << "\nBetween two ranks: " << fixed(between.latency * 1e6, 1) << " us, "
            << fixed(between.bandwidth * 1e-9, 2) << " GB/s. The model says "
            << seconds(model_seconds(double(n), ranks, flops, between))
            << " for the attention above.\nEfficiency on more such ranks, that is the time of one "
               "over what all of them spend:\n\n";
  const std::vector<int> counts{2, 8, 32, 128, 512, 1024};
  std::vector<std::string> head{"ranks"};
  for (const int count : counts) head.push_back(std::to_string(count));
  support::table table(head);
  for (const auto& [name, tokens] :
       {std::pair("128K tokens", 1 << 17), {"1M", 1 << 20}, {"10M", 10 << 20}}) {
    std::vector<std::string> line{name};
    for (const int count : counts)
      line.push_back(fixed(100 * model_seconds(tokens, 1, flops, between) /
                               (count * model_seconds(tokens, count, flops, between)),
                           0) +
                     " %");
    table.add(line);
  }
  table.print(std::cout);
  std::cout << "\nThe same for other links and layers: bench/ring_model.py --gflops "
            << fixed(flops * 1e-9, 1) << " --latency " << fixed(between.latency * 1e6, 2)
            << " --bandwidth " << fixed(between.bandwidth * 1e-9, 2) << " --heads " << heads
            << " --kv-heads 1 --head-dim " << d << " --measured " << ranks << "," << n << ","
            << fixed(elapsed, 4) << "\n";
  return rows_good && decoding_good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0, rank = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank != 0) std::cout.rdbuf(nullptr);  // the first one speaks for all

  bool quick = false;
  int tokens = 16384;
  support::command_line command("13_ring_attention", "one sequence over the ranks of mpirun");
  command.flag("--quick", "a short sequence", quick);
  command.option("--tokens", "N", "how many tokens the sequence has", tokens);
  int status = 0;
  if (const auto leave = command.parse(argc, argv)) {
    status = *leave;
  } else {
    try {
      heed::process_group group(MPI_COMM_WORLD);
      status = run(group, quick ? 1024 : tokens, quick);
    } catch (const std::exception& error) {
      std::cerr << "rank " << rank << ": " << error.what() << "\n";
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
  MPI_Finalize();
  return status;
}
