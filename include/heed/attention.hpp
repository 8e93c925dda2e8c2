#pragma once

#include <heed/detail/inputs.hpp>
#include <heed/detail/make_problem.hpp>
#include <heed/detail/run_forward.hpp>
#include <heed/workspace.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {
/// attention under the name of the function that was called.
template <typename Scalar, int Dk, int Dv, typename Query, typename Key, typename Value,
          typename... Terms>
auto attend(const char* name, const Query& query, const Key& key, const Value& value,
            const attention_options& options, const Terms&... terms) {
  const inputs<Scalar, Dk, Dv, Query, Key, Value> in(name, query, key, value);
  typename decltype(in)::output out(in.query.rows, in.value.cols);
  workspace memory;
  forward(make_problem(name, in.query, in.key, in.value, writable_view(out), {}, options, terms...),
          memory);
  return out;
}
}  // namespace detail

/// Attention(Q, K, V) = softmax(scale Q K^T) V, fused: O(n) memory (Vaswani et al. 2017, equation
/// 1; Dao et al. 2022).
///
/// query n_q x Dk, key n_kv x Dk, value n_kv x Dv -> n_q x Dv. Any dense Eigen expression, any
/// storage order; one that has memory is not copied. Template arguments may be left out; Dk and Dv
/// that are given are checked. float, double, half and bfloat16 run on the kernels of this CPU, any
/// other scalar on streaming_attention. A row that sees no key is 0. Throws std::invalid_argument
/// for sizes that do not fit together and for options out of range, before anything is computed.
///
/// @code
/// using rows = heed::rows<float>;
/// const rows query = rows::Random(6, 64), key = rows::Random(10, 64),
///            value = rows::Random(10, 32);
/// const rows out = heed::attention(query, key, value);  // 6 x 32
/// @endcode
template <typename Scalar = deduced, int Dk = Eigen::Dynamic, int Dv = Dk, typename Query,
          typename Key, typename Value, typename... Terms>
auto attention(const Query& query, const Key& key, const Value& value,
               const attention_options& options = {}, const Terms&... terms) {
  return detail::attend<Scalar, Dk, Dv>("attention", query, key, value, options, terms...);
}

/// attention together with the natural logarithm of the sum of exponentials of each row, from which
/// parts are merged and weights rebuilt. A row that sees no key is 0 with an lse of -infinity; a
/// sink joins the lse.
///
/// @code
/// using rows = heed::rows<float>;
/// const rows query = rows::Random(6, 64), key = rows::Random(10, 64),
///            value = rows::Random(10, 32);
/// const auto result = heed::attention_with_lse(query, key, value);
/// assert(result.out.rows() == 6 && result.lse.size() == 6);
/// @endcode
template <typename Scalar = deduced, int Dk = Eigen::Dynamic, int Dv = Dk, typename Query,
          typename Key, typename Value, typename... Terms>
auto attention_with_lse(const Query& query, const Key& key, const Value& value,
                        const attention_options& options = {}, const Terms&... terms) {
  const detail::inputs<Scalar, Dk, Dv, Query, Key, Value> in("attention_with_lse", query, key,
                                                             value);
  typename decltype(in)::result result(in.query.rows, in.value.cols);
  workspace memory;
  detail::forward(
      detail::make_problem("attention_with_lse", in.query, in.key, in.value,
                           writable_view(result.out), writable_view(result.lse), options, terms...),
      memory);
  return result;
}

/// attention into the caller's memory: out n_q x Dv, lse n_q x 1 or {} to leave it out. Both must
/// have their size already, and overlap neither each other nor anything that the call reads:
/// std::invalid_argument. Columns interleaved with those of the inputs are no overlap. Allocates
/// nothing once `memory` has grown and when the inputs are in memory; scalars without a kernel
/// (long double, an autodiff type) do not use it and allocate.
///
/// @code
/// using rows = heed::rows<float>;
/// const rows query = rows::Random(6, 64), key = rows::Random(10, 64),
///            value = rows::Random(10, 32);
/// rows out(6, 32);
/// heed::row_vector<float> lse(6);
/// heed::workspace memory;  // grows in the first call; later ones allocate nothing
/// heed::attention_into(query, key, value, out, lse, heed::attention_options(), memory);
/// @endcode
template <typename Scalar = deduced, int Dk = Eigen::Dynamic, int Dv = Dk, typename Query,
          typename Key, typename Value, typename Out, typename Lse = detail::absent,
          typename... Terms>
void attention_into(const Query& query, const Key& key, const Value& value, Out&& out, Lse&& lse,
                    const attention_options& options, workspace& memory, const Terms&... terms) {
  const detail::inputs<Scalar, Dk, Dv, Query, Key, Value> in("attention_into", query, key, value);
  detail::forward(
      detail::make_problem("attention_into", in.query, in.key, in.value, writable_view(out),
                           detail::lse_of<typename decltype(in)::scalar>(lse), options, terms...),
      memory);
}

/// The bytes of the workspace that this call of attention_into takes: out and lse do not matter.
/// With key_lengths, those of its largest need at any lengths.
template <typename Scalar = deduced, int Dk = Eigen::Dynamic, int Dv = Dk, typename Query,
          typename Key, typename Value, typename... Terms>
size_type attention_workspace_bytes(const Query& query, const Key& key, const Value& value,
                                    const attention_options& options = {}, const Terms&... terms) {
  constexpr const char* name = "attention_workspace_bytes";
  const detail::inputs<Scalar, Dk, Dv, Query, Key, Value> in(name, query, key, value);
  return detail::bytes_of(
      detail::make_shape_problem(name, in.query, in.key, in.value, options, terms...));
}

HEED_NAMESPACE_END
