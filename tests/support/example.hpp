#pragma once

// Inputs of one head with the terms that go with them, the same in every scalar type, and the one
// rule for how exact a path must be.

#include <heed/options.hpp>
#include <heed/reference.hpp>
#include <heed/terms.hpp>
#include <heed/types.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "wider.hpp"

namespace testing {

using heed::size_type;
using mask = Eigen::Matrix<bool, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Numbers of mean 0 and variance 1 that are the same on every machine and at every run.
template <typename Scalar>
heed::rows<Scalar> random_rows(size_type n, size_type cols, unsigned seed) {
  std::mt19937 engine(seed);
  heed::rows<Scalar> m(n, cols);
  for (size_type i = 0; i < n; ++i)
    for (size_type c = 0; c < cols; ++c)
      m(i, c) = Scalar((double(engine()) / 2147483648.0 - 1.0) * std::sqrt(3.0));
  return m;
}

inline mask random_mask(size_type n_q, size_type n_kv, unsigned seed, double share_kept = 0.7) {
  std::mt19937 engine(seed);
  mask m(n_q, n_kv);
  for (size_type i = 0; i < n_q; ++i)
    for (size_type j = 0; j < n_kv; ++j) m(i, j) = double(engine()) < share_kept * 4294967296.0;
  return m;
}

/// What a path is run on. Terms that are empty are absent.
template <typename Scalar>
struct example {
  using accumulator = heed::accumulator_t<Scalar>;

  heed::rows<Scalar> query, key, value;
  heed::attention_options options;
  mask keep;
  heed::rows<accumulator> bias;
  heed::row_vector<accumulator> slopes, sinks;
  std::vector<size_type> key_lengths;

  example(size_type n_q, size_type n_kv, size_type d_k, size_type d_v, unsigned seed = 1)
      : query(random_rows<Scalar>(n_q, d_k, 3 * seed)),
        key(random_rows<Scalar>(n_kv, d_k, 3 * seed + 1)),
        value(random_rows<Scalar>(n_kv, d_v, 3 * seed + 2)) {}

  /// The same numbers in another type.
  template <typename Other>
  example<Other> cast() const {
    using acc = heed::accumulator_t<Other>;
    example<Other> other(0, 0, 0, 0);
    other.query = query.template cast<Other>();
    other.key = key.template cast<Other>();
    other.value = value.template cast<Other>();
    other.options = options;
    other.keep = keep;
    other.bias = bias.template cast<acc>();
    other.slopes = slopes.template cast<acc>();
    other.sinks = sinks.template cast<acc>();
    other.key_lengths = key_lengths;
    return other;
  }

  /// path(query, key, value, options, terms...)
  template <typename Path>
  auto run(const Path& path) const {
    using heed::when;
    return path(query, key, value, options, when(keep.size() > 0, heed::keep(keep)),
                when(bias.size() > 0, heed::bias(bias)),
                when(slopes.size() > 0, heed::alibi(slopes)),
                when(sinks.size() > 0, heed::sinks(sinks)),
                when(!key_lengths.empty(), heed::key_lengths(key_lengths)));
  }
  heed::attention_result<Scalar> reference() const {
    return run(
        [](const auto&... arguments) { return heed::reference_attention_with_lse(arguments...); });
  }
};

/// The largest distance from what is right over all finite numbers. Infinities and NaNs must be
/// where they belong: else infinity.
template <typename Got, typename Exact>
long double max_error(const Eigen::DenseBase<Got>& got, const Eigen::DenseBase<Exact>& exact) {
  long double error = 0;
  for (size_type i = 0; i < exact.rows(); ++i)
    for (size_type c = 0; c < exact.cols(); ++c) {
      const long double g = static_cast<long double>(got.derived()(i, c)),
                        e = static_cast<long double>(exact.derived()(i, c));
      const bool same = std::isnan(e) ? std::isnan(g) : std::isinf(e) ? g == e : std::isfinite(g);
      if (!same) return std::numeric_limits<long double>::infinity();
      if (std::isfinite(e)) error = (std::max)(error, std::abs(g - e));
    }
  return error;
}

/// The largest finite magnitude.
template <typename Exact>
long double magnitude(const Eigen::DenseBase<Exact>& exact) {
  long double largest = 0;
  for (size_type i = 0; i < exact.rows(); ++i)
    for (size_type c = 0; c < exact.cols(); ++c) {
      const long double e = std::abs(static_cast<long double>(exact.derived()(i, c)));
      if (std::isfinite(e)) largest = (std::max)(largest, e);
    }
  return largest;
}

/// How wrong the reference is in the precision of what is tested.
struct reference_error {
  long double out = 0, lse = 0;
};

/// A path may be wrong by twice what the reference is wrong by in the path's own precision, both
/// compared with the reference in a wider type: the two add the same numbers in another order, so
/// their errors have one size. One unit in the last place of the largest number comes on top (of
/// `scale`, where the largest is smaller): over a key or two the reference can be exact, while a
/// path that rescales and divides later rounds a last time.
template <typename Got, typename Exact>
void check_error(const Got& got, const Exact& exact, long double error_of_reference,
                 long double scale = 0) {
  REQUIRE(got.rows() == exact.rows());
  REQUIRE(got.cols() == exact.cols());
  REQUIRE(std::isfinite(error_of_reference));
  const long double ulp =
      static_cast<long double>(Eigen::NumTraits<typename Got::Scalar>::epsilon()) *
      (std::max)(magnitude(exact), scale);
  CHECK(max_error(got, exact) <= 2 * error_of_reference + ulp);
}
template <typename Got, typename Same, typename Exact>
void check_as_exact_as(const Got& got, const Same& same, const Exact& exact,
                       long double scale = 0) {
  check_error(got, exact, max_error(same, exact), scale);
}

/// Puts the numbers of a matrix in another order.
template <typename Matrix>
void shuffle(Matrix& m, std::mt19937& engine) {
  for (size_type n = m.size(); n > 1; --n)
    std::swap(m.data()[n - 1],
              m.data()[static_cast<size_type>(engine() % static_cast<std::uint32_t>(n))]);
}

/// How wrong the reference is on inputs like these. In a few rows it may be right by luck, so a
/// small example is drawn again, its numbers in another order, until some two hundred rows have
/// been seen (or 48 examples).
template <typename Scalar>
reference_error reference_error_on(const example<Scalar>& e) {
  std::mt19937 engine(17);
  example<Scalar> drawn = e;
  reference_error largest;
  for (size_type rows = 0, draws = 0; rows < 200 && draws < 48;
       rows += (std::max)(e.query.rows(), size_type(1)), ++draws) {
    const heed::attention_result<Scalar> same = drawn.reference();
    const heed::attention_result<wider_t<Scalar>> exact =
        drawn.template cast<wider_t<Scalar>>().reference();
    largest.out = (std::max)(largest.out, max_error(same.out, exact.out));
    largest.lse = (std::max)(largest.lse, max_error(same.lse, exact.lse));
    shuffle(drawn.query, engine);
    shuffle(drawn.key, engine);
    shuffle(drawn.value, engine);
  }
  return largest;
}

/// out and lse of a path against the example that it was run on.
template <typename Scalar>
void check_result(const heed::attention_result<Scalar>& got, const example<Scalar>& e) {
  const reference_error error = reference_error_on(e);
  const heed::attention_result<wider_t<Scalar>> exact =
      e.template cast<wider_t<Scalar>>().reference();
  {
    INFO("out");
    check_error(got.out, exact.out, error.out);
  }
  INFO("lse");
  check_error(got.lse, exact.lse, error.lse,
              1);  // an exponent: an error of one ulp of 1 in it is one ulp in a weight
}

/// Runs a path on the example and checks it.
template <typename Scalar, typename Path>
void check_path(const example<Scalar>& e, const Path& path) {
  CAPTURE(e.query.rows(), e.key.rows(), e.query.cols(), e.value.cols());
  const heed::attention_result<Scalar> got = e.run(path);
  check_result(got, e);
}

}  // namespace testing
