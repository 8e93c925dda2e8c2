#pragma once

#include <heed/detail/abi.hpp>

#include <optional>

HEED_NAMESPACE_BEGIN

// A term follows the options of a call and must have the call's sizes, also if it is empty. In a
// std::optional it may be absent.

/// A term whose presence is known only when the program runs: attention(q, k, v, options,
/// when(has_mask, keep(mask))).
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

HEED_NAMESPACE_END
