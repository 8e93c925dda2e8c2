#pragma once

// What the tests on many ranks have in common. Catch2 would leave the other ranks waiting where one
// fails: here all ranks go on, and rank 0 prints what failed anywhere.

#include <heed/mpi.hpp>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../support/wider.hpp"

namespace testing {

using heed::sequence_shards;
using heed::size_type;
using heed::tensor_view;
using heed::token_range;

/// Makes the tests of one process a result.
class ranks {
 public:
  explicit ranks(heed::process_group& group) : group_(group) {}
  heed::process_group& group() const { return group_; }
  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  bool last() const { return rank() == size() - 1; }
  /// Adds up the ranks and says so: whether nothing has failed.
  bool passed() const {
    const long mine[2] = {checks_, failures_};
    long all[2] = {0, 0};
    MPI_Allreduce(mine, all, 2, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (rank() == 0) std::printf("%d ranks: %ld checks, %ld failed\n", size(), all[0], all[1]);
    return all[1] == 0;
  }

  /// Each rank for itself: what fails is printed, and the others go on.
  void check(bool good, const std::string& what) {
    ++checks_;
    if (good) return;
    ++failures_;
    std::printf("FAILED with %d ranks, on rank %d: %s\n", size(), rank(), what.c_str());
    std::fflush(stdout);
  }
  /// The same for an error and its bound.
  void check_at_most(long double error, long double bound, const std::string& what) {
    if (error <= bound && std::isfinite(bound)) return check(true, what);
    char text[100];
    std::snprintf(text, sizeof text, ": the error is %Lg, the bound %Lg", error, bound);
    check(false, what + text);
  }
  /// All ranks throw the same exception, whose message has all of `parts` in it.
  template <typename Call>
  void check_refused(const std::vector<std::string>& parts, const Call& call) {
    char text[1024] = "nothing was thrown", first[1024];
    try {
      call();
    } catch (const std::invalid_argument& error) {
      std::snprintf(text, sizeof text, "%s", error.what());
    }
    std::snprintf(first, sizeof first, "%s", text);
    MPI_Bcast(first, sizeof first, MPI_CHAR, 0, MPI_COMM_WORLD);
    check(std::string(first) == text,
          std::string("the ranks throw different errors: ") + first + " and " + text);
    bool all = true;
    for (const std::string& part : parts)
      all = all && std::string(text).find(part) != std::string::npos;
    check(all, std::string("what is wrong is not in the message: ") + text);
  }

 private:
  heed::process_group& group_;
  long failures_ = 0, checks_ = 0;
};

/// Numbers of [batch, heads, rows, cols].
template <typename Scalar>
struct tensor {
  tensor(size_type batch, size_type heads, size_type rows, size_type cols)
      : b(batch), h(heads), n(rows), d(cols), data(static_cast<std::size_t>(b * h * n * d)) {}
  /// Of mean 0 and variance 1, from a seed.
  tensor(size_type batch, size_type heads, size_type rows, size_type cols, unsigned seed)
      : tensor(batch, heads, rows, cols) {
    std::mt19937 random(seed);
    for (Scalar& x : data)
      x = static_cast<Scalar>((static_cast<double>(random()) / 2147483648.0 - 1.0) *
                              std::sqrt(3.0));
  }
  tensor_view<Scalar> view() { return heed::bhnd(data.data(), b, h, n, d); }
  tensor_view<const Scalar> view() const { return heed::bhnd(data.data(), b, h, n, d); }
  template <typename Other>
  tensor<Other> cast() const {
    tensor<Other> other(b, h, n, d);
    for (std::size_t i = 0; i < data.size(); ++i) other.data[i] = static_cast<Other>(data[i]);
    return other;
  }
  /// The rows that a rank holds.
  tensor shard(const sequence_shards& shards, int rank) const {
    tensor part(b, h, shards.rows(rank), d);
    size_type row = 0;
    for (const token_range& range : shards.ranges(rank))
      for (size_type i = 0; i < range.count; ++i, ++row)
        for (size_type entry = 0; entry < b; ++entry)
          for (size_type head = 0; head < h; ++head)
            for (size_type c = 0; c < d; ++c)
              part.view()(entry, head, row, c) = view()(entry, head, range.first + i, c);
    return part;
  }

  size_type b, h, n, d;
  std::vector<Scalar> data;
};
/// What rank 0 has, on every rank. They sleep until it comes: MPI would spin, and take the cores
/// from rank 0.
template <typename Scalar>
void share(tensor<Scalar>& x) {
  MPI_Request request;
  MPI_Ibcast(x.data.data(), static_cast<int>(x.data.size() * sizeof(Scalar)), MPI_BYTE, 0,
             MPI_COMM_WORLD, &request);
  for (int done = 0; MPI_Test(&request, &done, MPI_STATUS_IGNORE), !done;)
    std::this_thread::sleep_for(std::chrono::microseconds(300));
}
template <typename Scalar>
bool same_bits(const tensor<Scalar>& a, const tensor<Scalar>& b) {
  return a.data.size() == b.data.size() &&
         (a.data.empty() ||
          std::memcmp(a.data.data(), b.data.data(), a.data.size() * sizeof(Scalar)) == 0);
}

/// The largest distance; infinities must be where they belong.
template <typename Got, typename Exact>
long double max_error(const tensor<Got>& got, const tensor<Exact>& exact) {
  long double error = 0;
  for (std::size_t i = 0; i < exact.data.size(); ++i) {
    const long double g = static_cast<long double>(got.data[i]),
                      e = static_cast<long double>(exact.data[i]);
    if (std::isinf(e) ? g != e : !std::isfinite(g)) return HUGE_VALL;
    if (std::isfinite(e)) error = (std::max)(error, std::abs(g - e));
  }
  return error;
}
template <typename Scalar>
long double magnitude(const tensor<Scalar>& x) {
  long double most = 0;
  for (const Scalar& number : x.data)
    if (std::isfinite(static_cast<long double>(number)))
      most = (std::max)(most, std::abs(static_cast<long double>(number)));
  return most;
}

/// How tokens are held: in equal ranges; in pieces that balance a causal mask; in ranges of any
/// length, where every third rank has none and the second piece comes before the first.
enum class layout { contiguous, zigzag, uneven };
inline const char* name_of(layout kind) {
  return kind == layout::contiguous ? "contiguous" : kind == layout::zigzag ? "zigzag" : "uneven";
}
inline sequence_shards shards_of(layout kind, int size, size_type n) {
  if (kind == layout::contiguous) return sequence_shards::contiguous(size, n);
  if (kind == layout::zigzag) return sequence_shards::zigzag(size, n);
  std::vector<std::vector<token_range>> of_rank(static_cast<std::size_t>(size));
  const int holders = size - size / 3;  // rank r % 3 == 1 has none
  size_type first = 0;
  for (int pass = 0; pass < 2; ++pass) {
    int holder = 0;
    for (int rank = 0; rank < size; ++rank) {
      if (size >= 3 && rank % 3 == 1 && rank / 3 < size / 3) continue;
      ++holder;
      const bool end = pass == 1 && holder == holders;
      const size_type count =
          end ? n - first : (std::min)(n - first, n * (2 + rank % 2) / (5 * holders));
      auto& ranges = of_rank[static_cast<std::size_t>(rank)];
      ranges.insert(ranges.begin(), {first, count});
      first += count;
    }
  }
  return sequence_shards(of_rank);
}

}  // namespace testing
