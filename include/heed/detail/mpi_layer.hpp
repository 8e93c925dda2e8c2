#pragma once

#include <heed/detail/mpi_ring.hpp>
#include <heed/multi_head.hpp>
#include <heed/projection.hpp>

#include <optional>
#include <type_traits>

// Self-attention of tokens that lie on many ranks.

HEED_NAMESPACE_BEGIN
namespace detail {

/// Attention of packed heads: rows of this rank x (num_heads * d_v). `check` looks at what else the
/// call has.
template <typename X, typename Wq, typename Wk, typename Wv, typename Check, typename... Terms>
auto ring_packed_attention(group_call call, process_group& group, const sequence_shards& shards,
                           const X& x, const Wq& w_q, const Wk& w_k, const Wv& w_v,
                           const packed_heads& heads, const Check& check,
                           const attention_options& options, const Terms&... terms) {
  using Scalar = typename X::Scalar;
  const char* const name = name_of(call);
  std::optional<std::decay_t<decltype(projected_qkv(name, x, w_q, w_k, w_v, options))>> in;
  rows<Scalar> out;
  agreement same(call);
  same.settle(group, [&] {
    check();
    in.emplace(projected_qkv(name, x, w_q, w_k, w_v, options));
    check_multiple(name, "w_q", w_q.cols(), "columns", "num_heads", heads.num_heads);
    check_multiple(name, "w_k", w_k.cols(), "columns", "num_kv_heads", heads.num_kv_heads);
    check_multiple(name, "w_v", w_v.cols(), "columns", "num_kv_heads", heads.num_kv_heads);
    check_multiple(name, "x", x.rows(), "rows", "batch", heads.batch);
    out.resize(x.rows(), heads.num_heads * (w_v.cols() / heads.num_kv_heads));
    same.add("num_heads", std::int64_t{heads.num_heads});
    same.add("num_kv_heads", std::int64_t{heads.num_kv_heads});
    same.add("batch", std::int64_t{heads.batch});
  });
  workspace memory;
  ring_attention<Scalar>(
      group, shards, shards, split_heads(view(in->query), heads.num_heads, heads.batch),
      split_heads(view(in->key), heads.num_kv_heads, heads.batch),
      split_heads(view(in->value), heads.num_kv_heads, heads.batch),
      split_heads(writable_view(out), heads.num_heads, heads.batch), {}, options, memory, terms...);
  return out;
}

}  // namespace detail
HEED_NAMESPACE_END
