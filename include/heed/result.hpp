#pragma once

#include <heed/detail/check.hpp>
#include <heed/types.hpp>

HEED_NAMESPACE_BEGIN

/// The output of a call and the natural logarithm of the sum of exponentials of each query row.
template <typename Scalar, int Dv = Eigen::Dynamic>
struct attention_result {
  /// Room for n_q rows. Throws std::invalid_argument for negative sizes.
  attention_result(size_type n_q, size_type d_v)
      : out(detail::checked_size("attention_result", "n_q", n_q),
            detail::checked_size("attention_result", "d_v", d_v)),
        lse(n_q) {}
  rows<Scalar, Dv> out;                   ///< n_q x Dv
  row_vector<accumulator_t<Scalar>> lse;  ///< n_q
};

/// The gradients of attention with respect to its inputs, by their names.
template <typename Scalar, int Dk = Eigen::Dynamic, int Dv = Eigen::Dynamic>
struct attention_gradients {
  rows<Scalar, Dk> query;  ///< n_q x Dk
  rows<Scalar, Dk> key;    ///< n_kv x Dk
  rows<Scalar, Dv> value;  ///< n_kv x Dv
};

HEED_NAMESPACE_END
