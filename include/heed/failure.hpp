#pragma once

#include <heed/detail/process.hpp>

HEED_NAMESPACE_BEGIN

/// Receives the message of a wrong argument in a build without exceptions. It may log, exit or
/// longjmp; if it returns, the program aborts.
using failure_handler = void (*)(const char* message);

/// Installs the handler that the files of this process built without exceptions call for a wrong
/// argument, and returns the one before. nullptr, as at the start: write the message to stderr and
/// abort.
///
/// @code
/// const auto before = heed::set_failure_handler(
///     [](const char* message) { std::cerr << "my program: " << message << '\n'; });
/// heed::set_failure_handler(before);
/// @endcode
inline failure_handler set_failure_handler(failure_handler handler) {
  return detail::process::failure_handler.exchange(handler);
}

HEED_NAMESPACE_END
