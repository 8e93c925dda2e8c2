#pragma once

#include <heed/detail/check.hpp>
#include <heed/detail/inputs.hpp>
#include <heed/detail/make_problem.hpp>
#include <heed/detail/run_forward.hpp>
#include <heed/options.hpp>
#include <heed/reference.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>
#include <heed/workspace.hpp>

#include <type_traits>

HEED_NAMESPACE_BEGIN

namespace detail {
/// Makes a checked problem one of queries against all that a cache holds.
template <typename Scalar, typename Stored, typename Cache>
void bind_cache(const char* function, const Cache& cache, problem<Scalar, Stored>& problem) {
  const size_type window = problem.options.window_left;
  if (cache.window() >= 0 && (window < 0 || window > cache.window()))
    fail_with("heed::", function, ": window_left ", window,
              " reaches past what the cache keeps: its window is ", cache.window());
  if (problem.terms.key_lengths)
    fail_with("heed::", function, ": a cache has its own key_lengths; leave the term out");
  if (problem.terms.function_blocks)
    fail_with("heed::", function,
              ": with a cache a mask function counts tokens and its blocks count rows; pass "
              "blocks and mask_function separately");
  problem.cached = true;
  for (size_type b = 0; b < problem.batch(); ++b)
    if (problem.dropped(b) > 0 && problem.n_q(b) > 0 && problem.band(b).low < 0)
      fail_with("heed::", function, ": the window of query 0 of sequence ", b, " begins ",
                -problem.band(b).low, " tokens before the ", problem.n_kv(b),
                " that the cache holds; it has dropped ", problem.dropped(b));
}

template <typename Scalar, typename Query, typename Cache, typename... Terms>
auto make_cached_problem(const char* function, const tensor_view<Query>& query, const Cache& cache,
                         const tensor_view<Scalar>& out,
                         const tensor_view<accumulator_t<Scalar>>& lse,
                         const attention_options& options, const Terms&... terms) {
  static_assert(scalars_fit<Scalar, Query>::value);
  auto problem = make_stored_problem(function, tensor_view<const Scalar>(query), cache.keys(),
                                     cache.values(), out, lse, options, terms...);
  bind_cache(function, cache, problem);
  return problem;
}
}  // namespace detail

/// Attention of new queries against a cache: decoding, or a chunk of a prompt after its keys and
/// values have been appended.
///
/// query [B, H, n_q, Dk], cache of B sequences -> out [B, H, n_q, Dv], lse [B, H, n_q, 1] or {}.
/// The queries are the newest n_q tokens of their sequence (with causal::top_left, the first that
/// the cache holds). With causal::bottom_right any cut of a prompt into chunks gives the result of
/// one call; for that, i and j of functions and dropout are the numbers of the tokens in the
/// sequence. keep, bias and blocks count rows of the call. A rolling cache needs a window_left that
/// is not larger than its window, and no more queries than were appended last. Throws
/// std::invalid_argument where the sizes do not fit together, and as multi_head_attention_into
/// does. Allocates nothing once `memory` has grown, which it does once for all lengths up to the
/// capacity of a kv_cache, or the room in the tables of a paged one (see paged_kv_cache::reserve).
///
/// @code
/// heed::kv_cache<float> cache(1, 2, 64, 64);
/// heed::workspace memory;
/// heed::attention_options options;
/// options.causal = heed::causal::bottom_right;
/// std::vector<float> query(8 * 64, 0.1f), out(query.size()), token(2 * 64, 0.5f);
/// for (int step = 0; step < 3; ++step) {  // one token, 8 heads on 2
///   cache.append(heed::bhnd(token.data(), 1, 2, 1, 64), heed::bhnd(token.data(), 1, 2, 1, 64));
///   heed::cached_attention_into(heed::bhnd(query.data(), 1, 8, 1, 64), cache,
///                               heed::bhnd(out.data(), 1, 8, 1, 64), {}, options, memory);
/// }
/// @endcode
template <typename Query, typename Cache, typename Scalar, typename Lse = detail::absent,
          typename... Terms>
void cached_attention_into(const tensor_view<Query>& query, const Cache& cache,
                           const tensor_view<Scalar>& out, const Lse& lse,
                           const attention_options& options, workspace& memory,
                           const Terms&... terms) {
  detail::forward(
      detail::make_cached_problem<Scalar>("cached_attention_into", query, cache, out,
                                          detail::lse_of<Scalar>(lse), options, terms...),
      memory);
}

/// The bytes of the workspace that this call of cached_attention_into takes, at any length that the
/// cache has room for: out and lse do not matter.
template <typename Query, typename Cache, typename... Terms>
size_type cached_attention_workspace_bytes(const tensor_view<Query>& query, const Cache& cache,
                                           const attention_options& options,
                                           const Terms&... terms) {
  constexpr const char* name = "cached_attention_workspace_bytes";
  auto p = detail::make_score_problem<std::remove_const_t<Query>>(
      name, query, cache.keys(), cache.values(), {}, options, terms...);
  detail::bind_cache(name, cache, p);
  return detail::bytes_of(p);
}

/// A mixed batch, as a server has it at each step: sequences with any number of new queries, one
/// after the other without padding, each against its part of a cache: a prompt here, one token
/// there, drafted tokens with a mask of their own, none at all.
///
/// query [1, H, total_q, Dk], cache of B sequences -> out [1, H, total_q, Dv], lse [1, H, total_q,
/// 1] or {}. Sequence b has query rows [query_starts[b], query_starts[b + 1]): B + 1 entries, the
/// first 0 (the cu_seqlens of other libraries); they are its newest tokens, as in
/// cached_attention_into. Each sequence takes its best path, and its result is the same to the bit
/// as that of the sequence alone. A mask or bias with the sizes of each sequence is keep_each,
/// bias_each, packed_keep_bits or a mask function.
///
/// @code
/// heed::kv_cache<float> cache(2, 2, 64, 64);  // two sequences of 2 key/value heads
/// std::vector<float> tokens(2 * 2 * 5 * 64, 0.5f), query(6 * 8 * 64, 0.1f), out(query.size());
/// cache.append(heed::bhnd(tokens.data(), 2, 2, 5, 64), heed::bhnd(tokens.data(), 2, 2, 5, 64));
/// const std::vector<int> starts{0, 5, 6};  // all 5 tokens of the first, the last of the second
/// heed::attention_options options;
/// options.causal = heed::causal::bottom_right;
/// heed::workspace memory;
/// heed::ragged_cached_attention_into(heed::bnhd(query.data(), 1, 6, 8, 64), cache,
///                                    heed::bnhd(out.data(), 1, 6, 8, 64), {}, starts, options,
///                                    memory);
/// @endcode
template <typename Query, typename Cache, typename Scalar, typename Lse = detail::absent,
          typename... Terms>
void ragged_cached_attention_into(const tensor_view<Query>& query, const Cache& cache,
                                  const tensor_view<Scalar>& out, const Lse& lse,
                                  const index_list& query_starts, const attention_options& options,
                                  workspace& memory, const Terms&... terms) {
  detail::forward(
      detail::make_cached_problem<Scalar>("ragged_cached_attention_into", query, cache, out,
                                          detail::lse_of<Scalar>(lse), options, terms...,
                                          detail::starts_term{query_starts, {}, false}),
      memory);
}

/// The bytes of the workspace that this call of ragged_cached_attention_into takes.
template <typename Query, typename Cache, typename... Terms>
size_type ragged_cached_attention_workspace_bytes(const tensor_view<Query>& query,
                                                  const Cache& cache,
                                                  const index_list& query_starts,
                                                  const attention_options& options,
                                                  const Terms&... terms) {
  return cached_attention_workspace_bytes(query, cache, options, terms...,
                                          detail::starts_term{query_starts, {}, false});
}

/// The same computed directly.
template <typename Query, typename Cache, typename Scalar, typename Lse = detail::absent,
          typename... Terms>
void reference_ragged_cached_attention_into(const tensor_view<Query>& query, const Cache& cache,
                                            const tensor_view<Scalar>& out, const Lse& lse,
                                            const index_list& query_starts,
                                            const attention_options& options,
                                            const Terms&... terms) {
  detail::reference(detail::make_cached_problem<Scalar>(
      "reference_ragged_cached_attention_into", query, cache, out, detail::lse_of<Scalar>(lse),
      options, terms..., detail::starts_term{query_starts, {}, false}));
}

/// The same computed directly: the oracle of cached_attention_into.
template <typename Query, typename Cache, typename Scalar, typename Lse = detail::absent,
          typename... Terms>
void reference_cached_attention_into(const tensor_view<Query>& query, const Cache& cache,
                                     const tensor_view<Scalar>& out, const Lse& lse,
                                     const attention_options& options, const Terms&... terms) {
  detail::reference(detail::make_cached_problem<Scalar>("reference_cached_attention_into", query,
                                                        cache, out, detail::lse_of<Scalar>(lse),
                                                        options, terms...));
}

HEED_NAMESPACE_END
