#include <heed/causal_conv.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "support/example.hpp"
#include "support/refusal.hpp"

using testing::random_rows;

namespace {

/// The convolution of [past | x], number by number.
template <typename Scalar>
heed::rows<Scalar> exact_conv(const heed::rows<Scalar>& past, const heed::rows<Scalar>& x,
                              const heed::rows<Scalar>& weight,
                              const heed::row_vector<Scalar>& bias, bool silu) {
  heed::rows<Scalar> z(past.rows() + x.rows(), x.cols()), out(x.rows(), x.cols());
  z << past, x;
  for (heed::size_type t = 0; t < x.rows(); ++t)
    for (heed::size_type c = 0; c < x.cols(); ++c) {
      Scalar sum = bias.size() > 0 ? bias(c) : Scalar(0);
      for (heed::size_type i = 0; i < weight.cols(); ++i) sum += weight(c, i) * z(t + i, c);
      out(t, c) = silu ? sum / (1 + std::exp(-sum)) : sum;
    }
  return out;
}

}  // namespace

TEMPLATE_TEST_CASE("the causal convolution is a sum over past and present", "", float, double,
                   Eigen::bfloat16, Eigen::half) {
  using wide = testing::wider_t<TestType>;
  using accumulator = heed::accumulator_t<TestType>;
  for (const heed::size_type length : {0, 1, 2, 3, 20})
    for (const heed::size_type taps : {1, 2, 4, 9})
      for (const bool everything : {false, true}) {
        CAPTURE(length, taps, everything);
        const heed::size_type channels = 5;
        const heed::rows<TestType> x = random_rows<TestType>(length, channels, 1),
                                   weight = random_rows<TestType>(channels, taps, 2),
                                   past = random_rows<TestType>(taps - 1, channels, 3);
        const heed::row_vector<TestType> bias =
            random_rows<TestType>(everything ? channels : 0, 1, 4);
        heed::rows<accumulator> state = past.template cast<accumulator>();
        heed::causal_conv_options options;
        if (everything) options.activation = heed::activation::silu;
        const heed::rows<TestType> got =
            heed::causal_conv(x, weight, options, heed::when(everything, heed::channel_bias(bias)),
                              heed::carry(state));
        const auto in = [&](auto type) {
          using T = decltype(type);
          return exact_conv<T>(past.template cast<T>(), x.template cast<T>(),
                               weight.template cast<T>(), bias.template cast<T>(), everything);
        };
        const heed::rows<wide> want = in(wide());
        const heed::rows<TestType> same = in(accumulator()).template cast<TestType>();
        testing::check_as_exact_as(got, same, want);
        heed::rows<accumulator> z(taps - 1 + length, channels);
        z << past.template cast<accumulator>(), x.template cast<accumulator>();
        CHECK(state == z.bottomRows(taps - 1));
      }
}

TEST_CASE(
    "the causal convolution without a past starts from zeros, and a sequence in parts is the "
    "whole") {
  const heed::rows<long double> x = random_rows<long double>(20, 3, 1),
                                weight = random_rows<long double>(3, 4, 2);
  const heed::rows<long double> want = heed::causal_conv(x, weight);
  heed::rows<long double> state = heed::rows<long double>::Zero(3, 3), out(20, 3);
  heed::size_type first = 0;
  for (const heed::size_type count : {1, 1, 0, 2, 16}) {
    out.middleRows(first, count) =
        heed::causal_conv(x.middleRows(first, count), weight, {}, heed::carry(state));
    first += count;
  }
  CHECK(out == want);
}

TEST_CASE(
    "batches and channels-first tensors of the causal convolution, on any number of threads") {
  const heed::size_type batch = 3, channels = 2, length = 7;
  const heed::rows<float> x = random_rows<float>(batch * channels, length, 1),
                          weight = random_rows<float>(channels, 3, 2);
  for (const int threads : {1, 2}) {
    heed::rows<float> out(batch * channels, length);
    heed::causal_conv_options options;
    options.execution.threads = threads;
    heed::causal_conv_into(heed::tensor_view<const float>{x.data(), batch, 1, length, channels,
                                                          channels * length, 0, 1, length},
                           heed::view(weight),
                           heed::tensor_view<float>{out.data(), batch, 1, length, channels,
                                                    channels * length, 0, 1, length},
                           options);
    for (heed::size_type b = 0; b < batch; ++b) {
      const heed::rows<float> one =
          heed::causal_conv(x.middleRows(b * channels, channels).transpose(), weight);
      CHECK(out.middleRows(b * channels, channels).transpose() == one);
    }
  }
}

TEST_CASE("a NaN reaches the outputs that look back at it, and only those") {
  heed::rows<float> x = random_rows<float>(10, 2, 1);
  x(4, 1) = std::numeric_limits<float>::quiet_NaN();
  const heed::rows<float> out = heed::causal_conv(x, random_rows<float>(2, 3, 2));
  for (heed::size_type t = 0; t < 10; ++t) {
    CHECK(!std::isnan(out(t, 0)));
    CHECK(std::isnan(out(t, 1)) == (t >= 4 && t < 7));
  }
}

TEST_CASE("the causal convolution refuses what does not fit, before it writes") {
  const heed::rows<float> x = random_rows<float>(6, 4, 1), weight = random_rows<float>(4, 3, 2);
  testing::check_refused([&] { heed::causal_conv(x, random_rows<float>(5, 3, 1)); },
                         {"heed::causal_conv: weight: channels", "5", "4"});
  testing::check_refused([&] { heed::causal_conv(x, random_rows<float>(4, 0, 1)); }, {"taps", "0"});
  testing::check_refused(
      [&] { heed::causal_conv(x, weight, {}, heed::channel_bias(heed::row_vector<float>(3))); },
      {"channel_bias", "3", "4"});
  heed::rows<float> state = heed::rows<float>::Constant(3, 4, 7);
  testing::check_refused([&] { heed::causal_conv(x, weight, {}, heed::carry(state)); },
                         {"carry: rows", "3", "2"});
  const heed::row_vector<float> none;
  testing::check_refused([&] { heed::causal_conv(x, weight, {}, heed::channel_bias(none)); },
                         {"channel_bias", "0", "4"});
  heed::causal_conv_options wrong;
  wrong.activation = heed::activation(9);
  testing::check_refused([&] { heed::causal_conv(x, weight, wrong); }, {"activation", "9"});
  wrong = {};
  wrong.execution.threads = -1;
  testing::check_refused([&] { heed::causal_conv(x, weight, wrong); }, {"execution.threads", "-1"});
  CHECK((state.array() == 7).all());
}

TEMPLATE_TEST_CASE("weights and bias of floats beside tokens of 16 bits", "", Eigen::bfloat16,
                   Eigen::half) {
  const heed::rows<TestType> x = random_rows<TestType>(9, 5, 1);
  const heed::rows<float> weight = random_rows<float>(5, 4, 2),
                          past = heed::rows<float>::Zero(3, 5);
  const heed::row_vector<float> bias = random_rows<float>(5, 1, 3);
  const heed::rows<float> wide = x.template cast<float>();
  heed::causal_conv_options options;
  options.activation = heed::activation::silu;
  // the same sums, rounded once
  const heed::rows<TestType> want =
      heed::causal_conv(wide, weight, options, heed::channel_bias(bias)).template cast<TestType>();
  CHECK(heed::causal_conv(x, weight, options, heed::channel_bias(bias)) == want);
  // the two need not have one type
  const heed::row_vector<TestType> narrow = bias.template cast<TestType>();
  const heed::row_vector<float> rounded = narrow.template cast<float>();
  CHECK(heed::causal_conv(x, weight, options, heed::channel_bias(narrow)) ==
        heed::causal_conv(x, weight, options, heed::channel_bias(rounded)));
  heed::row_vector<float> short_bias = bias.head(4);
  testing::check_refused(
      [&] { heed::causal_conv(x, weight, options, heed::channel_bias(short_bias)); },
      {"heed::causal_conv: channel_bias: size 4", "5"});
}

TEST_CASE("a circular carry gives what a carry gives, and moves no row") {
  const heed::size_type taps = 4, channels = 3, batch = 2;
  const heed::size_type room = GENERATE(heed::size_type(3), heed::size_type(5), heed::size_type(8));
  const heed::rows<float> x = random_rows<float>(batch * 40, channels, 1),
                          weight = random_rows<float>(channels, taps, 2);
  heed::rows<float> moved = heed::rows<float>::Zero(batch * (taps - 1), channels),
                    state = heed::rows<float>::Zero(batch * room, channels);
  std::vector<std::int32_t> tokens{0, 0};
  const auto view = [&](const auto* data, heed::size_type rows) {
    return heed::bhnd(data, batch, 1, rows, channels);
  };
  heed::size_type done = 0;
  for (const heed::size_type count : {1, 2, 0, 1, 7, 1, 12, 1}) {
    CAPTURE(room, done, count);
    auto now = view(x.data(), 40);
    now.data += done * channels, now.rows = count;
    heed::rows<float> want(batch * count, channels), got(want);
    const auto run = [&](heed::rows<float>& out, const auto& carried) {
      heed::causal_conv_into(now, heed::view(weight),
                             heed::bhnd(out.data(), batch, 1, count, channels), {}, carried);
    };
    run(want, heed::carry(heed::bhnd(moved.data(), batch, 1, taps - 1, channels)));
    run(got, heed::circular_carry(heed::bhnd(state.data(), batch, 1, room, channels), tokens));
    CHECK(got == want);
    done += count;
    for (std::int32_t& n : tokens) n += std::int32_t(count);
    for (heed::size_type b = 0; b < batch; ++b)
      for (heed::size_type t = (std::max)(done - room, heed::size_type(0)); t < done; ++t)
        CHECK(state.row(b * room + t % room) == x.row(b * 40 + t));
  }

  // sequences that have had different numbers of tokens
  const heed::size_type length = 6;
  heed::rows<float> states = heed::rows<float>::Zero(2 * room, channels), out(2 * length, channels);
  const std::vector<heed::size_type> before{0, 10}, starts{0, length, 2 * length};
  for (heed::size_type t = 0; t < 10; ++t) states.row(room + t % room) = x.row(t);
  heed::causal_conv_into(
      heed::view(x.topRows(2 * length).eval()), heed::view(weight), heed::writable_view(out), {},
      heed::sequence_starts(starts),
      heed::circular_carry(heed::bhnd(states.data(), 2, 1, room, channels), before));
  heed::rows<float> past = x.middleRows(7, 3);
  CHECK(out.topRows(length) == heed::causal_conv(x.topRows(length), weight));
  CHECK(out.bottomRows(length) ==
        heed::causal_conv(x.middleRows(length, length), weight, {}, heed::carry(past)));
}

TEST_CASE("a circular carry is refused where it has too few rows or tokens that cannot be") {
  const heed::rows<float> x = random_rows<float>(6, 4, 1), weight = random_rows<float>(4, 3, 2);
  heed::rows<float> one = heed::rows<float>::Constant(1, 4, 7), two(2, 4);
  const std::vector<int> none{0}, two_counts{0, 0}, negative{-1};
  const auto refuse = [&](heed::rows<float>& state, const std::vector<int>& tokens,
                          const std::vector<std::string>& words) {
    testing::check_refused(
        [&] { heed::causal_conv(x, weight, {}, heed::circular_carry(state, tokens)); }, words);
  };
  refuse(one, none, {"heed::causal_conv: carry: rows 1", "taps - 1", "2"});
  refuse(two, two_counts, {"circular_carry: tokens: entries 2", "batch 1"});
  refuse(two, negative, {"circular_carry: tokens", "entry 0 is -1"});
  CHECK((one.array() == 7).all());
}
