#include <heed/paged_kv_cache.hpp>

#include <cstdint>
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
