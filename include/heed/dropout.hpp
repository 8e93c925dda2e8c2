#pragma once

#include <heed/detail/params.hpp>

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

/// Whether dropout keeps the weight of query i and key j: a function of these numbers alone, so the same for any tiling and thread count.
inline bool dropout_keeps(const dropout_term& dropout, size b, size h, size i, size j) {
  std::uint64_t state = mix(dropout.seed + 0x9e3779b97f4a7c15u);
  for (const size part : {b, h, i, j}) state = mix(state ^ (static_cast<std::uint64_t>(part) + 0x9e3779b97f4a7c15u));
  return static_cast<double>(state >> 11) * 0x1p-53 >= dropout.probability;
}

/// The weight_hook: kept weights grow by 1 / (1 - p), the others become 0.
template <typename Acc>
void run_dropout(const void* context, size b, size h, const score_block<Acc>& block) {
  const dropout_term& dropout = *static_cast<const dropout_term*>(context);
  const Acc kept = Acc(1 / (1 - dropout.probability));
  for (size j = block.j_begin; j < block.j_end; ++j)
    for (size i = block.i_begin; i < block.i_end; ++i) {
      Acc& weight = block.data[(i - block.i_begin) * block.query_step + (j - block.j_begin) * block.key_step];
      weight = dropout_keeps(dropout, b, h, i, j) ? Acc(weight * kept) : Acc(0);
    }
}

}  // namespace detail

/// Dropout of weights after the softmax: each is kept with probability 1 - p and then divided by 1 - p (Srivastava et al. 2014). Which are kept
/// depends on the seed, the batch entry, the head, the query and the key alone. The log-sum-exp is that of the undropped weights.
/// The probability must be in [0, 1).
inline detail::dropout_term dropout(double probability, std::uint64_t seed) { return {seed, probability}; }

HEED_NAMESPACE_END
