#include <heed/paged_kv_cache.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "support/refusal.hpp"
#include "support/tokens.hpp"

using testing::tokens;

namespace {

constexpr heed::size_type page_rows = 4;

heed::attention_options causal() {
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  return options;
}

/// The last three queries of the tokens against one sequence.
template <typename Cache>
heed::rows<double> last_rows(const Cache& cache, heed::size_type sequence,
                             const tokens<double>& t) {
  const std::vector<heed::size_type> one{sequence};
  return testing::reference_from(cache.batch(one), t, t.n - 3, t.n, causal());
}

/// What a contiguous cache gives for these tokens, appended one piece after the other.
template <typename Stored>
heed::rows<double> expected(const tokens<double>& t,
                            const std::vector<const tokens<double>*>& pieces) {
  heed::kv_cache<Stored> cache(1, t.kv_heads, t.d_k, t.d_v);
  for (const tokens<double>* piece : pieces) piece->append(cache, 0, 0, piece->n);
  return testing::reference_from(cache, t, t.n - 3, t.n, causal());
}

}  // namespace

TEMPLATE_TEST_CASE("pages hold what a contiguous cache holds, in whatever order", "", double,
                   std::int8_t) {
  const tokens<double> t(23, 4, 2, 8, 6, 1);
  const heed::size_type step = GENERATE(heed::size_type(1), heed::size_type(3), heed::size_type(4),
                                        heed::size_type(9), heed::size_type(23));
  heed::paged_kv_cache<TestType> cache(20, page_rows, 2, 8, 6);
  const heed::size_type a = cache.add_sequence(), b = cache.add_sequence();
  heed::kv_cache<TestType> whole(1, 2, 8, 6);
  for (heed::size_type first = 0; first < 23; first += step) {
    const heed::size_type end = (std::min)(first + step, heed::size_type(23));
    t.append(cache, a, first, end);
    t.append(cache, b, first, end);  // takes pages between those of a
    t.append(whole, 0, first, end);
    const std::vector<heed::size_type> one{a};
    REQUIRE(testing::reference_from(cache.batch(one), t, first, end, causal()) ==
            testing::reference_from(whole, t, first, end, causal()));
  }
  CHECK(cache.length(a) == 23);
  CHECK(cache.free_pages() == 20 - 2 * 6);
  CHECK(last_rows(cache, a, t) == last_rows(cache, b, t));
}

TEST_CASE(
    "a fork shares pages until one of the two writes, and neither sees what the other writes") {
  const tokens<double> prefix(10, 2, 1, 8, 8, 2), first(7, 2, 1, 8, 8, 3), second(5, 2, 1, 8, 8, 4);
  heed::paged_kv_cache<double> cache(20, page_rows, 1, 8, 8);
  const heed::size_type a = cache.add_sequence();
  prefix.append(cache, a, 0, 10);
  REQUIRE(cache.free_pages() == 17);
  const heed::size_type b = cache.fork(a);
  CHECK(cache.free_pages() == 17);
  second.append(cache, b, 0, 5);  // a copy of the half-full page, and one more
  CHECK(cache.free_pages() == 15);
  first.append(cache, a, 0, 7);  // goes on in its own
  CHECK(cache.free_pages() == 13);
  CHECK(last_rows(cache, a, first) == expected<double>(first, {&prefix, &first}));
  CHECK(last_rows(cache, b, second) == expected<double>(second, {&prefix, &second}));

  cache.remove_sequence(a);
  CHECK(last_rows(cache, b, second) == expected<double>(second, {&prefix, &second}));
  cache.remove_sequence(b);
  CHECK(cache.free_pages() == 20);
}

TEST_CASE("a fork that is truncated leaves the other sequence whole") {
  const tokens<double> prefix(10, 2, 1, 8, 8, 5), more(4, 2, 1, 8, 8, 6);
  const heed::size_type keep = GENERATE(heed::size_type(0), heed::size_type(3), heed::size_type(4),
                                        heed::size_type(6), heed::size_type(8), heed::size_type(9));
  heed::paged_kv_cache<double> cache(20, page_rows, 1, 8, 8);
  const heed::size_type a = cache.add_sequence();
  prefix.append(cache, a, 0, 10);
  const heed::size_type b = cache.fork(a);
  cache.truncate(b, keep);
  more.append(cache, b, 0, 4);
  CHECK(last_rows(cache, a, prefix) == expected<double>(prefix, {&prefix}));
  heed::kv_cache<double> plain(1, 1, 8, 8);
  prefix.append(plain, 0, 0, keep);
  more.append(plain, 0, 0, 4);
  CHECK(last_rows(cache, b, more) == testing::reference_from(plain, more, 1, 4, causal()));
  cache.remove_sequence(a);
  CHECK(last_rows(cache, b, more) == testing::reference_from(plain, more, 1, 4, causal()));
  cache.remove_sequence(b);
  CHECK(cache.free_pages() == 20);
}

TEST_CASE("a pool without pages refuses tokens and leaves everything as it was") {
  const tokens<double> t(9, 2, 1, 8, 8, 7);
  heed::paged_kv_cache<double> cache(4, page_rows, 1, 8, 8);
  const heed::size_type a = cache.add_sequence();
  t.append(cache, a, 0, 6);
  const heed::size_type b = cache.fork(a);
  t.append(cache, b, 0, 1);  // copies the shared page: one is left
  REQUIRE(cache.free_pages() == 1);
  const auto before_a = last_rows(cache, a, t), before_b = last_rows(cache, b, t);
  testing::check_refused([&] { t.append(cache, b, 0, 9); },
                         {"heed::paged_kv_cache::append", "9 tokens", "2 pages", "1 are free"});
  CHECK(cache.length(b) == 7);
  CHECK(cache.free_pages() == 1);
  CHECK(last_rows(cache, a, t) == before_a);
  CHECK(last_rows(cache, b, t) == before_b);
  t.append(cache, b, 0, 5);  // what fits still goes in
  CHECK(cache.free_pages() == 0);

  // a copy of a shared page alone needs a page
  const heed::size_type c = cache.fork(a);
  testing::check_refused([&] { t.append(cache, c, 0, 1); }, {"1 tokens", "1 pages", "0 are free"});
  CHECK(cache.length(c) == 6);
  CHECK(last_rows(cache, c, t) == before_a);
}

TEST_CASE("a batch takes any sequences, of any lengths, in any order") {
  const tokens<double> t(20, 2, 1, 8, 8, 8);
  heed::paged_kv_cache<double> cache(30, page_rows, 1, 8, 8);
  const heed::size_type lengths[] = {0, 5, 20, 8};
  for (const heed::size_type length : lengths) t.append(cache, cache.add_sequence(), 0, length);
  const std::vector<heed::size_type> order{2, 0, 3, 2};
  auto query = t.query_view(17, 20);
  query.batch = 4, query.batch_stride = 0;  // the same queries for all
  heed::rows<double> out(4 * 3, 16);
  heed::reference_cached_attention_into(query, cache.batch(order),
                                        heed::bnhd(out.data(), 4, 3, 2, 8), {}, causal());
  for (heed::size_type n = 0; n < 4; ++n)
    CHECK(out.middleRows(3 * n, 3) == last_rows(cache, order[std::size_t(n)], t));
}

TEST_CASE("a batch that is kept sees the cache and the list as they are") {
  const tokens<double> t(20, 2, 1, 8, 8, 8);
  heed::paged_kv_cache<double> cache(30, page_rows, 1, 8, 8);
  std::vector<heed::size_type> one{cache.add_sequence()};
  const auto kept = cache.batch(one);
  for (const heed::size_type n : {2, 5, 20}) {  // by then its table has moved
    t.append(cache, 0, cache.length(0), n);
    t.append(cache, cache.add_sequence(), 0, 1);  // and so has the list of sequences
    CHECK(testing::reference_from(kept, t, n - 2, n, causal()) ==
          testing::reference_from(cache.batch(one), t, n - 2, n, causal()));
  }
  one[0] = 1;
  CHECK(testing::reference_from(kept, t, 0, 1, causal()) ==
        testing::reference_from(cache.batch(one), t, 0, 1, causal()));
  cache.remove_sequence(1);
  testing::check_refused([&] { testing::reference_from(kept, t, 0, 1, causal()); },
                         {"heed::paged_kv_cache::batch", "sequence 1"});
}

TEST_CASE("a paged cache refuses what does not fit") {
  const tokens<double> t(6, 2, 1, 8, 4, 9);
  heed::paged_kv_cache<double> cache(4, page_rows, 1, 8, 4);
  const heed::size_type a = cache.add_sequence();
  testing::check_refused([&] { heed::paged_kv_cache<float>(1, 0, 1, 1, 1); },
                         {"heed::paged_kv_cache", "page_rows 0"});
  testing::check_refused([&] { t.append(cache, 1, 0, 1); }, {"append", "sequence 1"});
  testing::check_refused([&] { cache.append(a, t.key_view(0, 2), t.value_view(0, 1)); },
                         {"value: tokens 1", "2"});
  testing::check_refused([&] { cache.append(a, t.value_view(0, 2), t.value_view(0, 2)); },
                         {"key: head_dim 4", "key_dim 8"});
  testing::check_refused([&] { cache.reserve(a, 17); },
                         {"heed::paged_kv_cache::reserve", "[0, 16]", "17"});
  testing::check_refused([&] { cache.reserve(a, -1); }, {"heed::paged_kv_cache::reserve", "-1"});
  testing::check_refused([&] { cache.truncate(a, 1); }, {"truncate", "1", "0"});
  cache.remove_sequence(a);
  testing::check_refused([&] { cache.fork(a); }, {"fork", "sequence 0"});
  const std::vector<heed::size_type> gone{a};
  testing::check_refused([&] { cache.batch(gone); }, {"batch", "sequence 0"});
  testing::check_refused([&] { cache.length(a); }, {"heed::paged_kv_cache::length:", "sequence 0"});
  testing::check_refused([&] { cache.remove_sequence(a); },
                         {"heed::paged_kv_cache::remove_sequence:", "sequence 0"});
  testing::check_refused([&] { cache.remove_sequence(-1); },
                         {"heed::paged_kv_cache::remove_sequence:", "sequence -1"});
  heed::index_list nowhere;
  nowhere.size = 2;
  testing::check_refused([&] { cache.batch(nowhere); },
                         {"heed::paged_kv_cache::batch", "2 entries at a null address"});
  CHECK(cache.add_sequence() == a);  // its name is free again
}

TEST_CASE(
    "a paged cache that was moved from has no pages and no sequences, and can be given another") {
  const tokens<double> t(10, 2, 1, 8, 8, 7);
  heed::paged_kv_cache<double> cache(5, page_rows, 1, 8, 8);
  const heed::size_type a = cache.add_sequence();
  t.append(cache, a, 0, 10);
  const heed::rows<double> before = last_rows(cache, a, t);
  heed::paged_kv_cache<double> moved(std::move(cache));
  CHECK(last_rows(moved, a, t) == before);

  CHECK(cache.bytes() == 0);  // NOLINT: moved from on purpose
  CHECK(cache.free_pages() == 0);
  testing::check_refused([&] { cache.length(a); },
                         {"heed::paged_kv_cache::length", "no sequence 0 among 0"});
  const heed::size_type empty = cache.add_sequence();
  CHECK(cache.length(empty) == 0);
  CHECK(last_rows(cache, empty, t).isZero(0));
  testing::check_refused([&] { t.append(cache, empty, 0, 1); },
                         {"1 tokens need 1 pages, but only 0 are free"});

  cache = moved;
  CHECK(last_rows(cache, a, t) == before);
  auto& same = cache;
  cache = std::move(same);
  cache = same;
  CHECK(last_rows(cache, a, t) == before);
  CHECK(cache.free_pages() == 2);
  moved = heed::paged_kv_cache<double>(1, 1, 1, 8, 8);
  CHECK(moved.page_rows() == 1);
  CHECK(moved.free_pages() == 1);
}

namespace {

using bytes = std::vector<unsigned char>;

template <typename Stored>
bytes saved(const heed::paged_kv_cache<Stored>& cache) {
  bytes all(std::size_t(cache.saved_bytes()));
  cache.save(all.data(), cache.saved_bytes());
  return all;
}
template <typename Stored>
bytes swapped(heed::paged_kv_cache<Stored>& cache, heed::size_type s) {
  bytes all(std::size_t(cache.swap_bytes(s)));
  cache.swap_out(s, all.data(), heed::size_type(all.size()));
  return all;
}

}  // namespace

TEST_CASE("sequences are reordered at once: each is a copy of what another was") {
  const tokens<double> prefix(10, 2, 1, 8, 8, 2), a(5, 2, 1, 8, 8, 3), b(7, 2, 1, 8, 8, 4),
      more(4, 2, 1, 8, 8, 5);
  heed::paged_kv_cache<double> cache(20, page_rows, 1, 8, 8);
  prefix.append(cache, cache.add_sequence(), 0, 10);
  for (int n = 0; n < 2; ++n) cache.fork(0);
  a.append(cache, 0, 0, 5);
  b.append(cache, 1, 0, 7);
  const auto of_0 = last_rows(cache, 0, a), of_1 = last_rows(cache, 1, a),
             of_2 = last_rows(cache, 2, a);
  const std::vector<std::int32_t> swap{1, 0, 1};  // sequence 2 is dropped
  cache.reorder(swap);
  CHECK(last_rows(cache, 0, a) == of_1);
  CHECK(last_rows(cache, 1, a) == of_0);
  CHECK(last_rows(cache, 2, a) == of_1);
  CHECK(cache.length(0) == 17);
  CHECK(cache.length(1) == 15);
  // 2 full pages of all, 3 of the first and third from there on, 2 of the second
  CHECK(cache.free_pages() == 20 - 2 - 3 - 2);
  more.append(cache, 2, 0, 4);  // copies what it shares
  CHECK(last_rows(cache, 0, a) == of_1);
  CHECK(last_rows(cache, 2, more) == expected<double>(more, {&prefix, &b, &more}));

  // some, by name
  const auto of_third = last_rows(cache, 2, a);
  const std::vector<heed::size_type> some{1, 2}, same{2, 2}, gone{1, 5}, one{1};
  cache.reorder(some, same);
  CHECK(last_rows(cache, 0, a) == of_1);
  CHECK(last_rows(cache, 1, a) == of_third);
  CHECK(last_rows(cache, 2, a) == of_third);
  testing::check_refused([&] { cache.reorder(same, some); },
                         {"heed::paged_kv_cache::reorder", "2 is there twice"});
  testing::check_refused([&] { cache.reorder(some, gone); }, {"reorder", "sequence 5"});
  testing::check_refused([&] { cache.reorder(gone, some); }, {"reorder", "sequence 5"});
  testing::check_refused([&] { cache.reorder(some, one); }, {"reorder", "from: entries 1", "2"});
  const std::vector<heed::size_type> four{0, 0, 0, 0};
  testing::check_refused([&] { cache.reorder(four); }, {"reorder", "sequence 3"});
  CHECK(last_rows(cache, 1, a) == of_third);
  for (const heed::size_type s : {0, 1, 2}) cache.remove_sequence(s);
  CHECK(cache.free_pages() == 20);
}

TEMPLATE_TEST_CASE("a sequence goes out to bytes and comes back, to other pages", "", double, float,
                   Eigen::bfloat16, Eigen::half, std::int8_t) {
  const tokens<double> t(23, 4, 2, 8, 6, 1);
  heed::paged_kv_cache<TestType> cache(12, page_rows, 2, 8, 6);
  const heed::size_type a = cache.add_sequence();
  t.append(cache, a, 0, 22);
  const heed::size_type b = cache.fork(a);
  const auto before = last_rows(cache, a, t);
  const bytes out = swapped(cache, a);
  CHECK(cache.length(a) == 0);
  CHECK(cache.free_pages() == 6);  // b has them still
  CHECK(last_rows(cache, b, t) == before);
  const bytes again = swapped(cache, b);
  CHECK(again == out);
  CHECK(cache.free_pages() == 12);

  t.append(cache, cache.add_sequence(), 0, 3);  // takes the page that was first
  cache.swap_in(a, out.data(), heed::size_type(out.size()));
  CHECK(cache.length(a) == 22);
  CHECK(cache.free_pages() == 5);
  CHECK(last_rows(cache, a, t) == before);
  t.append(cache, a, 22, 23);
  heed::kv_cache<TestType> whole(1, 2, 8, 6);
  t.append(whole, 0, 0, 23);
  CHECK(last_rows(cache, a, t) == testing::reference_from(whole, t, 20, 23, causal()));

  const auto in = [&](heed::size_type s, const bytes& from) {
    return [&cache, s, &from] { cache.swap_in(s, from.data(), heed::size_type(from.size())); };
  };
  const auto after = last_rows(cache, a, t);
  testing::check_refused(in(a, out), {"heed::paged_kv_cache::swap_in", "sequence 0", "23 tokens"});
  testing::check_refused(in(9, out), {"swap_in", "sequence 9"});
  testing::check_refused(in(b, out), {"22 tokens need 6 pages", "5 are free"});
  bytes few(10);
  testing::check_refused([&] { cache.swap_out(a, few.data(), 10); },
                         {"heed::paged_kv_cache::swap_out", "10 bytes"});
  testing::check_refused([&] { cache.swap_out(a, nullptr, cache.swap_bytes(a)); }, {"null"});
  testing::check_refused(in(b, few), {"10 bytes"});
  testing::check_refused(in(b, saved(cache)), {"do not hold a sequence"});
  CHECK(last_rows(cache, a, t) == after);
  CHECK(cache.length(b) == 0);
}

TEMPLATE_TEST_CASE("a cache is what it was when it was saved", "", double, float, Eigen::bfloat16,
                   Eigen::half, std::int8_t) {
  const tokens<double> t(23, 4, 2, 8, 6, 1);
  heed::paged_kv_cache<TestType> cache(20, page_rows, 2, 8, 6);
  for (const heed::size_type n : {17, 3, 0}) t.append(cache, cache.add_sequence(), 0, n);
  cache.fork(0);
  cache.remove_sequence(1);
  const bytes state = saved(cache);
  const auto before = last_rows(cache, 0, t);
  const heed::size_type free_pages = cache.free_pages();

  heed::paged_kv_cache<TestType> other(20, page_rows, 2, 8, 6);
  for (int n = 0; n < 6; ++n) t.append(other, other.add_sequence(), 0, 5);
  other.restore(state.data(), heed::size_type(state.size()));
  CHECK(other.free_pages() == free_pages);
  CHECK(last_rows(other, 0, t) == before);
  CHECK(last_rows(other, 3, t) == before);
  CHECK(other.length(2) == 0);
  testing::check_refused([&] { other.length(1); }, {"sequence 1 among 4"});
  CHECK(saved(other) == state);
  for (auto* one : {&cache, &other}) {
    t.append(*one, 3, 17, 23);  // copies the page that it shares
    CHECK(one->add_sequence() == 1);
  }
  CHECK(last_rows(other, 3, t) == last_rows(cache, 3, t));
  CHECK(last_rows(other, 0, t) == before);

  const auto refused = [&](auto& into, const bytes& from, const std::vector<std::string>& words) {
    testing::check_refused([&] { into.restore(from.data(), heed::size_type(from.size())); }, words);
  };
  heed::paged_kv_cache<TestType> fewer(19, page_rows, 2, 8, 6), wider(20, page_rows, 2, 8, 7),
      longer(20, 5, 2, 8, 6);
  refused(fewer, state, {"heed::paged_kv_cache::restore", "num_pages 20", "19"});
  refused(wider, state, {"value_dim 6", "7"});
  refused(longer, state, {"page_rows 4", "5"});
  using another = std::conditional_t<std::is_same<TestType, float>::value, Eigen::half, float>;
  heed::paged_kv_cache<another> foreign(20, page_rows, 2, 8, 6);
  refused(foreign, state, {"the bytes hold", "but the cache is of"});
  const auto state_now = saved(other);
  for (std::size_t size = 0; size < state.size(); size += 37)
    refused(other, bytes(state.begin(), state.begin() + std::ptrdiff_t(size)), {"bytes"});
  refused(other, bytes(state.size(), 0), {"not those of a paged_kv_cache"});
  bytes later = state;
  later[8] = 9;
  refused(other, later, {"version 9"});
  later = state;
  later.back() ^= 1;
  refused(other, later, {"damaged"});
  refused(other, swapped(cache, 0), {"do not hold a whole cache"});
  CHECK(saved(other) == state_now);
}

TEMPLATE_TEST_CASE("8-bit floats are saved with the scales of their heads", "", heed::float8_e4m3,
                   heed::float8_e5m2) {
  const tokens<double> t(23, 4, 2, 8, 6, 1);
  const heed::head_scales scales{{0.5f, 0.02f}, {0.25f, 3}};
  heed::paged_kv_cache<TestType> cache(12, page_rows, 2, 8, 6, scales),
      other(12, page_rows, 2, 8, 6);
  t.append(cache, cache.add_sequence(), 0, 23);
  const auto before = last_rows(cache, 0, t);
  const bytes state = saved(cache);
  other.restore(state.data(), heed::size_type(state.size()));
  CHECK(last_rows(other, 0, t) == before);
  CHECK(saved(other) == state);
  const heed::size_type more = other.add_sequence();  // goes on under the scales that came
  t.append(other, more, 0, 23);
  CHECK(last_rows(other, more, t) == before);

  const bytes out = swapped(cache, 0);
  CHECK(out.size() == 96 + 4 * 4 + 23 * 2 * (8 + 6));
  cache.swap_in(0, out.data(), heed::size_type(out.size()));
  CHECK(last_rows(cache, 0, t) == before);
  heed::paged_kv_cache<TestType> unscaled(12, page_rows, 2, 8, 6);
  unscaled.add_sequence();
  testing::check_refused(
      [&] { unscaled.swap_in(0, out.data(), heed::size_type(out.size())); },
      {"heed::paged_kv_cache::swap_in", "key scale 0 0.5", "does not match the cache's 1"});
  CHECK(unscaled.free_pages() == 12);

  bytes wrong = state;
  const float zero = 0;
  // after the header, a length and the pages of 23 tokens
  std::memcpy(wrong.data() + 96 + 8 * (1 + 6) + 2 * 4, &zero, sizeof zero);
  heed::detail::saved_header header;
  std::memcpy(&header, wrong.data(), sizeof header);
  header.checksum = heed::detail::checksum(header, wrong.data());
  std::memcpy(wrong.data(), &header, sizeof header);
  testing::check_refused([&] { other.restore(wrong.data(), heed::size_type(wrong.size())); },
                         {"heed::paged_kv_cache::restore", "value", "positive", "is 0"});
  CHECK(last_rows(other, more, t) == before);

  const heed::paged_kv_cache<TestType> moved = std::move(other);
  CHECK(saved(other).size() == 96);  // it has no pages, and no scales
}

TEST_CASE("an empty cache, and one of no pages, can be saved") {
  for (const heed::size_type pages : {0, 3}) {
    heed::paged_kv_cache<float> cache(pages, page_rows, 1, 8, 8), other(pages, page_rows, 1, 8, 8);
    cache.add_sequence();
    const bytes state = saved(cache);
    CHECK_THROWS_AS(other.length(0), std::invalid_argument);
    other.restore(state.data(), heed::size_type(state.size()));
    CHECK(other.length(0) == 0);
    CHECK(other.free_pages() == pages);
    const bytes none = swapped(cache, 0);
    cache.swap_in(0, none.data(), heed::size_type(none.size()));
    CHECK(cache.length(0) == 0);
  }
}

TEMPLATE_TEST_CASE("bytes that were changed are refused, or are a cache that works", "", float,
                   heed::float8_e4m3) {
  const tokens<float> t(23, 2, 1, 4, 4, 1);
  heed::paged_kv_cache<TestType> cache(6, page_rows, 1, 4, 4);
  for (const heed::size_type n : {9, 2, 0}) t.append(cache, cache.add_sequence(), 0, n);
  cache.fork(0);
  const bytes state = saved(cache);
  const heed::paged_kv_cache<TestType> as_it_was = cache;
  bytes sequence(std::size_t(cache.swap_bytes(0)));
  cache.swap_out(0, sequence.data(), heed::size_type(sequence.size()));
  std::mt19937 random(11);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 6000; ++round) {
    const bool whole = round % 2 == 0;
    bytes changed = whole ? state : sequence;
    const unsigned changes = 1 + random() % 4;
    for (unsigned n = 0; n < changes; ++n) {
      // mostly where numbers are: the header, lengths, the table
      const std::size_t at = random() % (random() % 4 > 0 ? 96 + 100 : changed.size());
      const unsigned char kinds[] = {0, 1, 0x7f, 0x80, 0xff, static_cast<unsigned char>(random())};
      changed[(std::min)(at, changed.size() - 1)] = kinds[random() % 6];
    }
    if (random() % 8 == 0) changed.resize(random() % changed.size());
    if (random() % 8 > 0 && changed.size() >= 96) {  // a checksum that fits
      heed::detail::saved_header header;
      std::memcpy(&header, changed.data(), sizeof header);
      if (header.bytes >= 96 && header.bytes <= std::int64_t(changed.size())) {
        header.checksum = heed::detail::checksum(header, changed.data());
        std::memcpy(changed.data(), &header, sizeof header);
      }
    }
    heed::paged_kv_cache<TestType> other = as_it_was;
    if (!whole) other.truncate(0, 0);
    const bytes before = saved(other);
    bool taken = true;
    try {
      if (whole)
        other.restore(changed.data(), heed::size_type(changed.size()));
      else
        other.swap_in(0, changed.data(), heed::size_type(changed.size()));
    } catch (const std::invalid_argument& refusal) {
      taken = false;
      CHECK_THAT(refusal.what(), ContainsSubstring("heed::paged_kv_cache::"));
    }
    (taken ? accepted : refused) += 1;
    if (!taken) {
      REQUIRE(saved(other) == before);
      continue;
    }
    // whatever it holds: it can be read and written, and all pages are free in the end
    for (heed::size_type s = 0; s < 4; ++s) {
      try {
        const heed::size_type length = other.length(s);
        last_rows(other, s, tokens<double>(3, 2, 1, 4, 4, 1));
        if (other.free_pages() > 1) t.append(other, s, 0, 1);
        REQUIRE(other.length(s) <= length + 1);
      } catch (const std::invalid_argument&) {
      }  // it has no such sequence
    }
    for (heed::size_type s = 0; s < 500; ++s) {
      try {
        other.remove_sequence(s);
      } catch (const std::invalid_argument&) {
      }
    }
    REQUIRE(other.free_pages() == 6);
  }
  CHECK(accepted > 150);
  CHECK(refused > 150);
}
