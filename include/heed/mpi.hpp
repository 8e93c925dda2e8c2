#pragma once

#include <heed/detail/mpi_ring.hpp>
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

HEED_NAMESPACE_END
