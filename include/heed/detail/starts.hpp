#pragma once

#include <heed/detail/check.hpp>
#include <heed/detail/sizes.hpp>
#include <heed/detail/terms.hpp>
#include <heed/tensor.hpp>

#include <string>

// What ragged batches ask of their starts and of terms that have a part for each sequence.

HEED_NAMESPACE_BEGIN
namespace detail {

/// Checks the starts of a ragged batch (0 = starts[0] <= starts[1] <= ... <= total) and returns the
/// number of sequences.
inline size_type check_starts(const char* function, const char* what, const index_list& starts,
                              size_type total) {
  const size_type sequences = check_ascending(function, what, starts);
  if (starts[sequences] != total)  // a name is made only where it is shown
    fail_unequal(function, (std::string(what) + ": last entry").c_str(), starts[sequences],
                 "the number of rows", total);
  return sequences;
}

/// Sequences are as many in both lists; without starts of keys they are those of a cache.
template <typename Problem>
void check_ragged(const char* function, const Problem& p) {
  const index_list &queries = p.terms.starts->queries, &keys = p.terms.starts->keys;
  check_equal(function, "query: batch", p.query.batch, "the packed batch of", size_type{1});
  const size_type sequences = check_starts(function, "query_starts", queries, p.query.rows);
  if (!p.terms.starts->packs_keys) {
    check_equal(function, "the cache: sequences", p.key.batch, "query_starts' sequences",
                sequences);
  } else {
    check_equal(function, "key_starts: sequences",
                check_starts(function, "key_starts", keys, p.key.rows), "query_starts' sequences",
                sequences);
  }
  if (p.terms.counts_pairs())
    fail_with("heed::", function,
              ": keep, keep_bits, bias and blocks have the sizes of a padded batch; for sequences "
              "of their own sizes give keep_each, bias_each, packed_keep_bits or a mask function");
}

/// Terms that have a part for each sequence: as many parts, and each as large as its sequence.
template <typename Problem>
void check_each_sequence(const char* function, const Problem& p) {
  const auto check_one = [&](const char* what, const auto& term) {
    check_equal(function, what, term.count, "the call's sequences", p.batch());
    for (size_type b = 0; b < p.batch(); ++b) {
      const auto& view = term.views[b];
      check_view(function, what, view);
      const auto fits = [&](const char* axis, size_type got, size_type wanted) {
        if (got != 1 && got != wanted)
          fail_with("heed::", function, ": ", what, " of sequence ", b, ": ", axis, " ", got,
                    " is neither 1 nor ", wanted);
      };
      fits("batch", view.batch, 1);
      fits("num_heads", view.heads, p.num_heads());
      fits("n_q", view.rows, p.n_q(b));
      fits("n_kv", view.cols, p.n_kv(b));
    }
  };
  if (p.terms.keep_each) check_one("keep_each", *p.terms.keep_each);
  p.terms.bias_each.visit([&](const auto& term) { check_one("bias_each", term); });
  if (!p.terms.packed_bits) return;
  const packed_bits_term& bits = *p.terms.packed_bits;
  check_list(function, "packed_keep_bits: starts", bits.starts);
  if (bits.starts.size != p.batch() + 1 && bits.starts.size != p.batch())
    fail_with("heed::", function, ": packed_keep_bits: starts has ", bits.starts.size,
              " entries, but the call has ", p.batch(), " sequences");
  for (size_type b = 0; b < p.batch(); ++b) {
    const size_type pairs =
                        product(function, "packed_keep_bits: n_q * n_kv", {p.n_q(b), p.n_kv(b)}),
                    bytes = pairs / 8 + (pairs % 8 != 0), begin = bits.starts[b],
                    end = b + 1 < bits.starts.size ? bits.starts[b + 1] : bits.count;
    if (begin < 0 || end < begin || end > bits.count || end - begin < bytes)
      fail_with("heed::", function, ": packed_keep_bits: sequence ", b, " has bytes [", begin, ", ",
                end, ") of ", bits.count, ", but its ", p.n_q(b), " x ", p.n_kv(b), " pairs take ",
                bytes);
  }
}

}  // namespace detail
HEED_NAMESPACE_END
