#include <heed/position.hpp>

#include <cmath>
#include <limits>
#include <vector>

#include "support/differences.hpp"
#include "support/refusal.hpp"

using heed::rope_layout;
using heed::rope_options;
using heed::rope_scaling;

namespace {

constexpr long double two_pi = 6.283185307179586476925286766559005768L;

/// Some slow and some fast pairs, and a factor that every scaling feels.
rope_options scaled(rope_scaling scaling) {
  rope_options options;
  options.scaling = scaling;
  options.factor = 4;
  options.original_length = 256;
  options.sequence_length = 700;
  return options;
}

/// The frequency of pair c of a head of d elements as each paper gives it.
long double frequency_by_formula(const rope_options& options, heed::size_type c,
                                 heed::size_type d) {
  const long double base = options.base, factor = options.factor, length = options.original_length;
  const auto power = [d, c](long double b) {
    return std::pow(b, -2 * static_cast<long double>(c) / static_cast<long double>(d));
  };
  const long double frequency = power(base), wavelength = two_pi / frequency;
  const auto between = [&](long double share_kept) {
    return (1 - share_kept) * frequency / factor + share_kept * frequency;
  };
  switch (options.scaling) {
    case rope_scaling::none:
      return frequency;
    case rope_scaling::linear:
      return frequency / factor;
    case rope_scaling::ntk:
      return power(base *
                   std::pow(factor, static_cast<long double>(d) / static_cast<long double>(d - 2)));
    case rope_scaling::yarn: {
      const auto pair_of = [&](long double turns) {
        return static_cast<long double>(d) * std::log(length / (turns * two_pi)) /
               (2 * std::log(base));
      };
      const long double low = std::floor(pair_of(options.beta_fast)),
                        high = std::ceil(pair_of(options.beta_slow));
      const long double pair = static_cast<long double>(c);
      return between(pair <= low ? 1 : pair >= high ? 0 : (high - pair) / (high - low));
    }
    case rope_scaling::llama3:
      if (wavelength > length / options.low_freq_factor) return frequency / factor;
      if (wavelength < length / options.high_freq_factor) return frequency;
      return between((length / wavelength - options.low_freq_factor) /
                     (options.high_freq_factor - options.low_freq_factor));
    case rope_scaling::dynamic_ntk: {
      const long double n = (std::max)(static_cast<long double>(options.sequence_length), length);
      return power(base * std::pow(factor * n / length - (factor - 1),
                                   static_cast<long double>(d) / static_cast<long double>(d - 2)));
    }
  }
  return 0;
}

/// One vector turned to a position.
heed::rows<double> at_position(heed::rows<double> x, const rope_options& options,
                               heed::size_type position) {
  heed::apply_rope(heed::writable_view(x), options, position);
  return x;
}

}  // namespace

TEST_CASE("ALiBi slopes are powers of two by the paper's rule, for any number of heads") {
  for (heed::size_type heads = 1; heads <= 20; ++heads) {
    heed::size_type n = 1;
    while (2 * n <= heads) n *= 2;
    const heed::row_vector<double> slopes = heed::alibi_slopes<double>(heads);
    REQUIRE(slopes.size() == heads);
    for (heed::size_type h = 0; h < heads; ++h) {
      CAPTURE(heads, h);
      // the heads beyond a power of two take every other slope of twice as many
      const double head = double(h < n ? h + 1 : 2 * (h - n) + 1), of = double(h < n ? n : 2 * n);
      CHECK(slopes(h) == Approx(std::pow(2.0, -8.0 * head / of)).epsilon(1e-14));
    }
  }
  testing::check_refused([] { heed::alibi_slopes<float>(0); },
                         {"heed::alibi_slopes", "num_heads", "0"});
}

TEST_CASE("RoPE frequencies are those of the papers' formulas") {
  const rope_scaling scaling =
      GENERATE(rope_scaling::none, rope_scaling::linear, rope_scaling::ntk, rope_scaling::yarn,
               rope_scaling::llama3, rope_scaling::dynamic_ntk);
  const heed::size_type d = GENERATE(heed::size_type(4), heed::size_type(64), heed::size_type(128));
  const rope_options options = scaled(scaling);
  const heed::rope_frequencies_result rope = heed::rope_frequencies(d, options);
  REQUIRE(rope.frequencies.size() == d / 2);
  for (heed::size_type c = 0; c < d / 2; ++c) {
    CAPTURE(int(scaling), d, c);
    const double exact = static_cast<double>(frequency_by_formula(options, c, d));
    // an argument of pow that is wrong by an ulp moves the power by ln(base) of them
    CHECK(std::abs(rope.frequencies(c) - exact) <=
          32 * std::numeric_limits<double>::epsilon() * exact);
  }
  CHECK(rope.magnitude ==
        (scaling == rope_scaling::yarn ? Approx(0.1 * std::log(4.0) + 1) : Approx(1.0)));
}

TEST_CASE("the ntk scaling divides the slowest frequency by factor and leaves the fastest") {
  const heed::size_type d = 64;
  const auto plain = heed::rope_frequencies(d),
             ntk = heed::rope_frequencies(d, scaled(rope_scaling::ntk));
  CHECK(ntk.frequencies(0) == plain.frequencies(0));
  CHECK(ntk.frequencies(d / 2 - 1) == Approx(plain.frequencies(d / 2 - 1) / 4).epsilon(1e-12));
}

// Both tables were computed in Python from the formulas as transformers writes them. With pair(t) =
// d ln(L / (2 pi t)) / (2 ln base), low = pair(beta_fast), high = pair(beta_slow) and r = clamp((c
// - low) / (high - low), 0, 1), yarn's frequency of pair c is f (1 - r) + f / factor r for f =
// base^(-2c / d); low is 8.0928 and high 17.398 here, and truncate makes 8 and 18 of them.
TEST_CASE("yarn's ramp of gpt-oss is not rounded to whole pairs") {
  rope_options options;
  options.scaling = rope_scaling::yarn;
  options.base = 150000;
  options.factor = 32;
  options.original_length = 4096;
  struct known {
    heed::size_type pair;
    double rounded, exact;
  };
  const auto rounded = heed::rope_frequencies(64, options);
  options.truncate = false;
  const auto exact = heed::rope_frequencies(64, options);
  for (const known& k : {known{8, 0.05081327481546147, 0.05081327481546147},
                         {9, 0.03162075227534648, 0.03170569618466377},
                         {12, 0.007015713910504388, 0.006794959489732219},
                         {16, 0.0005809475019311124, 0.0004564839192232409},
                         {17, 0.0002279477957951252, 0.0001293187012450632},
                         {18, 3.830881237375338e-05, 3.830881237375338e-05},
                         {31, 3.023511428119214e-07, 3.023511428119214e-07}}) {
    CAPTURE(k.pair);
    CHECK(rounded.frequencies(k.pair) == Approx(k.rounded).epsilon(1e-13));
    CHECK(exact.frequencies(k.pair) == Approx(k.exact).epsilon(1e-13));
  }
}

// The base is multiplied by (factor n / L - (factor - 1))^(d / (d - 2)) for n > L.
TEST_CASE("dynamic NTK scaling raises the base by how far the sequence is past the training") {
  rope_options options;
  options.scaling = rope_scaling::dynamic_ntk;
  options.factor = 4;
  options.original_length = 2048;
  struct known {
    heed::size_type length;
    double first, second, last;  // of pairs 1, 31 and 63
  };
  for (const known& k : {known{1, 0.8659643233600653, 0.01154781984689458, 0.0001154781984689458},
                         {2048, 0.8659643233600653, 0.01154781984689458, 0.0001154781984689458},
                         {3000, 0.8516430396337707, 0.006886295286605009, 4.038581804378433e-05},
                         {8192, 0.8314159646852709, 0.003268655451716379, 8.882938343765066e-06}}) {
    CAPTURE(k.length);
    options.sequence_length = k.length;
    const heed::rope_frequencies_result rope = heed::rope_frequencies(128, options);
    CHECK(rope.frequencies(0) == 1);
    CHECK(rope.frequencies(1) == Approx(k.first).epsilon(1e-13));
    CHECK(rope.frequencies(31) == Approx(k.second).epsilon(1e-13));
    CHECK(rope.frequencies(63) == Approx(k.last).epsilon(1e-13));
    CHECK(rope.magnitude == 1);
  }
}

TEST_CASE("after RoPE the product of a query and a key depends on their distance alone") {
  const rope_layout layout = GENERATE(rope_layout::half_split, rope_layout::interleaved);
  const rope_scaling scaling =
      GENERATE(rope_scaling::none, rope_scaling::linear, rope_scaling::ntk, rope_scaling::yarn,
               rope_scaling::llama3, rope_scaling::dynamic_ntk);
  const heed::size_type rotary_dim = GENERATE(heed::size_type(0), heed::size_type(6));
  rope_options options = scaled(scaling);
  options.layout = layout;
  options.rotary_dim = rotary_dim;
  const heed::rows<double> q = testing::random_rows<double>(1, 16, 1),
                           k = testing::random_rows<double>(1, 16, 2);
  const auto product = [&](heed::size_type m, heed::size_type n) {
    return at_position(q, options, m).row(0).dot(at_position(k, options, n).row(0));
  };
  // angles of up to 1000 radians are wrong by up to 1000 ulps of 1
  const double tolerance = 1000 * std::numeric_limits<double>::epsilon() * q.norm() * k.norm();
  for (const heed::size_type distance : {-7, 0, 3, 100})
    for (const heed::size_type shift : {1, 20, 800}) {
      CAPTURE(int(layout), int(scaling), rotary_dim, distance, shift);
      CHECK(std::abs(product(110 + shift, 110 + shift + distance) - product(110, 110 + distance)) <=
            tolerance);
    }
  CHECK(std::abs(product(0, 9) - product(0, 10)) > 1e-3);  // and on their distance it does depend
}

TEST_CASE("both layouts turn the same pairs, elsewhere in the head") {
  const heed::size_type d = 12;
  rope_options half, interleaved;
  interleaved.layout = rope_layout::interleaved;
  const heed::rows<double> x = testing::random_rows<double>(1, d, 3);
  heed::rows<double> shuffled(1, d);
  for (heed::size_type c = 0; c < d / 2; ++c)
    shuffled(0, 2 * c) = x(0, c), shuffled(0, 2 * c + 1) = x(0, c + d / 2);
  const heed::rows<double> a = at_position(x, half, 5), b = at_position(shuffled, interleaved, 5);
  for (heed::size_type c = 0; c < d / 2; ++c) {
    CHECK(a(0, c) == b(0, 2 * c));
    CHECK(a(0, c + d / 2) == b(0, 2 * c + 1));
  }
}

TEST_CASE(
    "RoPE turns a pair by position times frequency, and leaves the elements past rotary_dim") {
  rope_options options;
  options.rotary_dim = 4;
  heed::rows<double> x = testing::random_rows<double>(3, 7, 4);
  const heed::rows<double> before = x;
  heed::apply_rope(heed::writable_view(x), options, 10);
  const heed::rope_frequencies_result rope = heed::rope_frequencies(7, options);
  for (heed::size_type i = 0; i < 3; ++i) {
    for (heed::size_type c = 0; c < 2; ++c) {
      const double angle = double(10 + i) * rope.frequencies(c);
      CHECK(x(i, c) == Approx(before(i, c) * std::cos(angle) - before(i, c + 2) * std::sin(angle))
                           .margin(1e-14));
      CHECK(x(i, c + 2) ==
            Approx(before(i, c + 2) * std::cos(angle) + before(i, c) * std::sin(angle))
                .margin(1e-14));
    }
    CHECK(x.row(i).tail(3) == before.row(i).tail(3));
  }
}

TEST_CASE(
    "rotate_into takes the rows of its tables that the positions say, for every head and batch "
    "entry") {
  const heed::size_type batch = 2, heads = 3, n = 4, d = 6;
  const heed::rows<float> numbers = testing::random_rows<float>(batch * heads * n, d, 5);
  const heed::rope_frequencies_result rope = heed::rope_frequencies(d);
  heed::rows<float> cos(20, d / 2), sin(20, d / 2);
  for (heed::size_type position = 0; position < 20; ++position)
    for (heed::size_type c = 0; c < d / 2; ++c) {
      cos(position, c) = float(std::cos(double(position) * rope.frequencies(c)));
      sin(position, c) = float(std::sin(double(position) * rope.frequencies(c)));
    }
  const std::vector<heed::size_type> positions{0, 19, 3, 3, 7, 1, 2, 18};
  heed::rows<float> got = numbers;
  heed::rotate_into(heed::bhnd(got.data(), batch, heads, n, d), cos, sin, positions);
  for (heed::size_type b = 0; b < batch; ++b)
    for (heed::size_type h = 0; h < heads; ++h)
      for (heed::size_type i = 0; i < n; ++i) {
        const heed::size_type row = (b * heads + h) * n + i;
        heed::rows<float> one = numbers.row(row);
        heed::apply_rope(heed::writable_view(one), {}, positions[std::size_t(b * n + i)]);
        CHECK(got.row(row) == one);
      }
}

TEST_CASE("RoPE refuses what does not fit") {
  rope_options options;
  options.rotary_dim = 3;
  testing::check_refused([&] { heed::rope_frequencies(8, options); },
                         {"heed::rope_frequencies", "rotary_dim", "3", "head_dim 8"});
  options.rotary_dim = 10;
  testing::check_refused([&] { heed::rope_frequencies(8, options); },
                         {"rotary_dim", "10", "head_dim 8"});
  options = {};
  options.base = 0;
  testing::check_refused([&] { heed::rope_frequencies(8, options); }, {"base", "0"});
  options = {};
  options.factor = -1;
  testing::check_refused([&] { heed::rope_frequencies(8, options); }, {"factor", "-1"});
  heed::rows<float> x = heed::rows<float>::Ones(2, 4);
  const heed::rows<float> table = heed::rows<float>::Zero(3, 2),
                          wide = heed::rows<float>::Zero(3, 3);
  const std::vector<heed::size_type> good{0, 2}, far{0, 3}, few{0};
  const auto refuse = [&](const auto& cos, const auto& sin,
                          const std::vector<heed::size_type>& positions,
                          const std::vector<std::string>& words) {
    testing::check_refused([&] { heed::rotate_into(heed::writable_view(x), cos, sin, positions); },
                           words);
  };
  refuse(table, wide, good, {"heed::rotate_into", "sin: columns 3", "2"});
  refuse(wide, wide, good, {"rotary_dim 6", "head_dim 4"});
  refuse(table, table, far, {"position 3", "3 rows"});
  refuse(table, table, few, {"positions: 1", "2"});
  CHECK((x.array() == 1).all());
}

TEST_CASE(
    "RoPE refuses numbers that would make angles without meaning, each scaling those that it "
    "uses") {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto refuse = [](rope_scaling scaling, const auto& change,
                         const std::vector<std::string>& words) {
    rope_options options;
    options.scaling = scaling;
    options.factor = 4;
    options.sequence_length = 10;
    change(options);
    CAPTURE(int(scaling));
    testing::check_refused([&] { heed::rope_frequencies(8, options); }, words);
    heed::rows<float> x = heed::rows<float>::Ones(2, 8);
    std::vector<std::string> all = words;
    all.push_back("heed::apply_rope: ");
    testing::check_refused([&] { heed::apply_rope(heed::writable_view(x), options); }, all);
    CHECK((x.array() == 1).all());
  };
  for (const rope_scaling scaling :
       {rope_scaling::none, rope_scaling::linear, rope_scaling::ntk, rope_scaling::yarn,
        rope_scaling::llama3, rope_scaling::dynamic_ntk})
    for (const double bad : {0.0, -1.0, infinity, std::nan("")}) {
      refuse(scaling, [&](rope_options& o) { o.base = bad; }, {"base"});
      refuse(scaling, [&](rope_options& o) { o.factor = bad; }, {"factor"});
      if (scaling < rope_scaling::yarn) continue;
      refuse(scaling, [&](rope_options& o) { o.original_length = bad; }, {"original_length"});
      if (scaling == rope_scaling::dynamic_ntk) continue;
      const bool yarn = scaling == rope_scaling::yarn;
      refuse(scaling, [&](rope_options& o) { o.beta_fast = o.high_freq_factor = bad; },
             {yarn ? "beta_fast" : "high_freq_factor"});
      refuse(scaling, [&](rope_options& o) { o.beta_slow = o.low_freq_factor = bad; },
             {yarn ? "beta_slow" : "low_freq_factor"});
    }
  refuse(rope_scaling::yarn, [](rope_options& o) { o.beta_fast = o.beta_slow = 2; },
         {"beta_slow 2", "beta_fast 2"});
  refuse(rope_scaling::yarn, [](rope_options& o) { o.beta_slow = 40; },
         {"beta_slow 40", "beta_fast 32"});
  refuse(rope_scaling::yarn, [](rope_options& o) { o.base = 1; }, {"base", "1"});
  refuse(rope_scaling::llama3, [](rope_options& o) { o.low_freq_factor = 4; },
         {"low_freq_factor 4", "high_freq_factor 4"});
  refuse(rope_scaling::ntk, [](rope_options& o) { o.factor = 1e-300; },
         {"factor 1e-300", "frequency"});
  refuse(rope_scaling::dynamic_ntk, [](rope_options& o) { o.sequence_length = 0; },
         {"sequence_length", "0"});
  refuse(rope_scaling::dynamic_ntk, [](rope_options& o) { o.sequence_length = -3; },
         {"sequence_length", "-3"});
  refuse(rope_scaling::none, [](rope_options& o) { o.layout = rope_layout(9); }, {"layout", "9"});
  refuse(rope_scaling(9), [](rope_options&) {}, {"scaling", "9"});

  heed::rows<float> x = heed::rows<float>::Ones(2, 8);
  constexpr heed::size_type most = (std::numeric_limits<heed::size_type>::max)();
  testing::check_refused([&] { heed::apply_rope(heed::writable_view(x), {}, most); },
                         {"heed::apply_rope: first_position " + std::to_string(most), "2"});
  const heed::rows<float> table = heed::rows<float>::Zero(3, 2);
  const std::vector<heed::size_type> positions{0, 1};
  testing::check_refused(
      [&] { heed::rotate_into(heed::writable_view(x), table, table, positions, rope_layout(9)); },
      {"heed::rotate_into: layout", "9"});
  CHECK((x.array() == 1).all());
}

TEST_CASE("RoPE backward is the gradient of RoPE: the transpose, with the same magnitude") {
  const rope_scaling scaling =
      GENERATE(rope_scaling::none, rope_scaling::linear, rope_scaling::ntk, rope_scaling::yarn,
               rope_scaling::llama3, rope_scaling::dynamic_ntk);
  const rope_layout layout = GENERATE(rope_layout::half_split, rope_layout::interleaved);
  const heed::size_type rotary = GENERATE(heed::size_type(0), heed::size_type(6));
  rope_options options = scaled(scaling), back;
  options.layout = layout;
  options.rotary_dim = rotary;
  back = options;
  back.direction = heed::rope_direction::backward;
  const heed::rows<double> grad = testing::random_rows<double>(3, 8, 6);
  heed::rows<double> got = grad;
  heed::apply_rope(heed::writable_view(got), back, 300);
  // the loss is linear: its derivative is the loss of a unit
  for (heed::size_type i = 0; i < 3; ++i)
    for (heed::size_type c = 0; c < 8; ++c) {
      heed::rows<double> unit = heed::rows<double>::Zero(3, 8);
      unit(i, c) = 1;
      heed::apply_rope(heed::writable_view(unit), options, 300);
      // two products of numbers below 2 and their sum
      CHECK(std::abs(got(i, c) - unit.cwiseProduct(grad).sum()) <= 8 * 0x1p-53);
    }
  const double magnitude = heed::rope_frequencies(8, options).magnitude;
  heed::apply_rope(heed::writable_view(got), options, 300);
  heed::rows<double> round_trip = grad * (magnitude * magnitude);
  if (rotary > 0) round_trip.rightCols(2) = grad.rightCols(2);
  CHECK(testing::max_error(got, round_trip) <= 32 * 0x1p-53L);
}

TEMPLATE_TEST_CASE("RoPE backward of 16-bit numbers and floats is that of doubles, rounded", "",
                   float, Eigen::half, Eigen::bfloat16) {
  rope_options back;
  back.direction = heed::rope_direction::backward;
  const heed::rows<TestType> x = testing::random_rows<TestType>(9, 16, 7);
  heed::rows<TestType> got = x;
  heed::rows<double> exact = x.template cast<double>();
  heed::apply_rope(heed::writable_view(got), back, 5);
  heed::apply_rope(heed::writable_view(exact), back, 5);
  // in float: a cosine, a sine, two products, a sum, of numbers that make 2 sqrt(3) at most; then
  // the type's own rounding
  const long double largest = 2 * std::sqrt(3.0L);
  CHECK(testing::max_error(got, exact) <=
        largest * (4 * 0x1p-24L + testing::unit_roundoff<TestType>));
}

TEST_CASE("rotate_into backward is the gradient of rotate_into") {
  const rope_layout layout = GENERATE(rope_layout::half_split, rope_layout::interleaved);
  const heed::rows<double> cos = testing::random_rows<double>(5, 3, 8),
                           sin = testing::random_rows<double>(5, 3, 9),
                           grad = testing::random_rows<double>(2 * 4, 7, 10);
  const std::vector<heed::size_type> positions{4, 0, 2, 2};
  const auto turned = [&](heed::rows<double> x, heed::rope_direction direction) {
    heed::rotate_into(heed::bhnd(x.data(), 2, 2, 2, 7), cos, sin, positions, layout, direction);
    return x;
  };
  const heed::rows<double> got = turned(grad, heed::rope_direction::backward);
  for (heed::size_type i = 0; i < 8; ++i)
    for (heed::size_type c = 0; c < 7; ++c) {
      heed::rows<double> unit = heed::rows<double>::Zero(8, 7);
      unit(i, c) = 1;
      // two products of numbers below 2 and their sum
      CHECK(std::abs(got(i, c) -
                     turned(unit, heed::rope_direction::forward).cwiseProduct(grad).sum()) <=
            12 * 0x1p-53);
    }
}

TEST_CASE("RoPE refuses a direction that there is not") {
  rope_options options;
  options.direction = static_cast<heed::rope_direction>(2);
  heed::rows<float> x = heed::rows<float>::Ones(2, 4);
  testing::check_refused([&] { heed::apply_rope(heed::writable_view(x), options); },
                         {"heed::apply_rope: direction", "2"});
  const heed::rows<float> table = heed::rows<float>::Zero(3, 2);
  const std::vector<heed::size_type> positions{0, 2};
  testing::check_refused(
      [&] {
        heed::rotate_into(heed::writable_view(x), table, table, positions, rope_layout::half_split,
                          options.direction);
      },
      {"heed::rotate_into: direction", "2"});
  CHECK((x.array() == 1).all());
}
