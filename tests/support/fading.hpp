#pragma once

// A state that fades, and the numbers below the normal ones, with which arithmetic is slow.

#include <heed/tensor.hpp>

#include <cfenv>
#include <cmath>
#include <limits>

#include "../catch.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace testing {

/// An entry of a state that decays counts as 0 below this.
template <typename Acc>
constexpr Acc least_state = (std::numeric_limits<Acc>::min)() * Acc(1 << 24);

/// A state that fades is 0 in the end, and on the way nowhere below least_state.
template <typename State>
void check_settled(const State& state) {
  for (heed::size_type i = 0; i < state.size(); ++i) {
    const auto x = state.data()[i];
    CHECK((x == 0 || (std::abs)(x) >= least_state<typename State::Scalar>));
  }
}

/// Positive numbers from least_state up to 2^20 times as much: a slow decay takes each through all
/// that is above least_state, at its own time.
template <typename Acc>
heed::rows<Acc> faded_state(heed::size_type rows, heed::size_type cols) {
  heed::rows<Acc> state(rows, cols);
  for (heed::size_type i = 0; i < rows; ++i)
    for (heed::size_type c = 0; c < cols; ++c)
      state(i, c) = std::ldexp(least_state<Acc> * Acc(1.1), int((3 * i + c) % 21));
  return state;
}

/// Whether call() multiplies or adds a subnormal number, as far as the CPU tells, or rounds a
/// result to one.
template <typename Call>
bool meets_subnormal(const Call& call) {
#if defined(__x86_64__)
  constexpr unsigned denormal_operand = 1 << 1, underflow = 1 << 4, all = 0x3f;
  _mm_setcsr(_mm_getcsr() & ~all);
  call();
  return (_mm_getcsr() & (denormal_operand | underflow)) != 0;
#else
  std::feclearexcept(FE_ALL_EXCEPT);
  call();
  return std::fetestexcept(FE_UNDERFLOW) != 0;
#endif
}

}  // namespace testing
