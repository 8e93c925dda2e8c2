#include <heed/dropout.hpp>
#include <heed/multi_head.hpp>
#include <heed/weights.hpp>

#include <cmath>

#include "support/example.hpp"
#include "support/isas.hpp"
#include "support/refusal.hpp"

using testing::example;

namespace {

/// The weights of an example after dropout, seen through values that are the identity.
template <typename Path>
heed::rows<double> dropped_weights(const example<double>& e, const Path& path, double probability,
                                   std::uint64_t seed) {
  const heed::rows<double> identity = heed::rows<double>::Identity(e.key.rows(), e.key.rows());
  return path(e.query, e.key, identity, e.options, heed::dropout(probability, seed));
}
const auto reference = [](const auto&... arguments) {
  return heed::reference_attention(arguments...);
};
const auto fused = [](const auto&... arguments) { return heed::attention(arguments...); };

}  // namespace

TEST_CASE("dropout keeps a share of 1 - p of the weights and divides them by it") {
  const example<double> e(200, 300, 8, 8);
  const heed::rows<double> weights = dropped_weights(e, reference, 0, 1);
  for (const double p : {0.1, 0.5, 0.9}) {
    const heed::rows<double> dropped = dropped_weights(e, reference, p, 1);
    heed::size_type kept = 0;
    for (heed::size_type i = 0; i < 200; ++i)
      for (heed::size_type j = 0; j < 300; ++j) {
        if (dropped(i, j) == 0) continue;
        ++kept;
        REQUIRE(dropped(i, j) == Approx(weights(i, j) / (1 - p)).epsilon(1e-12));
      }
    CAPTURE(p, kept);
    const double n = 200 * 300;
    CHECK(std::abs(double(kept) - (1 - p) * n) <=
          5 * std::sqrt(n * p * (1 - p)));  // five standard deviations of as many coins
  }
}

TEST_CASE("what dropout drops depends on the seed, the query and the key, and on nothing else") {
  const example<double> e(130, 150, 8, 8);
  const auto pattern = [](const heed::rows<double>& weights) -> testing::mask {
    return weights.array() != 0;
  };
  const testing::mask first = pattern(dropped_weights(e, reference, 0.4, 7));
  for (const heed::isa target : testing::isas())
    for (const int threads : {1, 3}) {
      example<double> same = e;
      same.options.execution.target = target;
      same.options.execution.threads = threads;
      CAPTURE(testing::name_of(target), threads);
      CHECK(pattern(dropped_weights(same, fused, 0.4, 7)) == first);
    }
  // other numbers, fewer queries and keys: the same choice
  const example<double> smaller(70, 90, 24, 8, 3);
  CHECK(pattern(dropped_weights(smaller, fused, 0.4, 7)) == first.topLeftCorner(70, 90));
  // a single query runs on the decode kernel
  const example<double> one(1, 150, 8, 8, 4);
  CHECK(pattern(dropped_weights(one, fused, 0.4, 7)) == first.topRows(1));

  // another seed is another choice: two coins of 0.4 and 0.6 differ in 0.48 of the throws
  const testing::mask other = pattern(dropped_weights(e, reference, 0.4, 8));
  const double n = 130 * 150, differing = double((first.array() != other.array()).count());
  CHECK(std::abs(differing - 0.48 * n) <= 5 * std::sqrt(n * 0.48 * 0.52));
}

TEST_CASE("every head and batch entry drops for itself") {
  const heed::size_type n = 40;
  const heed::rows<double> x = testing::random_rows<double>(n, 4, 1),
                           identity = heed::rows<double>::Identity(n, n);
  auto query = heed::view(x), value = heed::view(identity);
  query.batch = query.heads = value.batch = value.heads =
      2;  // strides of 0: the same numbers for all
  heed::rows<double> out(4 * n, n);
  heed::workspace memory;
  heed::multi_head_attention_into(query, query, value, heed::bhnd(out.data(), 2, 2, n, n), {}, {},
                                  memory, heed::dropout(0.5, 3));
  for (heed::size_type a = 0; a < 4; ++a)
    for (heed::size_type b = 0; b < a; ++b) {
      const double differing = double(
          ((out.middleRows(a * n, n).array() != 0) != (out.middleRows(b * n, n).array() != 0))
              .count());
      CHECK(std::abs(differing - 0.5 * double(n * n)) <= 5 * std::sqrt(double(n * n) * 0.25));
    }
}

TEST_CASE("the lse is that of the weights before dropout") {
  const example<double> e(60, 70, 8, 8);
  const auto plain = heed::attention_with_lse(e.query, e.key, e.value),
             dropped = heed::attention_with_lse(e.query, e.key, e.value, {}, heed::dropout(0.5, 1));
  CHECK(dropped.lse == plain.lse);
  CHECK(dropped.out != plain.out);
  CHECK(heed::attention_with_lse(e.query, e.key, e.value, {}, heed::dropout(0, 1)).out ==
        plain.out);
}

TEST_CASE("rebuilt weights are the dropped ones") {
  const example<double> e(20, 30, 8, 8);
  const auto result =
      heed::attention_with_weights(e.query, e.key, e.value, {}, heed::dropout(0.3, 2));
  CHECK(testing::max_error(heed::rows<double>(result.weights * e.value), result.out) <= 1e-14L);
}

TEST_CASE("a probability outside [0, 1) is refused") {
  const example<double> e(2, 2, 2, 2);
  for (const double p : {-0.1, 1.0, std::numeric_limits<double>::quiet_NaN()})
    testing::check_refused(
        [&] { heed::attention(e.query, e.key, e.value, {}, heed::dropout(p, 1)); },
        {"heed::attention", "dropout", "[0, 1)"});
}
