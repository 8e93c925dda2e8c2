#pragma once

#include <heed/detail/caught.hpp>
#include <heed/detail/check.hpp>
#include <heed/detail/number.hpp>
#include <heed/detail/saved.hpp>
#include <heed/detail/terms.hpp>
#include <heed/mpi_group.hpp>
#include <heed/mpi_shards.hpp>
#include <heed/options.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

// How ranks find out, before anything is sent, that all can make a call and mean the same by it.

HEED_NAMESPACE_BEGIN
namespace detail {

/// The functions that ranks call together.
enum class group_call : unsigned char {
  ring_attention,
  ring_attention_backward,
  exchange_attention,
  sharded_cache_attention,
  scatter_tokens,
  gather_tokens,
  self_attention,
  multi_head_self_attention
};
inline const char* name_of(group_call call) {
  constexpr const char* names[] = {"ring_attention_into",     "ring_attention_backward_into",
                                   "exchange_attention_into", "sharded_cache_attention_into",
                                   "scatter_tokens_into",     "gather_tokens_into",
                                   "ring_self_attention",     "ring_multi_head_self_attention"};
  return names[static_cast<std::size_t>(call)];
}

/// The checksum of the numbers that are added.
class number_sum {
 public:
  template <typename Number>
  void add(const Number& number) {
    sum_ = checksum(&number, size_type{sizeof number}, sum_);
  }
  std::int64_t value() const { return static_cast<std::int64_t>(sum_ >> 1); }

 private:
  std::uint64_t sum_ = 0;
};

/// The numbers of a call that are the same on every rank. settle() ends it: all ranks go on, or all
/// throw the same exception.
class agreement {
 public:
  explicit agreement(group_call call) : call_(call) {
    add("the call", static_cast<std::int64_t>(call));
  }

  void add(const char* what, std::int64_t value) { numbers_.push_back({what, value, false}); }
  void add(const char* what, double value) {
    numbers_.push_back({what, static_cast<std::int64_t>(bits_of(value)), true});
  }
  void add(const char* what, const sequence_shards& shards) {
    number_sum sum;
    for (int rank = 0; rank < shards.ranks(); ++rank)
      for (const token_range& range : shards.ranges(rank)) {
        sum.add(rank);
        sum.add(range.first);
        sum.add(range.count);
      }
    add(what, sum.value());
  }
  void add(const attention_options& options) {
    add("scale", options.scale ? *options.scale : -0.0);
    add("causal", std::int64_t(options.causal));
    add("window_left", std::int64_t{options.window_left});
    add("window_right", std::int64_t{options.window_right});
    add("softcap", options.softcap);
  }
  /// The terms that are the same on all ranks, and which there are of the others.
  template <typename Acc>
  void add(const terms<Acc>& given) {
    std::int64_t kinds = 0;
    const auto kind = [&](bool has) { kinds = 2 * kinds + has; };
    kind(given.score_function.run);
    kind(given.mask_function.run);
    kind(given.alibi.has_value());
    kind(given.sinks.has_value());
    kind(given.logit_scales.has_value());
    kind(given.key_lengths.has_value());
    kind(given.query_lengths.has_value());
    kind(given.relative_keys.has_value());
    kind(given.relative_values.has_value());
    add("the set of terms, in bits,", kinds);
    number_sum of_heads, of_lengths;
    if (given.alibi)
      for (size_type b = 0; b < given.alibi->view.batch; ++b)
        for (size_type h = 0; h < given.alibi->view.heads; ++h)
          of_heads.add(given.alibi->view(b, h, 0, 0));
    const auto add_heads = [&](const auto& term) {
      for (size_type h = 0; term && h < term->count; ++h) of_heads.add(term->values[h]);
    };
    add_heads(given.sinks);
    add_heads(given.logit_scales);
    for (const auto* list : {&given.key_lengths, &given.query_lengths})
      if (*list)
        for (const size_type length : **list) of_lengths.add(length);
    add("a checksum of alibi, sinks and logit_scales", of_heads.value());
    add("a checksum of lengths", of_lengths.value());
    add("dropout: probability", given.dropout.probability);
    add("dropout: seed", static_cast<std::int64_t>(given.dropout.seed));
  }

  /// Runs `check`, which may add numbers, on this rank. One MPI_Allreduce where all is well.
  template <typename Check>
  void settle(process_group& group, const Check& check) {
    std::string message;
    bool out_of_memory = false;
#if HEED_EXCEPTIONS
    try {
      check();
    } catch (const std::bad_alloc&) {
      message = "out of memory";
      out_of_memory = true;
    } catch (const std::exception& error) {
      message = error.what();
    }
#else
    check();
#endif
    // The largest of x and of ~x, which is the least of x: where all are the same, so are these.
    // As many numbers whatever the call, for it may be another on another rank.
    std::array<std::int64_t, 1 + 2 * room> mine{}, most{};
    mine[0] = message.empty() ? 0 : group.size() - group.rank();
    if (numbers_.size() > room) fail("heed: more numbers to agree on than there is room for");
    for (std::size_t i = 0; i < room; ++i) {
      mine[1 + 2 * i] = i < numbers_.size() ? numbers_[i].value : 0;
      mine[2 + 2 * i] = ~mine[1 + 2 * i];
    }
    check_mpi("MPI_Allreduce", MPI_Allreduce(mine.data(), most.data(), int(mine.size()),
                                             MPI_INT64_T, MPI_MAX, group.comm()));
    if (most[0] > 0)
      fail_as(group, group.size() - static_cast<int>(most[0]), message, out_of_memory);
    for (std::size_t i = 0; i < room; ++i)
      if (most[1 + 2 * i] != ~most[2 + 2 * i]) fail_different(group, i, mine[1 + 2 * i]);
  }

 private:
  static constexpr std::size_t room = 40;
  struct number {
    const char* what;
    std::int64_t value;
    bool real;
  };

  /// What rank `from` has found, on every rank.
  [[noreturn]] void fail_as(process_group& group, int from, std::string message,
                            bool out_of_memory) const {
    int head[2] = {static_cast<int>(message.size()), out_of_memory};
    check_mpi("MPI_Bcast", MPI_Bcast(head, 2, MPI_INT, from, group.comm()));
    message.resize(static_cast<std::size_t>(head[0]));
    check_mpi("MPI_Bcast", MPI_Bcast(&message[0], head[0], MPI_CHAR, from, group.comm()));
#if HEED_EXCEPTIONS
    if (head[1]) throw std::bad_alloc();
#endif
    fail_with(message, " (on rank ", from, ")");
  }
  /// Number i is not the same everywhere.
  [[noreturn]] void fail_different(process_group& group, std::size_t i, std::int64_t mine) const {
    std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
    check_mpi("MPI_Allgather",
              MPI_Allgather(&mine, 1, MPI_INT64_T, all.data(), 1, MPI_INT64_T, group.comm()));
    int other = 1;
    while (all[static_cast<std::size_t>(other)] == all[0]) ++other;
    const std::int64_t theirs = all[static_cast<std::size_t>(other)];
    if (i == 0)
      fail_with("heed: rank 0 calls ", name_of(static_cast<group_call>(all[0])), ", but rank ",
                other, " calls ", name_of(static_cast<group_call>(theirs)));
    const auto shown = [&](std::int64_t value) {
      if (!numbers_[i].real) return message_part(value);
      double real;
      std::memcpy(&real, &value, sizeof real);
      return message_part(real);
    };
    fail_with("heed::", name_of(call_), ": ", numbers_[i].what, " is ", shown(all[0]),
              " on rank 0, but ", shown(theirs), " on rank ", other);
  }

  group_call call_;
  std::vector<number> numbers_;
};

/// Where what ranks have computed is about to be put together: if a function of the user has thrown
/// on one of them, that rank throws its exception, and the others say so.
inline void settle_exceptions(process_group& group, group_call call, caught_exception& caught) {
  int mine = caught.taken() ? group.size() - group.rank() : 0, most = 0;
  check_mpi("MPI_Allreduce", MPI_Allreduce(&mine, &most, 1, MPI_INT, MPI_MAX, group.comm()));
  caught.rethrow();
#if HEED_EXCEPTIONS
  if (most > 0)
    throw std::runtime_error(std::string("heed::") + name_of(call) + ": rank " +
                             std::to_string(group.size() - most) + " has thrown an exception");
#endif
}

}  // namespace detail
HEED_NAMESPACE_END
