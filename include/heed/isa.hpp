#pragma once

#include <heed/detail/check.hpp>
#include <heed/detail/cpu.hpp>
#include <heed/detail/process.hpp>

#include <atomic>
#include <vector>

HEED_NAMESPACE_BEGIN

/// The instruction set a call's kernels are compiled for; `automatic` is the best one this CPU has. `baseline` is what every CPU of
/// the architecture has: SSE2 on x86-64, NEON on AArch64. `avx512_bf16` is avx512 except that attention of Eigen::bfloat16 multiplies
/// in pairs (AVX512-BF16), for which it rounds the weights to bfloat16.
enum class isa : unsigned char { automatic, baseline, avx2, avx512, avx512_bf16 };

/// "automatic", "baseline", "avx2", "avx512" or "avx512_bf16"; "unknown" for a number that is none of them.
constexpr const char* name(isa target) {
  switch (target) {
    case isa::automatic:
      return "automatic";
    case isa::baseline:
      return "baseline";
    case isa::avx2:
      return "avx2";
    case isa::avx512:
      return "avx512";
    case isa::avx512_bf16:
      return "avx512_bf16";
    default:
      return "unknown";
  }
}

/// The instruction sets that this CPU and operating system have kernels for, the widest last.
inline std::vector<isa> available_isas() {
  std::vector<isa> available{isa::baseline};
  if (detail::cpu().avx2) available.push_back(isa::avx2);
  if (detail::cpu().avx512) available.push_back(isa::avx512);
  if (detail::cpu().avx512_bf16) available.push_back(isa::avx512_bf16);
  return available;
}

/// The meaning of `automatic` on this CPU, unless set_target has changed it. It is avx512_bf16 only where pairs multiply at the
/// rate of floats.
inline isa best_isa() {
  const detail::cpu_features& cpu = detail::cpu();
  return cpu.fast_bf16 ? isa::avx512_bf16 : cpu.avx512 ? isa::avx512 : cpu.avx2 ? isa::avx2 : isa::baseline;
}

namespace detail {
/// Whether this CPU has kernels for a target. (A file built with HEED_PORTABLE knows none but `baseline`.)
inline bool is_available(isa target) { return target <= best_isa() || (target == isa::avx512_bf16 && cpu().avx512_bf16); }

/// Refuses an instruction set that this CPU lacks.
inline void check_target(const char* function, const char* what, isa target) {
  if (target > isa::avx512_bf16)
    fail_with("heed::", function, ": ", what, " must be a heed::isa, 0 to ", int(isa::avx512_bf16), ", but is ", int(target));
  if (!is_available(target))
    fail_with("heed::", function, ": ", what, " ", name(target), " is not available: the best that this CPU has is ", name(best_isa()));
}
/// The instruction set to run, for a target that has been checked.
inline isa resolve(isa target) {
  if (target == isa::automatic) target = static_cast<isa>(process::target.load(std::memory_order_relaxed));
  return target == isa::automatic || !is_available(target) ? best_isa() : target;
}
}  // namespace detail

/// Makes `target` what `automatic` stands for in this process, in files of all compiler flags, for comparisons and tests. automatic: back
/// to the best. Throws std::invalid_argument for an instruction set that this CPU lacks.
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
