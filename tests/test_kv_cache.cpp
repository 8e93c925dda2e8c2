#include <heed/kv_cache.hpp>
#include <heed/multi_head.hpp>
#include <heed/paged_kv_cache.hpp>
#include <heed/position.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/refusal.hpp"
#include "support/tokens.hpp"

using testing::tokens;

namespace {

heed::attention_options causal() {
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  return options;
}

const std::vector<std::vector<heed::size_type>> cuts{
    {0, 40}, {0, 1, 40}, {0, 39, 40}, {0, 7, 8, 8, 20, 33, 40}};

}  // namespace

TEST_CASE("any cut of a prompt into chunks gives what one call gives") {
  const tokens<double> t(40, 4, 2, 8, 6, 1);
  heed::attention_options options = causal();
  options.softcap = 3;
  SECTION("all that came before") {}
  SECTION("a window") { options.window_left = 5; }
  const auto in_one_call = [&](auto zero) {
    using Scalar = decltype(zero);
    const tokens<Scalar> same(40, 4, 2, 8, 6, 1);
    heed::kv_cache<Scalar> cache(1, 2, 8, 6);
    same.append(cache, 0, 0, 40);
    const heed::row_vector<Scalar> slopes = heed::alibi_slopes<Scalar>(4);
    return testing::reference_from(cache, same, 0, 40, options, heed::alibi(slopes));
  };
  const heed::rows<double> whole = in_one_call(0.0);
  const heed::rows<long double> exact = in_one_call(0.0L);
  const auto slopes = heed::alibi_slopes<double>(4);
  for (const std::vector<heed::size_type>& cut : cuts) {
    heed::kv_cache<double> cache(1, 2, 8, 6, 4);
    heed::rows<double> reference(40, 24), fused(40, 24);
    for (std::size_t n = 0; n + 1 < cut.size(); ++n) {
      const heed::size_type first = cut[n], end = cut[n + 1];
      t.append(cache, 0, first, end);
      reference.middleRows(first, end - first) =
          testing::reference_from(cache, t, first, end, options, heed::alibi(slopes));
      fused.middleRows(first, end - first) =
          testing::attention_from(cache, t, first, end, options, heed::alibi(slopes));
    }
    CAPTURE(cut);
    CHECK(reference == whole);
    testing::check_as_exact_as(fused, whole, exact);
  }
}

TEST_CASE("some entries of a cache as the batch of a call, in any order and more than once") {
  heed::kv_cache<float> cache(3, 2, 8, 6, 4, 600);  // sequences of 5, 1300 and 40 tokens
  std::vector<tokens<float>> t;
  for (const heed::size_type n : {5, 1300, 40}) {
    const heed::size_type s = static_cast<heed::size_type>(t.size());
    t.emplace_back(n, 4, 2, 8, 6, unsigned(s + 1));
    for (heed::size_type i = 0; i < n; i += 100)
      t.back().append(cache, s, i, (std::min)(n, i + 100));
  }
  REQUIRE(cache.dropped()[1] > 0);
  const auto late = [](heed::size_type, heed::size_type, heed::size_type i, heed::size_type j) {
    return (i + 3 * j) % 5 != 0;
  };
  std::vector<std::int32_t> entries{1, 2, 0, 1};
  const auto batch = cache.batch(entries);
  for (const heed::size_type n_q : {1, 3}) {
    const heed::rows<float> query = testing::random_rows<float>(4 * n_q, 4 * 8, 9);
    heed::rows<float> all(4 * n_q, 4 * 6), reference(4 * n_q, 4 * 6);
    const auto of = [&](auto* data, heed::size_type first, heed::size_type count,
                        heed::size_type d) {
      return heed::bnhd(data + first * n_q * 4 * d, count, n_q, 4, d);
    };
    for (const heed::isa target : heed::available_isas()) {
      heed::attention_options options = causal();
      options.window_left = 500;
      options.execution.target = target;
      heed::workspace memory;
      heed::cached_attention_into(of(query.data(), 0, 4, 8), batch, of(all.data(), 0, 4, 6), {},
                                  options, memory, heed::mask_function(late));
      heed::reference_cached_attention_into(of(query.data(), 0, 4, 8), batch,
                                            of(reference.data(), 0, 4, 6), {}, options,
                                            heed::mask_function(late));
      // alone, out of a cache of one sequence that has had the same tokens
      for (heed::size_type b = 0; b < 4; ++b) {
        const std::size_t s = std::size_t(entries[std::size_t(b)]);
        heed::kv_cache<float> one(1, 2, 8, 6, 4, 600);
        for (heed::size_type i = 0; i < t[s].n; i += 100)
          t[s].append(one, 0, i, (std::min)(t[s].n, i + 100));
        heed::rows<float> out(n_q, 4 * 6);
        heed::reference_cached_attention_into(of(query.data(), b, 1, 8), one,
                                              of(out.data(), 0, 1, 6), {}, options,
                                              heed::mask_function(late));
        CHECK(out == reference.middleRows(b * n_q, n_q));
        heed::cached_attention_into(of(query.data(), b, 1, 8), one, of(out.data(), 0, 1, 6), {},
                                    options, memory, heed::mask_function(late));
        CHECK(out == all.middleRows(b * n_q, n_q));
      }
      CHECK((all - reference).cwiseAbs().maxCoeff() < 1e-5f);
    }
  }
  entries[3] = 3;
  heed::rows<float> out(4, 4 * 6);
  testing::check_refused(
      [&] {
        heed::workspace memory;
        heed::cached_attention_into(heed::bnhd(t[1].query.data(), 4, 1, 4, 8), batch,
                                    heed::bnhd(out.data(), 4, 1, 4, 6), {}, {}, memory);
      },
      {"heed::kv_cache::batch", "no sequence 3 in a batch of 3"});
  testing::check_refused([&] { cache.batch(entries); }, {"heed::kv_cache::batch", "3"});
}

TEMPLATE_TEST_CASE("first_keys in a cache: the sequence begins at its first key", "", double,
                   std::int8_t) {
  const tokens<double> t(40, 4, 2, 8, 6, 1);
  const heed::size_type first = 9;
  const std::vector<heed::size_type> list{first};
  const heed::size_type window = GENERATE(heed::size_type(-1), heed::size_type(6));
  heed::attention_options options = causal();
  options.window_left = window;
  const auto bend = [](double score, heed::size_type, heed::size_type h, heed::size_type i,
                       heed::size_type j) { return score + 0.125 * double((3 * i + j + h) % 5); };
  heed::kv_cache<TestType> padded(1, 2, 8, 6, 4, window), whole(1, 2, 8, 6);
  heed::paged_kv_cache<TestType> pages(20, 4, 2, 8, 6);
  const std::vector<heed::size_type> name{pages.add_sequence()};
  heed::rows<double> nowhere =
      heed::rows<double>::Constant(first, 2 * 8, std::numeric_limits<double>::quiet_NaN());
  const auto padding = heed::bnhd(nowhere.data(), 1, first, 2, 8),
             value_padding = heed::bnhd(nowhere.data(), 1, first, 2, 6);
  padded.append(0, padding, value_padding);
  pages.append(name[0], padding, value_padding);
  for (heed::size_type n = 0; n < 40; n += 5) {
    t.append(padded, 0, n, n + 5);
    t.append(whole, 0, n, n + 5);
    t.append(pages, name[0], n, n + 5);
    const auto check = [&](const auto& cache) {
      CHECK(testing::reference_from(cache, t, n, n + 5, options, heed::score_function(bend),
                                    heed::dropout(0.2, 3), heed::first_keys(list)) ==
            testing::reference_from(whole, t, n, n + 5, options, heed::score_function(bend),
                                    heed::dropout(0.2, 3)));
      for (const heed::isa target : heed::available_isas()) {
        CAPTURE(heed::name(target), n);
        heed::attention_options on = options;
        on.execution.target = target;
        const heed::rows<double> got = testing::attention_from(
                                     cache, t, n, n + 5, on, heed::score_function(bend),
                                     heed::dropout(0.2, 3), heed::first_keys(list)),
                                 want = testing::attention_from(whole, t, n, n + 5, on,
                                                                heed::score_function(bend),
                                                                heed::dropout(0.2, 3));
        CHECK((got - want).cwiseAbs().maxCoeff() < 1e-14);
      }
    };
    check(padded);
    check(pages.batch(name));
  }
  const std::vector<heed::size_type> past{50};
  testing::check_refused(
      [&] { testing::reference_from(padded, t, 39, 40, options, heed::first_keys(past)); },
      {"first_keys: entry 0 is 50", "end at 49"});
}

TEST_CASE("functions and dropout see tokens of the sequence, however it is cut") {
  const tokens<double> t(40, 4, 2, 8, 6, 1);
  heed::attention_options options = causal();
  const heed::size_type window = GENERATE(heed::size_type(-1), heed::size_type(6));
  options.window_left = window;
  const auto bend = [](auto score, heed::size_type, heed::size_type h, heed::size_type i,
                       heed::size_type j) {
    using scalar = decltype(score);
    return (i + 2 * j) % 7 == 0 ? -std::numeric_limits<scalar>::infinity()
                                : score + scalar(0.125) * scalar((3 * i + j + h) % 5);
  };
  const auto shows = [](heed::size_type, heed::size_type h, heed::size_type i, heed::size_type j) {
    return i == j || (3 * i + j + h) % 4 != 0;
  };
  const auto in_one_call = [&](auto zero) {
    using Scalar = decltype(zero);
    const tokens<Scalar> same(40, 4, 2, 8, 6, 1);
    heed::rows<Scalar> out(40, 24);  // by no cache at all
    heed::reference_multi_head_attention_into(
        same.query_view(0, 40), same.key_view(0, 40), same.value_view(0, 40),
        heed::bnhd(out.data(), 1, 40, 4, 6), {}, options, heed::score_function(bend),
        heed::mask_function(shows), heed::dropout(0.3, 5));
    return out;
  };
  const heed::rows<double> whole = in_one_call(0.0);
  const heed::rows<long double> exact = in_one_call(0.0L);
  for (const std::vector<heed::size_type>& cut : cuts) {
    heed::kv_cache<double> cache(1, 2, 8, 6, 4, window);
    heed::paged_kv_cache<double> pages(12, 4, 2, 8, 6);
    const std::vector<heed::size_type> sequence{pages.add_sequence()};
    heed::rows<double> reference(40, 24), fused(40, 24), paged(40, 24);
    for (std::size_t n = 0; n + 1 < cut.size(); ++n) {
      const heed::size_type first = cut[n], count = cut[n + 1] - first;
      const auto run = [&](const auto& attend, const auto& from) {
        return attend(from, t, first, first + count, options, heed::score_function(bend),
                      heed::mask_function(shows), heed::dropout(0.3, 5));
      };
      t.append(cache, 0, first, first + count);
      t.append(pages, sequence[0], first, first + count);
      const auto by_reference = [](const auto&... arguments) {
        return testing::reference_from(arguments...);
      };
      const auto by_kernels = [](const auto&... arguments) {
        return testing::attention_from(arguments...);
      };
      reference.middleRows(first, count) = run(by_reference, cache);
      fused.middleRows(first, count) = run(by_kernels, cache);
      paged.middleRows(first, count) = run(by_kernels, pages.batch(sequence));
    }
    CAPTURE(cut, window);
    CHECK(reference == whole);
    testing::check_as_exact_as(fused, whole, exact);
    testing::check_as_exact_as(paged, whole, exact);
  }
}

TEST_CASE("a cache that has been truncated is as if it had never seen the rest") {
  const tokens<double> t(20, 2, 2, 8, 8, 2);
  heed::kv_cache<double> fresh(1, 2, 8, 8), cut(1, 2, 8, 8);
  t.append(fresh, 0, 0, 6);
  t.append(fresh, 0, 12, 20);
  t.append(cut, 0, 0, 12);
  cut.truncate(0, 6);
  CHECK(cut.length(0) == 6);
  CHECK(cut.position(0) == 6);
  t.append(cut, 0, 12, 20);
  CHECK(testing::reference_from(cut, t, 12, 20, causal()) ==
        testing::reference_from(fresh, t, 12, 20, causal()));
  cut.clear();
  CHECK(cut.length(0) == 0);
  t.append(cut, 0, 0, 3);
  heed::kv_cache<double> other(1, 2, 8, 8);
  t.append(other, 0, 0, 3);
  CHECK(testing::reference_from(cut, t, 0, 3, {}) == testing::reference_from(other, t, 0, 3, {}));
}

TEMPLATE_TEST_CASE(
    "a rolling cache gives what the whole one gives under its window, and does not grow", "",
    double, std::int8_t) {
  constexpr heed::size_type window = 7, n = 200;
  const tokens<double> t(n, 2, 1, 8, 8, 3);
  heed::attention_options options = causal();
  options.window_left = window;
  const heed::size_type step =
      GENERATE(heed::size_type(1), heed::size_type(3), heed::size_type(20));
  heed::kv_cache<TestType> whole(1, 1, 8, 8), rolling(1, 1, 8, 8, 2 * window + step, window);
  const heed::size_type reserved = rolling.bytes();
  for (heed::size_type first = 0; first < n; first += step) {
    const heed::size_type end = (std::min)(first + step, n);
    t.append(whole, 0, first, end);
    t.append(rolling, 0, first, end);
    REQUIRE(rolling.position(0) == end);
    REQUIRE(testing::reference_from(rolling, t, first, end, options) ==
            testing::reference_from(whole, t, first, end, options));
  }
  CHECK(rolling.length(0) <= window + step);
  CHECK(rolling.bytes() == reserved);
}

TEMPLATE_TEST_CASE("keep_first: the first tokens and the window, and positions within the cache",
                   "", double, std::int8_t) {
  const heed::size_type window = 6, keep = 4,
                        step = GENERATE(heed::size_type(1), heed::size_type(3));
  const tokens<double> t(60, 4, 2, 8, 6, 1);
  heed::kv_cache<TestType> cache(1, 2, 8, 6, 2 * (window + keep) + step, window, keep);
  const heed::size_type reserved = cache.bytes();
  const heed::row_vector<double> slopes = heed::alibi_slopes<double>(4);
  const auto bend = [](double score, heed::size_type, heed::size_type h, heed::size_type i,
                       heed::size_type j) { return score + 0.125 * double((3 * i + j + h) % 5); };
  CHECK(cache.keep_first() == keep);
  CHECK(cache.window() == -1);
  for (heed::size_type first = 0; first < 60; first += step) {
    t.append(cache, 0, first, first + step);
    // the same tokens as a sequence of their own
    heed::kv_cache<TestType> whole(1, 2, 8, 6);
    const heed::size_type recent = (std::max)(first - window, keep);
    t.append(whole, 0, 0, (std::min)(keep, first + step));
    if (first + step > keep) t.append(whole, 0, recent, first + step);
    CAPTURE(first);
    REQUIRE(cache.length(0) == whole.length(0));
    CHECK(cache.position(0) == first + step);
    const auto same = [&](const auto& from) { return from(cache) == from(whole); };
    CHECK(same([&](const auto& c) {
      return testing::reference_from(c, t, first, first + step, causal(), heed::alibi(slopes),
                                     heed::score_function(bend), heed::dropout(0.2, 5));
    }));
    CHECK(same([&](const auto& c) {
      return testing::attention_from(c, t, first, first + step, causal(), heed::alibi(slopes),
                                     heed::score_function(bend), heed::dropout(0.2, 5));
    }));
  }
  CHECK(cache.dropped()[0] == 60 - cache.length(0));
  CHECK(cache.bytes() == reserved);
  testing::check_refused([&] { cache.truncate(0, window + keep - 1); },
                         {"heed::kv_cache::truncate", "length 9", "10"});
  heed::kv_cache<TestType> moved(std::move(cache));
  CHECK(moved.keep_first() == keep);
  testing::check_refused([&] { heed::kv_cache<TestType>(1, 2, 8, 6, 4, 6, -1); },
                         {"heed::kv_cache: keep_first", "-1"});
}

TEST_CASE("a rolling cache can be cut back as far as its history reaches, and no further") {
  constexpr heed::size_type window = 5;
  const tokens<double> t(30, 2, 1, 8, 8, 9);
  heed::attention_options options = causal();
  options.window_left = window;
  heed::kv_cache<double> whole(1, 1, 8, 8), rolling(1, 1, 8, 8, 4, window);
  for (heed::size_type first = 0; first < 18; first += 3) {
    t.append(whole, 0, first, first + 3);
    t.append(rolling, 0, first, first + 3);
  }
  REQUIRE(rolling.length(0) == window + 3);
  REQUIRE(rolling.dropped()[0] == 10);
  testing::check_refused([&] { rolling.truncate(0, 4); },
                         {"heed::kv_cache::truncate", "length 4", "window 5", "dropped the 10"});
  CHECK(rolling.length(0) == window + 3);
  testing::check_refused(
      [&] { testing::attention_from(rolling, t, 14, 18, options); },
      {"cached_attention_into", "window", "1 tokens before the 8", "dropped 10"});
  rolling.truncate(0, window + 1);
  whole.truncate(0, 16);
  CHECK(rolling.position(0) == 16);
  CHECK(testing::reference_from(rolling, t, 15, 16, options) ==
        testing::reference_from(whole, t, 15, 16, options));
  rolling.truncate(0, window);
  whole.truncate(0, 15);
  t.append(rolling, 0, 20, 24);
  t.append(whole, 0, 20, 24);
  CHECK(rolling.position(0) == 19);
  CHECK(testing::reference_from(rolling, t, 20, 24, options) ==
        testing::reference_from(whole, t, 20, 24, options));

  rolling.clear(0);
  CHECK(rolling.position(0) == 0);
  whole.clear();
  t.append(rolling, 0, 0, 8);  // nothing dropped yet: any cut is right
  t.append(whole, 0, 0, 8);
  rolling.truncate(0, 2);
  whole.truncate(0, 2);
  t.append(rolling, 0, 8, 10);
  t.append(whole, 0, 8, 10);
  CHECK(testing::reference_from(rolling, t, 8, 10, options) ==
        testing::reference_from(whole, t, 8, 10, options));
}

TEST_CASE("sequences of different lengths do not know of each other") {
  const tokens<double> t(20, 2, 2, 8, 8, 4);
  const heed::size_type lengths[] = {0, 1, 20, 13};
  heed::kv_cache<double> together(4, 2, 8, 8, 1);
  for (heed::size_type b = 0; b < 4; ++b) t.append(together, b, 0, lengths[b]);
  auto query = t.query_view(0, 3);
  query.batch = 4, query.batch_stride = 0;  // the same queries for all
  heed::rows<double> out(4 * 3, 16);
  heed::reference_cached_attention_into(query, together, heed::bnhd(out.data(), 4, 3, 2, 8), {},
                                        causal());
  for (heed::size_type b = 0; b < 4; ++b) {
    heed::kv_cache<double> alone(1, 2, 8, 8);
    t.append(alone, 0, 0, lengths[b]);
    CHECK(out.middleRows(3 * b, 3) == testing::reference_from(alone, t, 0, 3, causal()));
  }
}

TEST_CASE("an int8 row is wrong by at most half of its step") {
  const tokens<float> t(30, 2, 2, 24, 8, 5);
  heed::kv_cache<std::int8_t> cache(1, 2, 24, 8);
  t.append(cache, 0, 0, 30);
  const auto check = [](const auto& stored, const heed::tensor_view<const float>& exact) {
    for (heed::size_type h = 0; h < 2; ++h) {
      const auto rows = stored.head(0, h, 0, 30);
      for (heed::size_type j = 0; j < 30; ++j) {
        float largest = 0;
        for (heed::size_type c = 0; c < exact.cols; ++c)
          largest = (std::max)(largest, std::abs(exact(0, h, j, c)));
        const double half_step = double(largest) / 127 / 2;
        for (heed::size_type c = 0; c < exact.cols;
             ++c)  // and the roundings of the scale and its inverse
          CHECK(std::abs(rows.template at<double>(j, c) - double(exact(0, h, j, c))) <=
                half_step * (1 + 1e-4));
      }
    }
  };
  check(cache.keys(), t.key_view(0, 30));
  check(cache.values(), t.value_view(0, 30));
}

TEST_CASE("an int8 row of zeros stays zero") {
  tokens<float> t(1, 1, 1, 4, 4, 6);
  t.key.setZero();
  heed::kv_cache<std::int8_t> cache(1, 1, 4, 4);
  t.append(cache, 0, 0, 1);
  for (heed::size_type c = 0; c < 4; ++c) CHECK(cache.keys().head(0, 0, 0, 1).at<float>(0, c) == 0);
}

TEST_CASE("an int8 row with an infinity or NaN is NaN throughout") {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    tokens<float> t(2, 1, 1, 4, 4, 6);
    t.key(0, 2) = bad;
    heed::kv_cache<std::int8_t> cache(1, 1, 4, 4);
    t.append(cache, 0, 0, 2);
    const auto rows = cache.keys().head(0, 0, 0, 2);
    for (heed::size_type c = 0; c < 4; ++c) {
      CHECK(std::isnan(rows.at<float>(0, c)));
      CHECK(std::isfinite(rows.at<float>(1, c)));
    }
  }
}

TEST_CASE("the bytes of a cache") {
  static_assert(heed::kv_cache_bytes(32, 8, 128, 1000, 2) == 2ll * 32 * 8 * 128 * 1000 * 2, "");
  CHECK(heed::kv_cache<float>(3, 2, 8, 6, 10).bytes() == 3 * 2 * 10 * (8 + 6) * 4);
  CHECK(heed::kv_cache<std::int8_t>(3, 2, 8, 6, 10).bytes() == 3 * 2 * 10 * (8 + 6 + 2 * 4));
}

TEST_CASE("a cache refuses what does not fit, and holds what it held") {
  const tokens<double> t(6, 2, 2, 8, 4, 7);
  heed::kv_cache<double> cache(2, 2, 8, 4, 4, 5);
  t.append(cache, 0, 0, 3);
  const auto refuse_append = [&](const auto& change, const std::vector<std::string>& words) {
    auto key = t.key_view(0, 2);
    auto value = t.value_view(0, 2);
    change(key, value);
    testing::check_refused([&] { cache.append(0, key, value); }, words);
  };
  refuse_append([](auto& key, auto&) { key.cols = 7; },
                {"heed::kv_cache::append", "key: head_dim 7", "key_dim 8"});
  refuse_append([](auto&, auto& value) { value.cols = 8; }, {"value: head_dim 8", "value_dim 4"});
  refuse_append([](auto&, auto& value) { value.rows = 1; }, {"value: tokens 1", "2"});
  refuse_append([](auto& key, auto&) { key.heads = 1; }, {"key: num_kv_heads 1", "2"});
  refuse_append([](auto& key, auto& value) { key.batch = value.batch = 2; }, {"key: batch 2", "1"});
  testing::check_refused([&] { cache.append(2, t.key_view(0, 1), t.value_view(0, 1)); },
                         {"sequence 2", "2"});
  testing::check_refused([&] { cache.append(t.key_view(0, 1), t.value_view(0, 1)); },
                         {"key: batch 1", "2"});
  testing::check_refused([&] { cache.truncate(0, 4); }, {"heed::kv_cache::truncate", "4", "3"});
  testing::check_refused([&] { heed::kv_cache<float>(1, 1, -1, 4); }, {"heed::kv_cache", "-1"});
  testing::check_refused([&] { heed::kv_cache<float>(1, 1, 4, 4, 4, -2); },
                         {"heed::kv_cache", "window", "-2"});
  CHECK(cache.length(0) == 3);
  CHECK(cache.length(1) == 0);

  // more than a rolling cache keeps
  heed::kv_cache<double> rolling(1, 2, 8, 4, 4, 5);
  t.append(rolling, 0, 0, 3);
  heed::attention_options options = causal();
  testing::check_refused([&] { testing::attention_from(rolling, t, 0, 3, options); },
                         {"cached_attention_into", "window_left -1", "5"});
  options.window_left = 6;
  testing::check_refused([&] { testing::attention_from(rolling, t, 0, 3, options); },
                         {"window_left 6", "5"});
  options.window_left = 5;
  const std::vector<heed::size_type> lengths{2};
  testing::check_refused(
      [&] { testing::attention_from(rolling, t, 0, 3, options, heed::key_lengths(lengths)); },
      {"key_lengths"});
  const auto shows = [](heed::size_type, heed::size_type, heed::size_type, heed::size_type) {
    return true;
  };
  const auto blocks = heed::block_mask::of(shows, 1, 1, 3, 3);
  testing::check_refused(
      [&] {
        testing::attention_from(rolling, t, 0, 3, options, heed::mask_function(shows, blocks));
      },
      {"cached_attention_into", "blocks and mask_function separately"});
}

TEST_CASE("a cache answers for its own sequences only, and reserves no room below 0") {
  heed::kv_cache<float> cache(2, 1, 4, 4, 8);
  for (const heed::size_type b : {heed::size_type(-1), heed::size_type(2)}) {
    testing::check_refused([&] { cache.length(b); },
                           {"heed::kv_cache::length", std::to_string(b), "2"});
    testing::check_refused([&] { cache.position(b); },
                           {"heed::kv_cache::position", std::to_string(b), "2"});
  }
  testing::check_refused([&] { cache.reserve(-5); }, {"heed::kv_cache::reserve: capacity", "-5"});
  CHECK(cache.capacity() == 8);
  cache.reserve(3);
  CHECK(cache.capacity() == 8);
}

TEST_CASE("sizes whose product no index can hold are refused, with the sizes") {
  constexpr heed::size_type most = (std::numeric_limits<heed::size_type>::max)();
  const std::string huge = std::to_string(most);
  testing::check_refused([] { heed::kv_cache<float>(most, 2, 4, 4); }, {"heed::kv_cache:", huge});
  testing::check_refused([] { heed::kv_cache<float>(1, 2, 4, 4, most); },
                         {"heed::kv_cache:", huge});
  testing::check_refused([] { heed::kv_cache<float>(most, 0, 4, 4); }, {"heed::kv_cache:", huge});
  heed::kv_cache<std::int8_t> cache(2, 2, 4, 4, 8);
  testing::check_refused([&] { cache.reserve(most / 4); },
                         {"heed::kv_cache::reserve:", std::to_string(most / 4)});
  CHECK(cache.capacity() == 8);
  const float zero = 0;
  const heed::tensor_view<const float> endless{&zero, 1, 2, most, 4, 0, 0, 0, 0};
  testing::check_refused([&] { cache.append(0, endless, endless); },
                         {"heed::kv_cache::append", huge});
  CHECK(cache.length(0) == 0);
  testing::check_refused([] { heed::paged_kv_cache<float>(most, 16, 2, 4, 4); },
                         {"heed::paged_kv_cache:", huge});
  testing::check_refused([] { heed::paged_kv_cache<float>(1, most, 2, 0, 4); },
                         {"heed::paged_kv_cache:", huge});

  CHECK(heed::kv_cache_bytes(1, 0, 4, most, 2) == 0);
  testing::check_refused([] { heed::kv_cache_bytes(2, 2, 4, most, 2); },
                         {"heed::kv_cache_bytes:", huge});
  testing::check_refused([] { heed::kv_cache_bytes(2, 2, -4, 8, 2); },
                         {"heed::kv_cache_bytes:", "head_dim -4"});
}

TEST_CASE("int8 rows of any magnitude that floats have read back within half a scale") {
  // The scale is max / 127, at most one subnormal more; beyond half of it come the roundings of the
  // quotient, of the scale and of the product that reads back, each at most 128 times eps / 2 of
  // the scale where that is normal.
  constexpr float tiny = std::numeric_limits<float>::denorm_min();
  for (const float magnitude :
       {std::numeric_limits<float>::max(), 3e38f, 1e30f, 1.0f, 1e-30f, 4e-37f, 3e-37f, 1e-37f,
        1e-38f, 1e-40f, 1e-43f, 1e-44f, 178 * tiny, 127 * tiny, 64 * tiny, 63 * tiny, tiny, 0.0f}) {
    CAPTURE(magnitude);
    const float row[] = {magnitude, -magnitude, magnitude / 2, magnitude / 3, 0};
    heed::kv_cache<std::int8_t> cache(1, 1, 5, 5);
    const heed::tensor_view<const float> view = heed::bhnd(row, 1, 1, 1, 5);
    cache.append(view, view);
    const auto keys = cache.keys();
    const float scale = keys.scales(0, 0, 0, 0);
    const double allowed = double(scale) * (0.5 + 3 * 128 * 6e-8);
    CHECK(double(scale) <= (double(magnitude) / 127 + double(tiny)) * (1 + 6e-8));
    for (heed::size_type c = 0; c < 5; ++c) {
      const float read = scale * float(keys.elements(0, 0, 0, c));
      CHECK(std::abs(double(read) - double(row[c])) <= allowed);
    }
  }
}

TEST_CASE(
    "a rolling cache whose capacity is just past its window does not move the window at each "
    "token") {
  constexpr heed::size_type window = 32;
  heed::kv_cache<double> cache(1, 1, 1, 1, window + 1, window);
  heed::size_type moves = 0, first = 0;
  for (heed::size_type t = 0; t < 20 * window; ++t) {
    const double token = double(t);
    const heed::tensor_view<const double> view = heed::bhnd(&token, 1, 1, 1, 1);
    cache.append(view, view);
    const heed::size_type now = cache.keys().first_rows[0];
    moves += t > window && now <= first;  // each token drops one by then
    first = now;
    CHECK(cache.keys().elements(0, 0, now + cache.length(0) - 1, 0) == token);
  }
  CHECK(moves <= 20);
  CHECK(cache.capacity() <= 2 * (window + 1));
}

TEST_CASE("a cache that was moved from is empty, and can be given another") {
  const auto tokens = testing::random_rows<float>(3, 4, 1);
  heed::kv_cache<float> cache(1, 1, 4, 4);
  cache.append(heed::view(tokens), heed::view(tokens));
  const heed::kv_cache<float> moved(std::move(cache));
  CHECK(moved.length(0) == 3);
  CHECK(cache.batch() == 0);
  CHECK(cache.capacity() == 0);
  cache.reserve(500);
  CHECK(cache.bytes() == 0);
  testing::check_refused([&] { cache.append(heed::view(tokens), heed::view(tokens)); },
                         {"key: batch 1", "0"});
  heed::rows<float> out(1, 4);
  heed::workspace memory;
  testing::check_refused(
      [&] {
        heed::cached_attention_into(heed::view(tokens.topRows(1)), cache, heed::writable_view(out),
                                    {}, {}, memory);
      },
      {"key: batch 0", "query's batch 1"});
  cache = moved;
  cache.append(heed::view(tokens), heed::view(tokens));
  CHECK(cache.length(0) == 6);
  heed::kv_cache<float> other(2, 1, 4, 4);
  other = std::move(cache);
  CHECK(other.length(0) == 6);
  CHECK(cache.batch() == 0);
}
