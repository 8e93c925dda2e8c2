#pragma once

#include <heed/detail/mpi_decode.hpp>
#include <heed/detail/mpi_exchange.hpp>
#include <heed/detail/mpi_layer.hpp>
#include <heed/detail/mpi_ring.hpp>
#include <heed/detail/mpi_ring_backward.hpp>
#include <heed/detail/mpi_tokens.hpp>
#include <heed/heed.hpp>
#include <heed/mpi_group.hpp>
#include <heed/mpi_shards.hpp>

// Attention of a sequence whose tokens lie on the ranks of a group. Not part of heed.hpp: who
// includes this has MPI 3 (Open MPI, MPICH or their kin).

HEED_NAMESPACE_BEGIN

/// Attention of a sequence whose tokens lie on many ranks: the keys and values of each go round,
/// and each rank merges what its queries see of them by the log-sum-exp (Liu, Zaharia and Abbeel
/// 2023, "Ring attention with blockwise transformers").
///
/// query [B, H, rows of this rank, Dk], key [B, H_kv, rows of this rank, Dk], value [B, H_kv, rows
/// of this rank, Dv] -> out [B, H, rows of this rank, Dv] and lse [B, H, rows, 1] or {}: this
/// rank's rows of the whole. `queries` and `keys` say which tokens those are; a rank may have none.
/// The result is that of one rank to rounding, and for one number of ranks the same bits every
/// time.
///
/// causal, windows, ALiBi, functions and dropout count tokens of the whole. keep, keep_bits and
/// bias have a row for each query of this rank (or 1) and a column for each key of the whole;
/// key_lengths and query_lengths are those of the whole. For half and bfloat16, keys and values
/// travel as they are, and parts are merged in float.
///
/// In a step each rank works on the block of another while the next one comes: the thread that made
/// the call looks at MPI after each of its tasks, with one thread too. With an executor that does
/// not use that thread nothing moves while its tasks run. Blocks that a rank does not see are not
/// sent to it. Memory for messages (two blocks, and a third where key or value are not in the order
/// [B, H, N, D]) is the group's. An exception of a function of the user is thrown on its rank, once
/// the others have what they need of it. Other errors: see process_group.
///
/// @code
/// heed::process_group group(MPI_COMM_WORLD);
/// const auto shards = heed::sequence_shards::zigzag(group.size(), 100);  // of 100 tokens
/// const heed::size_type n = shards.rows(group.rank());                   // this rank's
/// std::vector<float> x(static_cast<std::size_t>(n) * 4 * 64, 1.0f), out(x.size());
/// const auto tokens = heed::bhnd(x.data(), 1, 4, n, 64);
/// heed::attention_options options;
/// options.causal = heed::causal::bottom_right;
/// heed::workspace memory;
/// heed::ring_attention_into(group, shards, shards, tokens, tokens, tokens,
///                           heed::bhnd(out.data(), 1, 4, n, 64), {}, options, memory);
/// for (const float number : out) assert(std::abs(number - 1) < 1e-6f);
/// @endcode
template <typename Query, typename Key, typename Value, typename Scalar,
          typename Lse = detail::absent, typename... Terms>
void ring_attention_into(process_group& group, const sequence_shards& queries,
                         const sequence_shards& keys, const tensor_view<Query>& query,
                         const tensor_view<Key>& key, const tensor_view<Value>& value,
                         const tensor_view<Scalar>& out, const Lse& lse,
                         const attention_options& options, workspace& memory,
                         const Terms&... terms) {
  static_assert(detail::scalars_fit<Scalar, Query, Key, Value>::value);
  detail::ring_attention<Scalar>(group, queries, keys, query, key, value, out,
                                 detail::lse_of<Scalar>(lse), options, memory, terms...);
}

/// The gradients of ring_attention_into, from that of a loss with respect to its output. Keys and
/// values go the same way; what a rank adds to their gradients goes back to the rank that has them,
/// where it is summed in the order of the steps: for one number of ranks the same bits every time.
///
/// query, key, value, out and lse are this rank's rows of the forward call, out and lse those of
/// the whole (which is what it writes); grad_out has the size of out -> grad_query, grad_key and
/// grad_value of the sizes of query, key and value. Options and terms are those of the forward
/// call; grad_lse may follow, the gradients of other terms not. For half and bfloat16, all is
/// computed and summed in float, and out may be given in float. The gradients of keys travel in the
/// type of the sums. The rest as ring_attention_into, except that an exception of a function of the
/// user is a std::runtime_error on the other ranks.
///
/// @code
/// heed::process_group group(MPI_COMM_WORLD);
/// const auto shards = heed::sequence_shards::zigzag(group.size(), 100);  // of 100 tokens
/// const heed::size_type n = shards.rows(group.rank());                   // this rank's
/// const std::size_t size = static_cast<std::size_t>(n) * 4 * 64;
/// std::vector<float> x(size, 1.0f), out(size), lse(size / 64), dq(size), dk(size), dv(size);
/// const auto heads = [n](std::vector<float>& numbers) {
///   return heed::bhnd(numbers.data(), 1, 4, n, 64);
/// };
/// const auto sums = heed::bhnd(lse.data(), 1, 4, n, 1);
/// heed::workspace memory;
/// heed::ring_attention_into(group, shards, shards, heads(x), heads(x), heads(x), heads(out), sums,
/// {},
///                           memory);
/// heed::ring_attention_backward_into(group, shards, shards, heads(x), heads(x), heads(x),
/// heads(out),
///                                    sums, heads(x), heads(dq), heads(dk), heads(dv), {}, memory);
/// @endcode
template <typename Query, typename Key, typename Value, typename Out, typename Lse,
          typename GradOut, typename Scalar, typename... Terms>
void ring_attention_backward_into(
    process_group& group, const sequence_shards& queries, const sequence_shards& keys,
    const tensor_view<Query>& query, const tensor_view<Key>& key, const tensor_view<Value>& value,
    const tensor_view<Out>& out, const tensor_view<Lse>& lse, const tensor_view<GradOut>& grad_out,
    const tensor_view<Scalar>& grad_query, const tensor_view<Scalar>& grad_key,
    const tensor_view<Scalar>& grad_value, const attention_options& options, workspace& memory,
    const Terms&... terms) {
  static_assert(detail::scalars_fit<Scalar, Query, Key, Value, GradOut>::value &&
                detail::lse_fits<Scalar, std::remove_const_t<Lse>>::value);
  detail::ring_attention_backward<Scalar, std::remove_const_t<Out>>(
      group, queries, keys, query, key, value, out, lse, grad_out, grad_query, grad_key, grad_value,
      options, memory, terms...);
}

/// The same as ring_attention_into by an exchange of tokens for heads: each rank attends with some
/// heads over the whole sequence (Jacobs et al. 2023, "DeepSpeed Ulysses"). The bits are those of
/// one rank, for any number of ranks.
///
/// The arguments are those of ring_attention_into, but that keep, keep_bits and bias have the sizes
/// of the whole on every rank. The heads H are a multiple of the ranks; where a rank's are part of
/// a group, several ranks get the same key/value heads. Nothing is computed while tokens are
/// exchanged, and each rank has memory for all tokens of its heads.
///
/// @code
/// heed::process_group group(MPI_COMM_WORLD);
/// const auto shards = heed::sequence_shards::zigzag(group.size(), 100);  // of 100 tokens
/// const heed::size_type n = shards.rows(group.rank());                   // this rank's
/// const heed::size_type heads = 2 * group.size();
/// std::vector<float> x(static_cast<std::size_t>(n * heads * 64), 1.0f), out(x.size());
/// const auto tokens = heed::bhnd(x.data(), 1, heads, n, 64);
/// heed::workspace memory;
/// heed::exchange_attention_into(group, shards, shards, tokens, tokens, tokens,
///                               heed::bhnd(out.data(), 1, heads, n, 64), {}, {}, memory);
/// @endcode
template <typename Query, typename Key, typename Value, typename Scalar,
          typename Lse = detail::absent, typename... Terms>
void exchange_attention_into(process_group& group, const sequence_shards& queries,
                             const sequence_shards& keys, const tensor_view<Query>& query,
                             const tensor_view<Key>& key, const tensor_view<Value>& value,
                             const tensor_view<Scalar>& out, const Lse& lse,
                             const attention_options& options, workspace& memory,
                             const Terms&... terms) {
  static_assert(detail::scalars_fit<Scalar, Query, Key, Value>::value);
  detail::exchange_attention<Scalar>(group, queries, keys, query, key, value, out,
                                     detail::lse_of<Scalar>(lse), options, memory, terms...);
}

/// Decoding against a cache whose tokens lie on all ranks: each attends to those that it holds, and
/// the parts are merged in the order of the ranks. Every rank gets the whole result, the same bits.
///
/// query [B, H, n_q, Dk], the same on every rank, cache of B sequences: this rank's tokens, of any
/// type that cached_attention_into takes -> out [B, H, n_q, Dv], lse [B, H, n_q, 1] or {}, on every
/// rank. Each sequence is in the order of the ranks: the first rank's tokens, those of the next;
/// any of them may have none, and sequences may have different lengths. What has been appended is
/// on the last ranks then. causal, windows, ALiBi, functions and dropout count tokens of the
/// sequence, and keep, keep_bits and bias have a column for each. A part must not have dropped
/// tokens. Up to 256 KiB of parts are sent to all; beyond, ranks share the merging. An exception of
/// a function of the user is a std::runtime_error on the other ranks.
///
/// @code
/// heed::process_group group(MPI_COMM_WORLD);
/// heed::kv_cache<float> cache(1, 2, 64, 64);  // this rank's part: 5 tokens, 2 key/value heads
/// std::vector<float> tokens(2 * 5 * 64, 0.5f), query(8 * 64, 0.1f), out(query.size());
/// cache.append(heed::bhnd(tokens.data(), 1, 2, 5, 64), heed::bhnd(tokens.data(), 1, 2, 5, 64));
/// heed::workspace memory;
/// heed::sharded_cache_attention_into(group, heed::bhnd(query.data(), 1, 8, 1, 64), cache,
///                                    heed::bhnd(out.data(), 1, 8, 1, 64), {}, {}, memory);
/// assert(std::abs(out[0] - 0.5f) < 1e-6f);
/// @endcode
template <typename Query, typename Cache, typename Scalar, typename Lse = detail::absent,
          typename... Terms>
void sharded_cache_attention_into(process_group& group, const tensor_view<Query>& query,
                                  const Cache& cache, const tensor_view<Scalar>& out,
                                  const Lse& lse, const attention_options& options,
                                  workspace& memory, const Terms&... terms) {
  static_assert(detail::scalars_fit<Scalar, Query>::value);
  detail::sharded_cache_attention<Scalar>(group, nullptr, query, cache, out,
                                          detail::lse_of<Scalar>(lse), options, memory, terms...);
}

/// The same for tokens held in any order, as after a prompt in zigzag shards: rows of each rank's
/// cache are the tokens of its ranges, for all sequences alike.
template <typename Query, typename Cache, typename Scalar, typename Lse = detail::absent,
          typename... Terms>
void sharded_cache_attention_into(process_group& group, const sequence_shards& shards,
                                  const tensor_view<Query>& query, const Cache& cache,
                                  const tensor_view<Scalar>& out, const Lse& lse,
                                  const attention_options& options, workspace& memory,
                                  const Terms&... terms) {
  static_assert(detail::scalars_fit<Scalar, Query>::value);
  detail::sharded_cache_attention<Scalar>(group, &shards, query, cache, out,
                                          detail::lse_of<Scalar>(lse), options, memory, terms...);
}

/// Sends each rank its rows of a sequence that `root` has: whole [B, H, tokens, D], which is looked
/// at on that rank alone (elsewhere {}) -> mine [B, H, rows of this rank, D].
template <typename Whole, typename Scalar>
void scatter_tokens_into(process_group& group, const sequence_shards& shards,
                         const tensor_view<Whole>& whole, const tensor_view<Scalar>& mine,
                         int root = 0) {
  static_assert(detail::scalars_fit<Scalar, Whole>::value);
  detail::scatter_tokens<Scalar>(group, shards, whole, mine, root);
}

/// Brings the rows of all ranks together on `root`: mine [B, H, rows of this rank, D] -> whole [B,
/// H, tokens, D], which is written on that rank alone (elsewhere {}).
///
/// @code
/// heed::process_group group(MPI_COMM_WORLD);
/// const auto shards = heed::sequence_shards::zigzag(group.size(), 100);  // of 100 tokens
/// const heed::size_type n = shards.rows(group.rank());                   // this rank's
/// std::vector<float> whole(100 * 64), mine(static_cast<std::size_t>(n) * 64);
/// const bool root = group.rank() == 0;
/// const auto rows = heed::bhnd(mine.data(), 1, 1, n, 64);
/// const auto all = root ? heed::bhnd(whole.data(), 1, 1, 100, 64) : heed::tensor_view<float>();
/// heed::scatter_tokens_into(group, shards, all, rows);
/// heed::gather_tokens_into(group, shards, rows, all);
/// @endcode
template <typename Mine, typename Scalar>
void gather_tokens_into(process_group& group, const sequence_shards& shards,
                        const tensor_view<Mine>& mine, const tensor_view<Scalar>& whole,
                        int root = 0) {
  static_assert(detail::scalars_fit<Scalar, Mine>::value);
  detail::gather_tokens<Scalar>(group, shards, mine, whole, root);
}

/// self_attention of tokens that lie on many ranks, each of which has the weights: x rows of this
/// rank x d_model, w_q and w_k d_model x d_k, w_v d_model x d_v -> this rank's rows of the result,
/// x d_v, by ring_attention_into.
///
/// @code
/// heed::process_group group(MPI_COMM_WORLD);
/// const auto shards = heed::sequence_shards::zigzag(group.size(), 100);  // of 100 tokens
/// const heed::size_type n = shards.rows(group.rank());                   // this rank's
/// const heed::rows<float> x = heed::rows<float>::Random(n, 32),
///                         w = heed::rows<float>::Constant(32, 16, 0.1f);  // the same on all ranks
/// const heed::rows<float> out = heed::ring_self_attention(group, shards, x, w, w, w);
/// assert(out.rows() == n && out.cols() == 16);
/// @endcode
template <typename X, typename Wq, typename Wk, typename Wv, typename... Terms>
auto ring_self_attention(process_group& group, const sequence_shards& shards, const X& x,
                         const Wq& w_q, const Wk& w_k, const Wv& w_v,
                         const attention_options& options = {}, const Terms&... terms) {
  return detail::ring_packed_attention(
      detail::group_call::self_attention, group, shards, x, w_q, w_k, w_v, {1, 1}, [] {}, options,
      terms...);
}

/// multi_head_self_attention of tokens that lie on many ranks, each of which has the weights: the
/// rows of x are this rank's tokens of heads.batch sequences of one length, one below the other.
///
/// @code
/// heed::process_group group(MPI_COMM_WORLD);
/// const auto shards = heed::sequence_shards::zigzag(group.size(), 100);  // of 100 tokens
/// const heed::size_type n = shards.rows(group.rank());                   // this rank's
/// using rows = heed::rows<float>;
/// const rows x = rows::Random(n, 32), w_q = rows::Constant(32, 4 * 8, 0.1f),
///            w_kv = rows::Constant(32, 2 * 8, 0.1f), w_o = rows::Constant(4 * 8, 32, 0.1f);
/// const rows out =
///     heed::ring_multi_head_self_attention(group, shards, x, w_q, w_kv, w_kv, w_o, {4, 2});
/// @endcode
template <typename X, typename Wq, typename Wk, typename Wv, typename Wo, typename... Terms>
auto ring_multi_head_self_attention(process_group& group, const sequence_shards& shards, const X& x,
                                    const Wq& w_q, const Wk& w_k, const Wv& w_v, const Wo& w_o,
                                    const packed_heads& heads,
                                    const attention_options& options = {}, const Terms&... terms) {
  constexpr detail::group_call call = detail::group_call::multi_head_self_attention;
  static_assert(detail::projection_fits<X, Wo>::value);
  const auto attended = detail::ring_packed_attention(
      call, group, shards, x, w_q, w_k, w_v, heads,
      [&] {
        detail::check_layer(detail::name_of(call), w_q.cols(), w_k.cols(), w_v.cols(), w_o.rows(),
                            heads);
      },
      options, terms...);
  return detail::projected(detail::name_of(call), attended, w_o, options);
}

HEED_NAMESPACE_END
