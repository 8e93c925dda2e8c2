#include <heed/float8.hpp>
#include <heed/kv_cache.hpp>
#include <heed/paged_kv_cache.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/isas.hpp"
#include "support/refusal.hpp"
#include "support/tokens.hpp"

using heed::float8_e4m3;
using heed::float8_e5m2;
using testing::tokens;

namespace {

/// A format as its specification has it: bits of mantissa, the bias of the exponent, the bits of
/// the largest finite number, and whether those after them are an infinity.
template <typename Float8>
struct format;
template <>
struct format<float8_e4m3> {
  static constexpr int mantissa = 3, bias = 7, largest = 0x7e;
  static constexpr bool has_infinity = false;
};
template <>
struct format<float8_e5m2> {
  static constexpr int mantissa = 2, bias = 15, largest = 0x7b;
  static constexpr bool has_infinity = true;
};

/// The number that 7 bits stand for, without their sign.
template <typename Float8>
double number_of(int magnitude) {
  using f = format<Float8>;
  const int exponent = magnitude >> f::mantissa, rest = magnitude & ((1 << f::mantissa) - 1);
  if (magnitude > f::largest)
    return f::has_infinity && rest == 0 ? std::numeric_limits<double>::infinity()
                                        : std::numeric_limits<double>::quiet_NaN();
  const double one = 1 << f::mantissa;
  return exponent > 0 ? std::ldexp(1 + rest / one, exponent - f::bias)
                      : std::ldexp(rest / one, 1 - f::bias);
}
template <typename Float8>
Float8 from_bits(int bits) {
  Float8 x;
  x.bits = static_cast<std::uint8_t>(bits);
  return x;
}
template <typename Float8>
int bits_of(float x) {
  return Float8(x).bits;
}

constexpr float infinity = std::numeric_limits<float>::infinity(),
                nan_number = std::numeric_limits<float>::quiet_NaN();

}  // namespace

static_assert(sizeof(float8_e4m3) == 1 && sizeof(float8_e5m2) == 1, "");

TEMPLATE_TEST_CASE("all 256 numbers of 8 bits have their value, and come back from it", "",
                   float8_e4m3, float8_e5m2) {
  for (int bits = 0; bits < 256; ++bits) {
    const int magnitude = bits & 0x7f, sign = bits & 0x80;
    const double right = number_of<TestType>(magnitude);
    const float got = from_bits<TestType>(bits);
    CAPTURE(bits);
    if (std::isnan(right)) {
      CHECK(std::isnan(got));
      CHECK(bits_of<TestType>(got) == (0x7f | sign));
      continue;
    }
    CHECK(double(got) == (sign ? -right : right));
    CHECK(std::signbit(got) == (sign != 0));
    CHECK(bits_of<TestType>(got) == (std::isinf(right) ? format<TestType>::largest | sign : bits));
  }
}

TEMPLATE_TEST_CASE("a number between two of 8 bits goes to the nearer one, a tie to the even one",
                   "", float8_e4m3, float8_e5m2) {
  for (int low = 0; low < format<TestType>::largest; ++low) {
    const double below = number_of<TestType>(low), above = number_of<TestType>(low + 1);
    const float middle = float((below + above) / 2);
    REQUIRE(double(middle) == (below + above) / 2);
    const int even = low % 2 == 0 ? low : low + 1;
    CAPTURE(low);
    CHECK(bits_of<TestType>(middle) == even);
    CHECK(bits_of<TestType>(-middle) == (even | 0x80));
    CHECK(bits_of<TestType>(std::nextafter(middle, 0.0f)) == low);
    CHECK(bits_of<TestType>(std::nextafter(middle, infinity)) == low + 1);
    CHECK(bits_of<TestType>(-std::nextafter(middle, 0.0f)) == (low | 0x80));
    CHECK(bits_of<TestType>(-std::nextafter(middle, infinity)) == ((low + 1) | 0x80));
  }
}

TEMPLATE_TEST_CASE("what is beyond the largest number of 8 bits becomes that number", "",
                   float8_e4m3, float8_e5m2) {
  constexpr int largest = format<TestType>::largest;
  const float most = float(number_of<TestType>(largest));
  for (const float x : {std::nextafter(most, infinity), 1.04f * most, 1.06f * most, 1.2f * most,
                        2 * most, std::numeric_limits<float>::max(), infinity}) {
    CAPTURE(x);
    CHECK(bits_of<TestType>(x) == largest);
    CHECK(bits_of<TestType>(-x) == (largest | 0x80));
  }
  const float least = float(number_of<TestType>(1));
  for (const float x : {least / 2, least / 3, 1e-30f, std::numeric_limits<float>::denorm_min()}) {
    CAPTURE(x);
    CHECK(bits_of<TestType>(x) == 0);
    CHECK(bits_of<TestType>(-x) == 0x80);
  }
}

// A normal number has a relative error of at most half a unit of its mantissa, a subnormal one half
// of the smallest, times the scale; the quotient and the product that reads back round by 2^-24
// each.
TEMPLATE_TEST_CASE("a cache of 8-bit floats is wrong by a rounding, under the scale of each head",
                   "", float8_e4m3, float8_e5m2) {
  using f = format<TestType>;
  tokens<float> t(30, 2, 2, 24, 9, 5);
  t.key.col(3) *= 1e-3f;  // some are subnormal
  t.key.col(5) *= 100;
  const heed::head_scales scales{{0.25f, 3.0f}, {1.0f, 0.1f}};
  heed::kv_cache<TestType> cache(1, 2, 24, 9, 4, -1, 0, scales);  // grows
  heed::paged_kv_cache<TestType> paged(8, 4, 2, 24, 9, scales);
  const heed::size_type sequence = paged.add_sequence();
  const std::vector<heed::size_type> sequences{sequence};
  for (heed::size_type first = 0; first < 30; first += 10) {
    t.append(cache, 0, first, first + 10);
    t.append(paged, sequence, first, first + 10);
  }
  const auto check = [](const auto& stored, const auto& in_pages,
                        const heed::tensor_view<const float>& exact,
                        const std::vector<float>& scale) {
    for (heed::size_type h = 0; h < 2; ++h) {
      const auto rows = stored.head(0, h, 0, 30), pages = in_pages.head(0, h, 0, 30);
      for (heed::size_type j = 0; j < 30; ++j)
        for (heed::size_type c = 0; c < exact.cols; ++c) {
          const double x = double(exact(0, h, j, c)), s = double(scale[std::size_t(h)]),
                       most = number_of<TestType>(f::largest) * s,
                       saturated = (std::min)((std::max)(x, -most), most);
          const double allowed = (std::max)(std::ldexp(std::abs(saturated), -f::mantissa - 1),
                                            std::ldexp(s, -f::bias - f::mantissa));
          CHECK(std::abs(rows.template at<double>(j, c) - saturated) <= allowed * (1 + 0x1p-20));
          CHECK(rows.template at<double>(j, c) == pages.template at<double>(j, c));
        }
    }
  };
  check(cache.keys(), paged.batch(sequences).keys(), t.key_view(0, 30), scales.key);
  check(cache.values(), paged.batch(sequences).values(), t.value_view(0, 30), scales.value);
  CHECK(cache.bytes() == 2 * cache.capacity() * (24 + 9) + 2 * 2 * 4);
}

TEMPLATE_TEST_CASE("an infinity or NaN is NaN in a cache of 8-bit floats, its neighbours are not",
                   "", float8_e4m3, float8_e5m2) {
  for (const float bad : {infinity, -infinity, nan_number}) {
    tokens<float> t(2, 1, 1, 4, 4, 6);
    t.key(0, 2) = bad;
    heed::kv_cache<TestType> cache(1, 1, 4, 4);
    t.append(cache, 0, 0, 2);
    const auto rows = cache.keys().head(0, 0, 0, 2);
    for (heed::size_type j = 0; j < 2; ++j)
      for (heed::size_type c = 0; c < 4; ++c)
        CHECK(std::isnan(rows.template at<float>(j, c)) == (j == 0 && c == 2));
  }
}

TEMPLATE_TEST_CASE("attention to 8-bit floats is as exact as the reference of what they stand for",
                   "", float8_e4m3, float8_e5m2) {
  // 37: what is left of a row; 60 queries: the forward kernel, 1: decoding
  const tokens<float> t(200, 4, 2, 37, 24, 3);
  const tokens<double> exact_t(200, 4, 2, 37, 24, 3);
  const heed::head_scales scales{{0.5f, 2.0f}, {0.01f, 0.3f}};
  heed::kv_cache<TestType> cache(1, 2, 37, 24, 64, -1, 0, scales);
  heed::paged_kv_cache<TestType> paged(20, 16, 2, 37, 24, scales);
  const std::vector<heed::size_type> sequence{paged.add_sequence()};
  t.append(cache, 0, 0, 200);
  t.append(paged, sequence[0], 0, 200);
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  for (const heed::isa target : testing::isas()) {
    options.execution.target = target;
    for (const heed::size_type n_q : {1, 3, 60}) {
      CAPTURE(n_q);
      INFO(testing::name_of(target));
      const auto right = testing::reference_from(cache, t, 200 - n_q, 200, options);
      const auto exact = testing::reference_from(cache, exact_t, 200 - n_q, 200, options);
      testing::check_as_exact_as(testing::attention_from(cache, t, 200 - n_q, 200, options), right,
                                 exact);
      testing::check_as_exact_as(
          testing::attention_from(paged.batch(sequence), t, 200 - n_q, 200, options), right, exact);
    }
  }
}

// Decoding multiplies such a NaN as if it were a number and then says what it is: every place in a
// row, whole vectors and what is left of it, keys that all rows see and one that some do not.
TEMPLATE_TEST_CASE("a NaN of 8 bits comes out where it went in, and not where it is masked", "",
                   float8_e4m3, float8_e5m2) {
  constexpr heed::size_type n = 800, d = 71;
  for (const heed::isa target : testing::isas()) {
    INFO(testing::name_of(target));
    heed::attention_options options;
    options.causal = heed::causal::bottom_right;
    options.execution.target = target;
    for (heed::size_type c = 0; c < d; c += 7) {
      CAPTURE(c);
      const heed::size_type n_q = 1 + c % 3;  // decoding
      tokens<float> t(n, 2, 1, d, d, 7);
      t.value(13, c) = nan_number;
      heed::kv_cache<TestType> values(1, 1, d, d);
      t.append(values, 0, 0, n);
      const auto out = testing::attention_from(values, t, n - n_q, n, options);
      for (heed::size_type i = 0; i < n_q; ++i)
        for (heed::size_type k = 0; k < 2 * d; ++k) CHECK(std::isnan(out(i, k)) == (k % d == c));

      t.value(13, c) = 0;
      t.key(n - 1, c) = -nan_number;
      heed::kv_cache<TestType> keys(1, 1, d, d);
      t.append(keys, 0, 0, n);
      const auto last = testing::attention_from(keys, t, n - n_q, n, options);
      for (heed::size_type i = 0; i < n_q; ++i)
        for (heed::size_type k = 0; k < 2 * d; ++k) CHECK(std::isnan(last(i, k)) == (i == n_q - 1));
    }
  }
}

TEST_CASE("caches keep the scales of their heads, whatever becomes of their tokens") {
  const heed::head_scales scales{{2.0f}, {4.0f}};
  heed::kv_cache<float8_e4m3> cache(2, 1, 4, 4, 2, 3, 0, scales);
  const std::vector<float> one(4 * 4 * 2, 2.0f);
  const auto few = heed::bhnd(one.data(), 1, 1, 4, 4);
  for (int repeat = 0; repeat < 5; ++repeat) cache.append(1, few, few);
  const heed::kv_cache<float8_e4m3> copy(cache), moved(std::move(cache));
  for (const auto* c : {&copy, &moved}) {
    const auto keys = c->keys(), values = c->values();
    const auto row = c->length(1) - 1;
    CHECK(float(keys.elements(1, 0, keys.first_rows[1] + row, 0)) == 1);
    CHECK(float(values.elements(1, 0, values.first_rows[1] + row, 0)) == 0.5f);
    CHECK(keys.head(1, 0, 0, row + 1).at<float>(row, 3) == 2);
    CHECK(values.head(1, 0, 0, row + 1).at<float>(row, 3) == 2);
  }
}

TEST_CASE("scales that are not those of the heads are refused") {
  const auto refused = [](const heed::head_scales& scales, const std::vector<std::string>& words) {
    auto all = words;
    all.push_back("heed::kv_cache: head_scales");
    testing::check_refused([&] { heed::kv_cache<float8_e4m3>(1, 2, 4, 4, 8, -1, 0, scales); }, all);
    all.back() = "heed::paged_kv_cache: head_scales";
    testing::check_refused([&] { heed::paged_kv_cache<float8_e5m2>(4, 4, 2, 4, 4, scales); }, all);
  };
  refused({{1.0f}, {}}, {"key", "1", "2"});
  refused({{}, {1.0f, 1.0f, 1.0f}}, {"value", "3", "2"});
  for (const float bad : {0.0f, -1.0f, infinity, nan_number, 1e-40f})
    refused({{1.0f, bad}, {}}, {"key", "positive normal"});
  testing::check_refused(
      [] {
        heed::kv_cache<std::int8_t>(1, 1, 4, 4, 8, -1, 0, heed::head_scales{{1.0f}, {}});
      },
      {"heed::kv_cache: head_scales: key", "only caches of 8-bit floats"});
  testing::check_refused(
      [] {
        heed::paged_kv_cache<float>(4, 4, 1, 4, 4, heed::head_scales{{}, {1.0f}});
      },
      {"heed::paged_kv_cache: head_scales: value", "only caches of 8-bit floats"});
}
