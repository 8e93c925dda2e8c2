#pragma once

#include <heed/detail/abi.hpp>

#include <optional>
#include <type_traits>

HEED_NAMESPACE_BEGIN

// A term follows the options of a call and must have the call's sizes, also if it is empty. In a std::optional it may be
// absent.

/// A term whose presence is known only when the program runs: attention(q, k, v, options, when(has_mask, keep(mask))).
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// const bool has_mask = false;
/// const heed::rows<bool> mask;  // empty: there is none
/// const auto out = heed::attention(x, x, x, {}, heed::when(has_mask, heed::keep(mask)));
/// @endcode
template <typename Term>
std::optional<Term> when(bool given, const Term& term) {
  return given ? std::optional<Term>(term) : std::nullopt;
}

namespace detail {

/// The purpose of a term, by which it may be given once: two functions for one purpose are of two types.
template <typename Term>
struct purpose_of {
  using type = Term;
};
template <typename Term>
struct purpose_of<std::optional<Term>> : purpose_of<Term> {};

template <typename... Purposes>
constexpr bool all_different = true;
template <typename First, typename... Rest>
constexpr bool all_different<First, Rest...> = !(std::is_same<First, Rest>::value || ...) && all_different<Rest...>;

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
