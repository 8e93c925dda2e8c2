#pragma once

#include <heed/execution.hpp>
#include <heed/types.hpp>

#include <optional>

HEED_NAMESPACE_BEGIN

/// The function of queries and keys before their product: none, or elu(x) + 1 (Katharopoulos et al.
/// 2020).
enum class feature_map : unsigned char { none, elu_plus_one };

/// The options of linear attention.
struct linear_attention_options {
  /// Multiplies the read. Absent: 1 / sqrt(head_dim), and 1 with a feature map. 0 is a literal 0.
  std::optional<double> scale{};
  /// The function of queries and keys before their product.
  heed::feature_map feature_map = heed::feature_map::none;
  /// Divides the read by phi(q) . z + epsilon, where z is the (decayed) sum of the mapped keys. The
  /// state then has one more column: z.
  bool normalise = false;
  /// Keeps the divisor of `normalise` from 0.
  double epsilon = 1e-6;
  /// Tokens that are computed together, at most 48; 0 is the library's choice. It changes time and
  /// rounding, nothing else.
  size_type chunk = 0;
  /// Instruction set, threads, pool.
  heed::execution execution{};
};

HEED_NAMESPACE_END
