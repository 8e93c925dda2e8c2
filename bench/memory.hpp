#pragma once

#include <algorithm>

namespace bench {

/// Bytes of the heap in use now, and the most since `most` was last set. Defined in bench_main.cpp,
/// which counts every malloc of the program where the C library is glibc; elsewhere `counted` is
/// false.
struct heap {
  static const bool counted;
  static long now();
  static long most();
  static void restart_most();
};

/// The memory that a call takes besides what it leaves behind: the most that was in use during the
/// call less what is in use afterwards.
template <typename Call>
double extra_bytes(const Call& call) {
  heap::restart_most();
  const long before = heap::now();
  call();
  return double(heap::most() - (std::max)(before, heap::now()));
}

}  // namespace bench
