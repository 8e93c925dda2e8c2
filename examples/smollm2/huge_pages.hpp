#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory_resource>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace smollm2 {

/// Memory for a hundred megabytes that each token reads from end to end, on pages of 2 MiB where
/// Linux has them: looking up a small page for every 4 KiB costs a quarter of the bandwidth.
class huge_pages : public std::pmr::memory_resource {
 private:
  static constexpr std::size_t page = std::size_t(2) << 20;

  void* do_allocate(std::size_t bytes, std::size_t) override {
    const std::size_t whole = (bytes + page - 1) / page * page;
    void* const memory = std::aligned_alloc(page, whole);
    if (!memory) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    madvise(memory, whole, MADV_HUGEPAGE);  // a wish: where it is not granted the pages are small
#endif
    return memory;
  }
  void do_deallocate(void* memory, std::size_t, std::size_t) override { std::free(memory); }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }
};

}  // namespace smollm2
