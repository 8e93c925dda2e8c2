#pragma once

#include <heed/tensor.hpp>

#include <type_traits>

HEED_NAMESPACE_BEGIN

namespace detail {
template <typename Scalar>
struct carry_term {
  tensor_view<Scalar> view;
};
}  // namespace detail

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
