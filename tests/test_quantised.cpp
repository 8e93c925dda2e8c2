#include <heed/kv_cache.hpp>
#include <heed/paged_kv_cache.hpp>
#include <heed/quantised.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/isas.hpp"
#include "support/tokens.hpp"

using heed::int4_block;
using heed::int8_block;
using testing::tokens;

static_assert(sizeof(int8_block) == 36 && sizeof(int4_block) == 20, "");

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity(),
                nan_number = std::numeric_limits<float>::quiet_NaN();

/// A row as a cache stores and reads it.
template <typename Block>
std::vector<float> read_back(const std::vector<float>& row) {
  const heed::size_type d = static_cast<heed::size_type>(row.size());
  heed::kv_cache<Block> cache(1, 1, d, d, 1);
  const auto view = heed::bhnd(row.data(), 1, 1, 1, d);
  cache.append(view, view);
  const auto stored = cache.keys().head(0, 0, 0, 1);
  std::vector<float> read;
  for (heed::size_type c = 0; c < d; ++c) read.push_back(stored.template at<float>(0, c));
  return read;
}

struct range {
  double least, largest;
};
/// The range of the block that number c of a row is in.
range range_of_block(const std::vector<float>& row, std::size_t c) {
  const auto first = row.begin() + static_cast<std::ptrdiff_t>(c / 32 * 32),
             end = row.begin() +
                   static_cast<std::ptrdiff_t>((std::min)(row.size(), (c / 32 + 1) * 32));
  return {double(*std::min_element(first, end)), double(*std::max_element(first, end))};
}

/// How far a number may be from what is read back.
template <typename Block>
double allowed(const range& of_block);
// Half a step of max / 127, which is at most one subnormal more; the quotient, the scale and the
// product that reads back round, each at most 128 times 2^-24 of the scale.
template <>
double allowed<int8_block>(const range& r) {
  const double scale = (std::max)(std::abs(r.least), std::abs(r.largest)) / 127;
  return (scale + double(std::numeric_limits<float>::denorm_min())) * (0.5 + 3 * 128 * 0x1p-24);
}
// Half a step. The minimum goes down by at most 2^-7 of itself, to a bfloat16; the step, a 15th of
// what is then the range, up by as much. (Subnormal bfloat16 are multiples of 2^-133.) The sum that
// reads back rounds.
template <>
double allowed<int4_block>(const range& r) {
  const double magnitude = (std::max)(std::abs(r.least), std::abs(r.largest)),
               width = r.largest - r.least + 0x1p-7 * std::abs(r.least) + 0x1p-133;
  return (width / 15 * (1 + 0x1p-7) + 0x1p-133) / 2 + (magnitude + width) * 0x1p-24 + 0x1p-149;
}

template <typename Block>
void check_row(const std::vector<float>& row) {
  const std::vector<float> read = read_back<Block>(row);
  for (std::size_t c = 0; c < row.size(); ++c) {
    CAPTURE(c, row[c], read[c]);
    CHECK(std::abs(double(read[c]) - double(row[c])) <= allowed<Block>(range_of_block(row, c)));
  }
}

std::vector<float> random_row(std::size_t n, unsigned seed) {
  const heed::rows<float> r = testing::random_rows<float>(1, static_cast<heed::size_type>(n), seed);
  return std::vector<float>(r.data(), r.data() + n);
}

}  // namespace

TEMPLATE_TEST_CASE("a number is at most half of its block's step from what is read back", "",
                   int8_block, int4_block) {
  for (const std::size_t n : {1u, 15u, 16u, 17u, 31u, 32u, 33u, 64u, 75u})
    for (unsigned seed = 0; seed < 20; ++seed) {
      std::vector<float> row = random_row(n, seed);
      CAPTURE(n, seed);
      check_row<TestType>(row);
      for (float& x : row) x = 50 + x;  // far from 0, and all of one sign
      check_row<TestType>(row);
      for (float& x : row) x = -x;
      check_row<TestType>(row);
    }
}

TEMPLATE_TEST_CASE("an outlier costs its own block precision and no other", "", int8_block,
                   int4_block) {
  std::vector<float> row = random_row(96, 1);
  row[40] = 1000;
  check_row<TestType>(row);
  const std::vector<float> read = read_back<TestType>(row);
  const std::vector<float> alone =
      read_back<TestType>(std::vector<float>(row.begin(), row.begin() + 32));
  CHECK(std::equal(alone.begin(), alone.end(), read.begin()));
}

TEMPLATE_TEST_CASE("blocks of any magnitude that floats have", "", int8_block, int4_block) {
  constexpr float tiny = std::numeric_limits<float>::denorm_min();
  for (const float magnitude : {8e37f, 1e30f, 1.0f, 1e-30f, 4e-37f, 3e-37f, 1e-37f, 1e-38f, 1e-40f,
                                1e-43f, 178 * tiny, 63 * tiny, tiny, 0.0f}) {
    CAPTURE(magnitude);
    check_row<TestType>({magnitude, -magnitude, magnitude / 2, magnitude / 3, 0});
    check_row<TestType>({magnitude, magnitude / 2, magnitude});
    check_row<TestType>({-magnitude, -magnitude, -magnitude});
  }
  CHECK(read_back<TestType>(std::vector<float>(40, 0.0f)) == std::vector<float>(40, 0.0f));
}

TEST_CASE("numbers beyond 2^126 are 2^126 in 4 bits; in 8 they are as they are") {
  constexpr float most = std::numeric_limits<float>::max();
  const std::vector<float> row{most, -most, 0x1p127f, 1.0f};
  const std::vector<float> read = read_back<int4_block>(row);
  const double step = 0x1p127 / 15 * (1 + 0x1p-7);
  CHECK(std::abs(double(read[0]) - 0x1p126) <= step / 2);
  CHECK(double(read[1]) == -0x1p126);
  CHECK(read[2] == read[0]);
  CHECK(std::abs(double(read[3])) <= step / 2);
  check_row<int8_block>(row);
}

TEMPLATE_TEST_CASE("a block with an infinity or NaN is NaN throughout, its neighbours are not", "",
                   int8_block, int4_block) {
  for (const float bad : {infinity, -infinity, nan_number})
    for (const std::size_t at : {32u, 50u, 63u}) {
      std::vector<float> row = random_row(80, 2);
      row[at] = bad;
      const std::vector<float> read = read_back<TestType>(row);
      for (std::size_t c = 0; c < row.size(); ++c)
        CHECK(std::isnan(read[c]) == (c >= 32 && c < 64));
    }
}

TEST_CASE("doubles that no float holds: in 4 bits they are 2^126, in 8 NaN") {
  const std::vector<double> row{1e-300, 0.1, -1e300, 0.2};
  heed::kv_cache<int4_block> four(1, 1, 4, 4);
  heed::kv_cache<int8_block> eight(1, 1, 4, 4);
  const auto view = heed::bhnd(row.data(), 1, 1, 1, 4);
  four.append(view, view);
  eight.append(view, view);
  CHECK(four.keys().head(0, 0, 0, 1).at<double>(0, 2) == -0x1p126);
  CHECK(std::isnan(eight.keys().head(0, 0, 0, 1).at<double>(0, 2)));  // -1e300: infinite as a float
}

TEST_CASE("the bytes of caches in blocks") {
  // rows of 64 and 40 numbers: 2 blocks each
  CHECK(heed::kv_cache<int8_block>(3, 2, 64, 40, 10).bytes() == 3 * 2 * 10 * (2 + 2) * 36);
  CHECK(heed::kv_cache<int4_block>(3, 2, 64, 40, 10).bytes() == 3 * 2 * 10 * (2 + 2) * 20);
  CHECK(heed::paged_kv_cache<int4_block>(3, 16, 2, 64, 40).bytes() == 3 * 16 * 2 * (2 + 2) * 20);
}

TEMPLATE_TEST_CASE("attention to blocks is as exact as the reference of what they stand for", "",
                   int8_block, int4_block) {
  struct dims {
    heed::size_type d_k, d_v;
  };
  for (const dims d : {dims{64, 32}, dims{37, 75}, dims{1, 128}, dims{300, 16}}) {
    const tokens<float> t(200, 4, 2, d.d_k, d.d_v, 3);
    const tokens<double> exact_t(200, 4, 2, d.d_k, d.d_v, 3);
    heed::kv_cache<TestType> cache(1, 2, d.d_k, d.d_v, 4);
    heed::paged_kv_cache<TestType> paged(20, 16, 2, d.d_k, d.d_v);
    const std::vector<heed::size_type> sequence{paged.add_sequence()};
    for (heed::size_type first = 0; first < 200; first += 40) {
      t.append(cache, 0, first, first + 40);
      t.append(paged, sequence[0], first, first + 40);
    }
    heed::attention_options options;
    options.causal = heed::causal::bottom_right;
    for (const heed::isa target : testing::isas()) {
      options.execution.target = target;
      for (const heed::size_type n_q : {1, 3, 60}) {
        CAPTURE(d.d_k, d.d_v, n_q);
        INFO(testing::name_of(target));
        const auto right = testing::reference_from(cache, t, 200 - n_q, 200, options);
        const auto exact = testing::reference_from(cache, exact_t, 200 - n_q, 200, options);
        testing::check_as_exact_as(testing::attention_from(cache, t, 200 - n_q, 200, options),
                                   right, exact);
        testing::check_as_exact_as(
            testing::attention_from(paged.batch(sequence), t, 200 - n_q, 200, options), right,
            exact);
      }
    }
  }
}

TEMPLATE_TEST_CASE("a rolling cache of blocks gives what the whole one gives", "", int8_block,
                   int4_block) {
  constexpr heed::size_type window = 7, n = 100;
  const tokens<double> t(n, 2, 1, 40, 33, 3);
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  options.window_left = window;
  heed::kv_cache<TestType> whole(1, 1, 40, 33), rolling(1, 1, 40, 33, 2 * window + 3, window);
  for (heed::size_type first = 0; first < n; first += 3) {
    const heed::size_type end = (std::min)(first + 3, n);
    t.append(whole, 0, first, end);
    t.append(rolling, 0, first, end);
    REQUIRE(testing::reference_from(rolling, t, first, end, options) ==
            testing::reference_from(whole, t, first, end, options));
  }
}

TEMPLATE_TEST_CASE("forks of a paged cache of blocks share pages until one writes", "", int8_block,
                   int4_block) {
  const tokens<double> t(30, 2, 1, 40, 33, 3);
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  heed::paged_kv_cache<TestType> cache(20, 4, 1, 40, 33);
  const heed::size_type a = cache.add_sequence();
  t.append(cache, a, 0, 10);
  const heed::size_type b = cache.fork(a);
  t.append(cache, b, 20, 25);
  t.append(cache, a, 10, 15);
  heed::kv_cache<TestType> as_a(1, 1, 40, 33), as_b(1, 1, 40, 33);
  t.append(as_a, 0, 0, 15);
  t.append(as_b, 0, 0, 10);
  t.append(as_b, 0, 20, 25);
  const std::vector<heed::size_type> only_a{a}, only_b{b};
  CHECK(testing::reference_from(cache.batch(only_a), t, 10, 15, options) ==
        testing::reference_from(as_a, t, 10, 15, options));
  CHECK(testing::reference_from(cache.batch(only_b), t, 10, 15, options) ==
        testing::reference_from(as_b, t, 10, 15, options));
}

// The scores of a key channel that is divided by a factor, against queries that are multiplied by
// it, are the same: what is stored need not have the outliers that keys have in some channels.
TEST_CASE("a factor for each channel of the keys, folded into the queries, keeps precision") {
  tokens<float> t(100, 2, 1, 64, 8, 4);
  tokens<double> exact_t(100, 2, 1, 64, 8, 4);
  heed::rows<float> factors = heed::rows<float>::Ones(1, 64);
  for (const heed::size_type c : {3, 20, 41, 50}) factors(0, c) = 64;  // in each block of 32
  for (heed::size_type j = 0; j < 100; ++j) t.key.row(j).array() *= factors.array();
  exact_t.key = t.key.cast<double>();
  for (heed::size_type h = 0; h < 2; ++h)
    for (heed::size_type j = 0; j < 100; ++j)
      t.query.row(j).segment(64 * h, 64).array() /= factors.array();
  exact_t.query = t.query.cast<double>();
  tokens<float> folded = t;
  for (heed::size_type j = 0; j < 100; ++j) {
    folded.key.row(j).array() /= factors.array();
    for (heed::size_type h = 0; h < 2; ++h)
      folded.query.row(j).segment(64 * h, 64).array() *= factors.array();
  }
  const auto error = [&](auto stored, const tokens<float>& given) {
    heed::kv_cache<decltype(stored)> cache(1, 1, 64, 8);
    given.append(cache, 0, 0, 100);
    const heed::size_type d_k = 64;
    double largest = 0;
    const auto rows = cache.keys().head(0, 0, 0, 100);
    for (heed::size_type i = 0; i < 100; ++i)
      for (heed::size_type j = 0; j < 100; ++j) {
        double score = 0, exact = 0;
        for (heed::size_type c = 0; c < d_k; ++c) {
          score += double(given.query(i, c)) * rows.template at<double>(j, c);
          exact += double(t.query(i, c)) * double(t.key(j, c));
        }
        largest = (std::max)(largest, std::abs(score - exact));
      }
    return largest;
  };
  CHECK(error(std::int8_t(), folded) < error(std::int8_t(), t) / 8);
  CHECK(error(int8_block(), folded) < error(int8_block(), t) / 8);
  CHECK(error(int4_block(), folded) < error(int4_block(), t) / 8);
}
