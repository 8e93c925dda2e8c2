#pragma once

#include <heed/detail/check.hpp>
#include <heed/isa.hpp>

HEED_NAMESPACE_BEGIN

class executor;

/// How a call runs: the member `execution` of all options. It never changes a result beyond
/// rounding, and `threads` and `executor` not by a bit. An aggregate: C++20 users may write
/// {.execution = {.threads = 4}}.
///
/// @code
/// heed::attention_options options;
/// options.execution.threads = 2;
/// const heed::rows<float> x = heed::rows<float>::Random(1000, 64);
/// const auto out = heed::attention(x, x, x, options);
/// @endcode
struct execution {
  /// The instruction set to use; one that this CPU lacks is an error. rwkv7, selective_scan and
  /// causal_conv have no kernels and refuse any but `automatic`; the `reference_…`, `streaming_…`
  /// and `recurrent_…` forms take that of the call they are compared with, and run as the file is
  /// compiled.
  isa target = isa::automatic;
  /// How many threads may work on the call, 1 or more.
  int threads = 1;
  /// The caller's pool, used instead of new threads; see executor.hpp. Not owned.
  heed::executor* executor = nullptr;
};

namespace detail {
/// Refuses an execution that is out of range or that this CPU lacks.
inline void check_execution(const char* function, const execution& how) {
  if (how.threads < 1)
    fail_with("heed::", function, ": execution.threads must be 1 or more, but is ", how.threads);
  check_target(function, "execution.target", how.target);
}
/// The same for a function without kernels.
inline void check_execution_without_kernels(const char* function, const execution& how) {
  check_execution(function, how);
  if (how.target != isa::automatic)
    fail_with("heed::", function,
              ": execution.target must be automatic, because this function has no kernels to "
              "choose from, but is ",
              name(how.target));
}
}  // namespace detail
HEED_NAMESPACE_END
