#pragma once

#include <heed/detail/abi.hpp>

#include <cstddef>
#include <cstdint>

HEED_NAMESPACE_BEGIN
namespace detail {

/// Integers of the caller, side by side, of 32 or 64 bits: how lists and tables of pages are read.
struct integers {
  const void* data = nullptr;                     // null: none
  std::ptrdiff_t width = sizeof(std::ptrdiff_t);  // bytes of each

  std::ptrdiff_t operator[](std::ptrdiff_t i) const {
    return width == sizeof(std::int32_t) ? read<std::int32_t>(i) : read<std::int64_t>(i);
  }
  /// Those from number i on.
  integers from(std::ptrdiff_t i) const {
    return {data ? static_cast<const char*>(data) + i * width : nullptr, width};
  }

 private:
  // An integer of 64 bits has several names, and a pointer to one may not look at another.
  template <typename Integer>
  std::ptrdiff_t read(std::ptrdiff_t i) const {
    Integer element;
    __builtin_memcpy(&element, static_cast<const char*>(data) + i * std::ptrdiff_t{sizeof element},
                     sizeof element);
    return static_cast<std::ptrdiff_t>(element);
  }
};

}  // namespace detail
HEED_NAMESPACE_END
