#pragma once

#include <heed/detail/abi.hpp>

#include <atomic>
#include <exception>

HEED_NAMESPACE_BEGIN
namespace detail {

/// The first exception that a function of the user, or a task that finds no memory, throws during a
/// call. Kernels are noexcept, and other threads may run them: it is kept until all tasks have
/// ended, and nothing that might throw is called any more.
class caught_exception {
 public:
  caught_exception() = default;
  caught_exception(const caught_exception&) noexcept {}  // the copy of a call has not run yet
  caught_exception& operator=(const caught_exception&) noexcept { return *this; }

#if HEED_EXCEPTIONS
  template <typename Ask>
  void guard(const Ask& ask) noexcept {
    if (taken_.load(std::memory_order_relaxed)) return;
    try {
      ask();
    } catch (...) {
      if (!taken_.exchange(true)) first_ = std::current_exception();
    }
  }
  /// Whether there is one.
  bool taken() const { return taken_.load(); }
  /// Throws it, once all tasks have ended.
  void rethrow() {
    if (!taken_.load()) return;
    const std::exception_ptr first = first_;
    first_ = nullptr;
    taken_ = false;
    std::rethrow_exception(first);
  }

 private:
  std::atomic<bool> taken_{false};
  std::exception_ptr first_;
#else
  template <typename Ask>
  void guard(const Ask& ask) noexcept {
    ask();
  }
  bool taken() const { return false; }
  void rethrow() {}
#endif
};

}  // namespace detail
HEED_NAMESPACE_END
