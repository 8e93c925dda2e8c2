#pragma once

#include <heed/tensor.hpp>

#include <type_traits>

HEED_NAMESPACE_BEGIN

namespace detail {
template <typename Scalar>
struct carry_term {
  tensor_view<Scalar> view;
};
struct sequence_starts_term {
  index_list starts;
};
}  // namespace detail

/// Sequences of different lengths, one after the other without padding, in a call of one batch
/// entry: sequence s is rows [starts[s], starts[s + 1]) of all that has a row for each token (the
/// cu_seqlens of other libraries, of 32 or 64 bits: one entry more than there are sequences, the
/// first 0). Each begins with a state of its own: a carry has one for each sequence as its batch.
/// For every linear form.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 16);
/// const std::vector<int> starts{0, 3, 10};  // two sequences, of 3 and 7 tokens
/// const auto out = heed::linear_attention(x, x, x, {}, heed::sequence_starts(starts));
/// @endcode
inline detail::sequence_starts_term sequence_starts(const index_list& starts) { return {starts}; }

/// The state that the call starts from and updates: call again with the next tokens. [batch, heads,
/// rows, columns] as the function says; zeros at the start of a sequence. Its scalar is float for
/// float, half and bfloat16.
template <typename Scalar>
detail::carry_term<Scalar> carry(const tensor_view<Scalar>& state) {
  return {state};
}

/// The state of one head: a matrix, Map or block.
template <typename State, typename = std::enable_if_t<detail::is_eigen<State>>>
auto carry(State&& state) -> detail::carry_term<typename std::decay_t<State>::Scalar> {
  return {writable_view(state)};
}

HEED_NAMESPACE_END
