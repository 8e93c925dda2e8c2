#pragma once

#include <heed/detail/params.hpp>
#include <heed/detail/score_block.hpp>

#include <cmath>
#include <cstdint>

HEED_NAMESPACE_BEGIN
namespace detail {

struct dropout_term {
  std::uint64_t seed = 0;
  double probability = 0;
};

/// Mixes all 64 bits (the finaliser of splitmix64; Steele, Lea and Flood 2014).
inline std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Mixes one more number into a state.
inline std::uint64_t mix_in(std::uint64_t state, size part) {
  return mix(state ^ (static_cast<std::uint64_t>(part) + 0x9e3779b97f4a7c15u));
}

/// The hook of a dropout_term: kept weights grow by 1 / (1 - p), the others become 0. Which are
/// kept is a function of seed, b, h, i and j alone, so the same for any tiling and thread count.
template <typename Acc>
void run_dropout(const void* context, size b, size h, const visible_block<Acc>& block) {
  const dropout_term& dropout = *static_cast<const dropout_term*>(context);
  const std::uint64_t of_head = mix_in(mix_in(mix(dropout.seed + 0x9e3779b97f4a7c15u), b), h);
  const auto first_kept =
      static_cast<std::uint64_t>(std::ceil(dropout.probability * 0x1p53));  // of the 53-bit numbers
  const Acc factor = Acc(1 / (1 - dropout.probability));
  update_block(block, [&](const Acc& weight, size i, size j) {
    return mix_in(mix_in(of_head, i), j) >> 11 >= first_kept ? Acc(weight * factor) : Acc(0);
  });
}

}  // namespace detail

/// Dropout of weights after the softmax: each is kept with probability 1 - p and then divided by 1
/// - p (Srivastava et al. 2014). Which are kept depends on the seed, the batch entry, the head, the
/// query and the key alone; with a cache, queries and keys count as tokens of their sequence, so
/// the choice does not depend on how a prompt is cut. The log-sum-exp is that of the undropped
/// weights. The probability must be in [0, 1).
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// const auto out = heed::attention(x, x, x, {}, heed::dropout(0.1, 42));
/// @endcode
inline detail::dropout_term dropout(double probability, std::uint64_t seed) {
  return {seed, probability};
}

HEED_NAMESPACE_END
