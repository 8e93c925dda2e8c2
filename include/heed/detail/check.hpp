#pragma once

#include <heed/detail/abi.hpp>

#include <atomic>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string>

HEED_NAMESPACE_BEGIN

/// Receives the message of a wrong argument in a build without exceptions. It may log, exit or longjmp; if it returns, the program aborts.
using failure_handler = void (*)(const char* message);

namespace detail {
inline std::atomic<failure_handler>& failure_handler_slot() {
  static std::atomic<failure_handler> slot{nullptr};
  return slot;
}

/// The one way out for a wrong argument: std::invalid_argument, or the failure handler and abort where exceptions are off.
[[noreturn]] inline void fail(const std::string& message) {
#if HEED_EXCEPTIONS
  throw std::invalid_argument(message);
#else
  if (const failure_handler handler = failure_handler_slot().load()) handler(message.c_str());
  std::abort();
#endif
}

/// fail with the parts streamed one after the other: fail_with("heed::attention: ", argument, " has ", n, " rows").
template <typename... Parts>
[[noreturn]] void fail_with(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  fail(message.str());
}

/// `got`, the size of `what`, must equal `wanted`, the size of `whose`: the error names the function, the argument and both sizes.
template <typename Index>
void check_equal(const char* function, const char* what, Index got, const char* whose, Index wanted) {
  if (got != wanted) fail_with("heed::", function, ": ", what, " ", got, " does not match ", whose, " ", wanted);
}
}  // namespace detail

/// Installs the handler that a build without exceptions calls for a wrong argument, and returns the one before. nullptr: just abort.
inline failure_handler set_failure_handler(failure_handler handler) { return detail::failure_handler_slot().exchange(handler); }

HEED_NAMESPACE_END
