#pragma once

#include <heed/detail/abi.hpp>
#include <heed/when.hpp>

#include <optional>
#include <type_traits>

HEED_NAMESPACE_BEGIN
namespace detail {

/// The purpose of a term, by which it may be given once: two functions for one purpose are of two
/// types.
template <typename Term>
struct purpose_of {
  using type = Term;
};
template <typename Term>
struct purpose_of<std::optional<Term>> : purpose_of<Term> {};

template <typename... Purposes>
constexpr bool all_different = true;
template <typename First, typename... Rest>
constexpr bool all_different<First, Rest...> =
    !(std::is_same<First, Rest>::value || ...) && all_different<Rest...>;

template <typename Terms, typename Term>
void add_term(Terms& terms, const Term& term) {
  terms.add(term);
}
template <typename Terms, typename Term>
void add_term(Terms& terms, const std::optional<Term>& term) {
  if (term) terms.add(*term);
}

/// Adds what was given to the terms of one call.
template <typename Terms, typename... Given>
void add_terms(Terms& terms, const Given&... given) {
  static_assert(all_different<typename purpose_of<Given>::type...>, "a term may be given once");
  (add_term(terms, given), ...);
}

}  // namespace detail
HEED_NAMESPACE_END
