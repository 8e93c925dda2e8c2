#pragma once

#include <heed/detail/abi.hpp>

#include <atomic>

// What a process has once: shared by files of all compiler flags, so outside the namespace that
// spells them. Variables only, of types that are the same under any flags; a function here would be
// compiled for one file's CPU and run on all.

#if defined(__ELF__) || defined(__APPLE__)
#define HEED_PROCESS_WIDE \
  __attribute__((visibility("default"))) inline  // one for all shared libraries too
#else
#define HEED_PROCESS_WIDE inline
#endif

#define HEED_PROCESS_NAMESPACE_TEXT(major, minor) process_v##major##_##minor
#define HEED_PROCESS_NAMESPACE_OF(major, minor) HEED_PROCESS_NAMESPACE_TEXT(major, minor)
#define HEED_PROCESS_NAMESPACE HEED_PROCESS_NAMESPACE_OF(HEED_VERSION_MAJOR, HEED_VERSION_MINOR)

namespace heed {
namespace HEED_PROCESS_NAMESPACE {
HEED_PROCESS_WIDE std::atomic<unsigned char> target{0};  // a heed::isa; see set_target
HEED_PROCESS_WIDE std::atomic<void (*)(const char*)> failure_handler{
    nullptr};  // see set_failure_handler
}  // namespace HEED_PROCESS_NAMESPACE
}  // namespace heed

HEED_NAMESPACE_BEGIN
namespace detail {
namespace process = heed::HEED_PROCESS_NAMESPACE;
}  // namespace detail
HEED_NAMESPACE_END
