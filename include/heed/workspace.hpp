#pragma once

#include <heed/detail/check.hpp>
#include <heed/types.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

HEED_NAMESPACE_BEGIN

/// Scratch memory that calls reuse: it grows to the largest need and is freed with the object. What
/// a call needs is the result of the function that has its name and _workspace_bytes. A call
/// that is given a workspace which has grown enough allocates nothing, but that it may have to
/// start threads (see thread_executor). One workspace serves one call at a time.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// heed::rows<float> out(10, 64);
/// heed::workspace memory;
/// for (int step = 0; step < 3; ++step)
///   heed::attention_into(x, x, x, out, {}, heed::attention_options(), memory);
/// assert(memory.capacity() > 0);
/// @endcode
class workspace {
 public:
  /// An empty one: the first call allocates.
  workspace() = default;
  /// Takes over the memory of another, which is empty then and can be used again.
  workspace(workspace&& other) noexcept
      : memory_(std::move(other.memory_)), capacity_(std::exchange(other.capacity_, 0)) {}
  /// The same; its own memory is freed.
  workspace& operator=(workspace&& other) noexcept {
    memory_ = std::move(other.memory_);
    capacity_ = memory_ ? std::exchange(other.capacity_, 0) : 0;
    return *this;
  }

  /// At least `bytes` bytes, aligned to 64; the previous content is lost. Where memory runs out the
  /// workspace is empty, and can be used again.
  void* reserve(size_type bytes) {
    if (bytes < 0)
      detail::fail_with("heed::workspace::reserve: bytes must not be negative, but are ", bytes);
    if (bytes > capacity_) {
      memory_.reset();  // before the new memory is taken: the two need not fit side by side
      capacity_ = 0;
      memory_.reset(new unsigned char[static_cast<std::size_t>(bytes) + alignment]);
      capacity_ = bytes;
    }
    const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(memory_.get());
    return memory_.get() + (alignment - address % alignment) % alignment;
  }
  /// Its size in bytes.
  size_type capacity() const { return capacity_; }

 private:
  static constexpr std::size_t alignment = 64;
  std::unique_ptr<unsigned char[]> memory_;
  size_type capacity_ = 0;
};

HEED_NAMESPACE_END
