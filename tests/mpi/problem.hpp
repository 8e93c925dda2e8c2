#pragma once

// A call with any terms: what one rank makes of it, and what each rank has of it.

#include <heed/mpi.hpp>

#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

#include "ranks.hpp"

namespace testing {

using heed::accumulator_t;
using heed::attention_options;
using heed::causal;

/// Which terms a call has.
struct features {
  const char* name;
  bool alibi, sinks, scales, score, mask, keep, bits, bias, dropout, lengths;
};
inline const features no_terms{"no terms", false, false, false, false, false,
                               false,      false, false, false, false};

/// The numbers of all terms of a call.
template <typename Acc>
struct term_numbers {
  tensor<std::uint8_t> keep;  // [B, 1, n_q, n_kv]
  tensor<std::uint8_t> bits;  // [1, 1, n_q, bytes]
  tensor<Acc> bias;           // [1, H, n_q, n_kv]
  heed::row_vector<Acc> slopes, sinks, factors;
  std::vector<size_type> query_lengths, key_lengths;

  template <typename Other>
  term_numbers<Other> cast() const {
    return {keep,
            bits,
            bias.template cast<Other>(),
            slopes.template cast<Other>(),
            sinks.template cast<Other>(),
            factors.template cast<Other>(),
            query_lengths,
            key_lengths};
  }
  /// As a rank has them: the rows of its queries.
  term_numbers shard(const sequence_shards& queries, int rank) const {
    return {keep.shard(queries, rank),
            bits.shard(queries, rank),
            bias.shard(queries, rank),
            slopes,
            sinks,
            factors,
            query_lengths,
            key_lengths};
  }
};
inline const auto fade = [](auto score, size_type b, size_type h, size_type i, size_type j) {
  using Acc = decltype(score);
  return static_cast<Acc>(score + Acc((7 * i + 3 * j + h + b) % 5) / Acc(8));
};
inline const auto steady = [](auto score, size_type, size_type, size_type, size_type) {
  return static_cast<decltype(score)>(1);  // the derivative
};
inline const auto sparse = [](size_type, size_type h, size_type i, size_type j) {
  return (i + 2 * j + h) % 7 != 0;
};
/// Calls with the terms of `f`.
template <typename Acc, typename Call>
void with_terms(const features& f, const term_numbers<Acc>& t, size_type n_kv, const Call& call) {
  using heed::when;
  call(when(f.alibi, heed::alibi(t.slopes)), when(f.sinks, heed::sinks(t.sinks)),
       when(f.scales, heed::logit_scales(t.factors)),
       when(f.score, heed::score_function(fade, steady)), when(f.mask, heed::mask_function(sparse)),
       when(f.keep, heed::keep(t.keep.view())), when(f.bits, heed::keep_bits(t.bits.view(), n_kv)),
       when(f.bias, heed::bias(t.bias.view())), when(f.dropout, heed::dropout(0.3, 11)),
       when(f.lengths, heed::key_lengths(t.key_lengths)),
       when(f.lengths, heed::query_lengths(t.query_lengths)));
}

struct sizes {
  size_type batch, heads, kv_heads, n_q, n_kv, d_k, d_v;
};

/// A call on one rank and what is right for it, for each type that the ranks are compared in.
template <typename Scalar>
struct problem {
  using Acc = accumulator_t<Scalar>;
  tensor<Scalar> query, key, value;
  term_numbers<Acc> terms;
  sizes s;

  explicit problem(const sizes& wanted, unsigned seed = 0)
      : query(wanted.batch, wanted.heads, wanted.n_q, wanted.d_k, seed + 1),
        key(wanted.batch, wanted.kv_heads, wanted.n_kv, wanted.d_k, seed + 2),
        value(wanted.batch, wanted.kv_heads, wanted.n_kv, wanted.d_v, seed + 3),
        terms{tensor<std::uint8_t>(wanted.batch, 1, wanted.n_q, wanted.n_kv),
              tensor<std::uint8_t>(1, 1, wanted.n_q, (wanted.n_kv + 7) / 8),
              tensor<Acc>(1, wanted.heads, wanted.n_q, wanted.n_kv, 4),
              heed::row_vector<Acc>::LinSpaced(wanted.heads, Acc(0.02), Acc(0.3)),
              heed::row_vector<Acc>::LinSpaced(wanted.heads, Acc(-1), Acc(3)),
              heed::row_vector<Acc>::LinSpaced(wanted.heads, Acc(0.5), Acc(2)),
              {},
              {}},
        s(wanted) {
    std::mt19937 random(5);
    for (std::size_t i = 0; i < terms.keep.data.size(); ++i) terms.keep.data[i] = random() % 4 != 0;
    for (std::uint8_t& byte : terms.bits.data)
      byte = static_cast<std::uint8_t>(random() | random());
    for (size_type b = 0; b < s.batch; ++b) {
      terms.query_lengths.push_back(s.n_q - 7 * b);
      terms.key_lengths.push_back(s.n_kv - 3 - 11 * b);
    }
  }

  template <typename Other>
  void reference(const attention_options& options, const features& f, tensor<Other>& out,
                 tensor<accumulator_t<Other>>& lse) const {
    const tensor<Other> q = query.template cast<Other>(), k = key.template cast<Other>(),
                        v = value.template cast<Other>();
    const auto numbers = terms.template cast<accumulator_t<Other>>();
    with_terms(f, numbers, s.n_kv, [&](const auto&... given) {
      heed::reference_multi_head_attention_into(q.view(), k.view(), v.view(), out.view(),
                                                lse.view(), options, given...);
    });
  }
};

template <typename Scalar>
const char* type_name() {
  return std::is_same<Scalar, float>::value         ? "float"
         : std::is_same<Scalar, double>::value      ? "double"
         : std::is_same<Scalar, Eigen::half>::value ? "half"
                                                    : "bfloat16";
}

/// A path may be wrong by twice what the reference is wrong by in the path's own precision: the two
/// add the same numbers in another order. One unit in the last place of the largest number (of
/// `scale`, where it is smaller) comes on top, for a last rounding.
template <typename Scalar, typename Exact>
long double bound(long double error_of_reference, const tensor<Exact>& exact,
                  long double scale = 0) {
  return 2 * error_of_reference + static_cast<long double>(Eigen::NumTraits<Scalar>::epsilon()) *
                                      (std::max)(magnitude(exact), scale);
}
template <typename Scalar, typename Exact>
long double bound(const tensor<Scalar>& same, const tensor<Exact>& exact, long double scale = 0) {
  return bound<Scalar>(max_error(same, exact), exact, scale);
}

}  // namespace testing
