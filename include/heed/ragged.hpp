#pragma once

#include <heed/attention.hpp>
#include <heed/reference.hpp>

#include <string>

HEED_NAMESPACE_BEGIN
namespace detail {

/// Checks the starts of a ragged batch (0 = starts[0] <= starts[1] <= ... <= total) and returns the
/// number of sequences.
inline size_type check_starts(const char* function, const char* what, const index_list& starts,
                              size_type total) {
  check_list(function, what, starts);
  if (starts.size < 1)
    fail_with("heed::", function, ": ", what,
              " must have one more entry than there are sequences, but has 0");
  if (starts[0] != 0)
    fail_with("heed::", function, ": ", what, " must begin with 0, but begins with ", starts[0]);
  for (size_type b = 1; b < starts.size; ++b)
    if (starts[b] < starts[b - 1])
      fail_with("heed::", function, ": ", what, " must not decrease, but entry ", b, " is ",
                starts[b], " after ", starts[b - 1]);
  if (starts[starts.size - 1] != total)  // a name is made only where it is shown
    fail_unequal(function, (std::string(what) + ": last entry").c_str(), starts[starts.size - 1],
                 "the number of rows", total);
  return starts.size - 1;
}

/// Makes a checked problem one of a ragged batch.
template <typename Scalar>
void bind_starts(const char* function, const index_list& query_starts, const index_list& key_starts,
                 problem<Scalar>& p) {
  check_equal(function, "query: batch", p.query.batch, "the packed batch of", size_type{1});
  const size_type sequences = check_starts(function, "query_starts", query_starts, p.query.rows);
  check_equal(function, "key_starts: sequences",
              check_starts(function, "key_starts", key_starts, p.key.rows),
              "query_starts' sequences", sequences);
  if (p.terms.counts_tokens())
    fail_with("heed::", function,
              ": keep, keep_bits, bias, blocks and key_lengths are not supported for ragged "
              "batches; use a mask function, or call one sequence at a time");
  check_apart(function, {"out", p.out}, {"lse", p.lse}, "query_starts", query_starts, "key_starts",
              key_starts);
  p.query_starts = query_starts;
  p.key_starts = key_starts;
}

template <typename Scalar, typename Query, typename Key, typename Value, typename Lse,
          typename... Terms>
problem<Scalar> make_ragged_problem(const char* function, const tensor_view<Query>& query,
                                    const tensor_view<Key>& key, const tensor_view<Value>& value,
                                    const tensor_view<Scalar>& out, const tensor_view<Lse>& lse,
                                    const index_list& query_starts, const index_list& key_starts,
                                    const attention_options& options, const Terms&... terms) {
  problem<Scalar> p =
      make_problem<Scalar>(function, query, key, value, out, lse, options, terms...);
  bind_starts(function, query_starts, key_starts, p);
  return p;
}

}  // namespace detail

/// Attention of a ragged batch: sequences of different lengths, one after the other without
/// padding, each attending within itself.
///
/// query [1, H, total_q, Dk], key [1, H_kv, total_kv, Dk], value [1, H_kv, total_kv, Dv] -> out [1,
/// H, total_q, Dv], lse [1, H, total_q, 1] or {}. Sequence b has query rows [query_starts[b],
/// query_starts[b + 1]) and key rows [key_starts[b], key_starts[b + 1]) (the cu_seqlens of other
/// libraries, of 32 or 64 bits: one entry more than there are sequences, the first 0); a sequence
/// may be empty. Causal and window count within the sequence. Throws std::invalid_argument for
/// starts that decrease, do not end at the number of rows or overlap an output, and as
/// multi_head_attention_into does. Allocates nothing once `memory` has grown.
///
/// @code
/// const std::vector<std::int32_t> starts{0, 3, 10};  // two sequences, of 3 and 7 tokens
/// std::vector<float> x(4 * 10 * 64, 1.0f), out(x.size());
/// const auto heads = heed::bhnd(x.data(), 1, 4, 10, 64);
/// heed::workspace memory;
/// heed::ragged_attention_into(heads, heads, heads, heed::bhnd(out.data(), 1, 4, 10, 64), {},
///                             starts, starts, heed::attention_options(), memory);
/// @endcode
template <typename Query, typename Key, typename Value, typename Scalar,
          typename Lse = detail::absent, typename... Terms>
void ragged_attention_into(const tensor_view<Query>& query, const tensor_view<Key>& key,
                           const tensor_view<Value>& value, const tensor_view<Scalar>& out,
                           const Lse& lse, const index_list& query_starts,
                           const index_list& key_starts, const attention_options& options,
                           workspace& memory, const Terms&... terms) {
  detail::forward(detail::make_ragged_problem<Scalar>("ragged_attention_into", query, key, value,
                                                      out, detail::lse_of<Scalar>(lse),
                                                      query_starts, key_starts, options, terms...),
                  memory);
}

/// The bytes of the workspace that this call of ragged_attention_into takes: out and lse do not
/// matter.
template <typename Query, typename Key, typename Value, typename... Terms>
size_type ragged_attention_workspace_bytes(
    const tensor_view<Query>& query, const tensor_view<Key>& key, const tensor_view<Value>& value,
    const index_list& query_starts, const index_list& key_starts, const attention_options& options,
    const Terms&... terms) {
  constexpr const char* name = "ragged_attention_workspace_bytes";
  auto p = detail::make_shape_problem<std::remove_const_t<Query>>(name, query, key, value, options,
                                                                  terms...);
  detail::bind_starts(name, query_starts, key_starts, p);
  return detail::bytes_of(p);
}

/// The same computed directly: the oracle of ragged_attention_into.
template <typename Query, typename Key, typename Value, typename Scalar,
          typename Lse = detail::absent, typename... Terms>
void reference_ragged_attention_into(const tensor_view<Query>& query, const tensor_view<Key>& key,
                                     const tensor_view<Value>& value,
                                     const tensor_view<Scalar>& out, const Lse& lse,
                                     const index_list& query_starts, const index_list& key_starts,
                                     const attention_options& options, const Terms&... terms) {
  detail::reference(detail::make_ragged_problem<Scalar>(
      "reference_ragged_attention_into", query, key, value, out, detail::lse_of<Scalar>(lse),
      query_starts, key_starts, options, terms...));
}

HEED_NAMESPACE_END
