#pragma once

// Counts every operator new of the program, and makes one fail on demand. To be included by one
// file of a program, since it replaces the operators.

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace testing {

inline std::atomic<long> allocations{0};
/// The next allocation but this many fails, once; negative for none.
inline std::atomic<long> allocations_until_failure{-1};

inline void* count_allocation(std::size_t size, std::size_t alignment) noexcept {
  ++allocations;
  if (allocations_until_failure >= 0 && allocations_until_failure-- == 0) return nullptr;
  return std::aligned_alloc(alignment, (size / alignment + 1) * alignment);
}
inline void* must_have(void* memory) {
  if (!memory) throw std::bad_alloc();
  return memory;
}
constexpr std::size_t usual_alignment = alignof(std::max_align_t);

/// Calls `change` on a copy of `object` with the k-th allocation failing, for every k until none
/// does. After each failure `same` must hold of the copy, and the change must go through when it is
/// tried again. Returns how many allocations failed.
template <typename Object, typename Change, typename Same>
long fail_each_allocation(const Object& object, const Change& change, const Same& same) {
  for (long k = 0;; ++k) {
    Object copy = object;
    testing::allocations_until_failure = k;
    bool failed = false;
    try {
      change(copy);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    testing::allocations_until_failure = -1;
    if (!failed) return k;
    same(copy);
    change(copy);
  }
}

}  // namespace testing

// Not inlined: g++ would see free where it expects delete, and warn.
#define HEED_TEST_NOINLINE __attribute__((noinline))
HEED_TEST_NOINLINE void* operator new(std::size_t size) {
  return testing::must_have(testing::count_allocation(size, testing::usual_alignment));
}
HEED_TEST_NOINLINE void* operator new[](std::size_t size) {
  return testing::must_have(testing::count_allocation(size, testing::usual_alignment));
}
HEED_TEST_NOINLINE void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return testing::count_allocation(size, testing::usual_alignment);
}
HEED_TEST_NOINLINE void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return testing::count_allocation(size, testing::usual_alignment);
}
HEED_TEST_NOINLINE void* operator new(std::size_t size, std::align_val_t alignment) {
  return testing::must_have(testing::count_allocation(size, static_cast<std::size_t>(alignment)));
}
HEED_TEST_NOINLINE void* operator new[](std::size_t size, std::align_val_t alignment) {
  return testing::must_have(testing::count_allocation(size, static_cast<std::size_t>(alignment)));
}
HEED_TEST_NOINLINE void operator delete(void* memory) noexcept { std::free(memory); }
HEED_TEST_NOINLINE void operator delete[](void* memory) noexcept { std::free(memory); }
HEED_TEST_NOINLINE void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
HEED_TEST_NOINLINE void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
HEED_TEST_NOINLINE void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
HEED_TEST_NOINLINE void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
HEED_TEST_NOINLINE void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
HEED_TEST_NOINLINE void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
HEED_TEST_NOINLINE void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
HEED_TEST_NOINLINE void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
