#pragma once

#include <heed/detail/check.hpp>
#include <heed/detail/cpu.hpp>
#include <heed/detail/process.hpp>

#include <atomic>
#include <vector>

HEED_NAMESPACE_BEGIN

/// The instruction set a call's kernels are compiled for; `automatic` is the best one this CPU has.
/// `baseline` is what every CPU of the architecture has: SSE2 on x86-64, NEON on AArch64.
/// `avx512_bf16` is avx512 except that attention of Eigen::bfloat16 multiplies in pairs
/// (AVX512-BF16), for which it rounds the weights to bfloat16.
enum class isa : unsigned char { automatic, baseline, avx2, avx512, avx512_bf16 };

namespace detail {
/// An instruction set: its name, and what a CPU must have for its kernels; null: every CPU has it.
/// (A file built with HEED_PORTABLE knows no other.)
struct isa_entry {
  isa target;
  const char* name;
  bool cpu_features::*feature;
};
/// All of them, the widest last.
inline constexpr isa_entry isas[] = {{isa::baseline, "baseline", nullptr},
                                     {isa::avx2, "avx2", &cpu_features::avx2},
                                     {isa::avx512, "avx512", &cpu_features::avx512},
                                     {isa::avx512_bf16, "avx512_bf16", &cpu_features::avx512_bf16}};

/// The entry of a target; null: it has none.
constexpr const isa_entry* find_isa(isa target) {
  for (const isa_entry& entry : isas)
    if (entry.target == target) return &entry;
  return nullptr;
}
/// Whether this CPU has kernels for a target.
inline bool is_available(isa target) {
  if (target == isa::automatic) return true;
  const isa_entry* const entry = find_isa(target);
  return entry && (!entry->feature || cpu().*entry->feature);
}
}  // namespace detail

/// "automatic", "baseline", "avx2", "avx512" or "avx512_bf16"; "unknown" for a number that is none
/// of them.
constexpr const char* name(isa target) {
  if (target == isa::automatic) return "automatic";
  const detail::isa_entry* const entry = detail::find_isa(target);
  return entry ? entry->name : "unknown";
}

/// The instruction sets that this CPU and operating system have kernels for, the widest last.
inline std::vector<isa> available_isas() {
  std::vector<isa> available;
  for (const detail::isa_entry& entry : detail::isas)
    if (detail::is_available(entry.target)) available.push_back(entry.target);
  return available;
}

/// The meaning of `automatic` on this CPU, unless set_target has changed it. It is avx512_bf16 only
/// where pairs multiply as fast as floats.
inline isa best_isa() {
  const detail::cpu_features& cpu = detail::cpu();
  return cpu.fast_bf16 ? isa::avx512_bf16
         : cpu.avx512  ? isa::avx512
         : cpu.avx2    ? isa::avx2
                       : isa::baseline;
}

namespace detail {
/// Refuses an instruction set that this CPU lacks.
inline void check_target(const char* function, const char* what, isa target) {
  if (target != isa::automatic && !find_isa(target))
    fail_with("heed::", function, ": ", what, " must be a heed::isa, 0 to ", int(std::size(isas)),
              ", but is ", int(target));
  if (!is_available(target))
    fail_with("heed::", function, ": ", what, " ", name(target),
              " is not available: the best that this CPU has is ", name(best_isa()));
}
/// The instruction set to run, for a target that has been checked.
inline isa resolve(isa target) {
  if (target == isa::automatic)
    target = static_cast<isa>(process::target.load(std::memory_order_relaxed));
  return target == isa::automatic || !is_available(target) ? best_isa() : target;
}
}  // namespace detail

/// Makes `target` what `automatic` stands for in this process, in files of all compiler flags, for
/// comparisons and tests. automatic: back to the best. Throws std::invalid_argument for an
/// instruction set that this CPU lacks.
///
/// @code
/// for (const heed::isa target : heed::available_isas()) {
///   heed::set_target(target);
///   std::cout << heed::name(target) << '\n';
/// }
/// heed::set_target(heed::isa::automatic);
/// @endcode
inline void set_target(isa target) {
  detail::check_target("set_target", "target", target);
  detail::process::target.store(static_cast<unsigned char>(target), std::memory_order_relaxed);
}

HEED_NAMESPACE_END
