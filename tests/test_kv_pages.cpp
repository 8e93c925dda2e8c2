#include <heed/kv_cache.hpp>
#include <heed/kv_pages.hpp>
#include <heed/multi_head.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "support/isas.hpp"
#include "support/refusal.hpp"
#include "support/tokens.hpp"

using heed::size_type;
using testing::tokens;

namespace {

constexpr size_type heads = 4, kv_heads = 2, d_k = 24, d_v = 40;

template <typename Stored>
using scalar_of = std::conditional_t<std::is_same<Stored, double>::value, double, float>;

/// What must never be read.
template <typename Stored>
Stored poison() {
  if constexpr (std::is_same<Stored, std::int8_t>::value) {
    return 127;
  } else {
    return static_cast<Stored>(std::numeric_limits<float>::quiet_NaN());
  }
}

/// Pages of a server: numbers in any order, NaN wherever no token is, a table padded with pages
/// that do not exist.
template <typename Stored, typename Integer>
struct server {
  using scalar = scalar_of<Stored>;

  bool nhd;
  size_type page_rows, num_pages = 0, max_pages = 0;
  std::vector<size_type> lengths;
  std::vector<Integer> given_lengths, table;
  std::vector<Stored> keys, values;
  std::vector<float> key_scales, value_scales;
  heed::kv_cache<Stored> whole;
  static constexpr bool has_scales = std::is_same<Stored, std::int8_t>::value;

  server(const std::vector<size_type>& sizes, size_type rows_of_a_page, bool rows_first)
      : nhd(rows_first),
        page_rows(rows_of_a_page),
        lengths(sizes),
        whole(size_type(sizes.size()), kv_heads, d_k, d_v) {
    for (std::size_t b = 0; b < sizes.size(); ++b) {
      const tokens<scalar> t(sizes[b], heads, kv_heads, d_k, d_v, unsigned(b + 1));
      t.append(whole, size_type(b), 0, sizes[b]);
      max_pages = (std::max)(max_pages, pages_for(sizes[b]) + 1);
      num_pages += pages_for(sizes[b]) + 1;
      given_lengths.push_back(Integer(sizes[b]));
    }
    std::vector<Integer> numbers(std::size_t(num_pages), 0);
    for (std::size_t n = 0; n < numbers.size(); ++n) numbers[n] = Integer(n);
    std::shuffle(numbers.begin(), numbers.end(), std::mt19937(7));
    const Integer garbage[] = {-1, std::numeric_limits<Integer>::max(), Integer(num_pages),
                               std::numeric_limits<Integer>::min()};
    for (std::size_t n = 0; n < sizes.size() * std::size_t(row_stride()); ++n)
      table.push_back(garbage[n % 4]);
    keys.assign(std::size_t(num_pages * kv_heads * page_rows * d_k), poison<Stored>());
    values.assign(std::size_t(num_pages * kv_heads * page_rows * d_v), poison<Stored>());
    key_scales.assign(std::size_t(num_pages * kv_heads * page_rows),
                      std::numeric_limits<float>::quiet_NaN());
    value_scales = key_scales;
    std::size_t next = 0;
    for (size_type b = 0; b < size_type(sizes.size()); ++b)
      for (size_type place = 0; place < pages_for(sizes[std::size_t(b)]); ++place)
        table[std::size_t(b * row_stride() + place)] = numbers[next++];
    copy(whole.keys(), pool(keys, d_k), pool(key_scales, 1));
    copy(whole.values(), pool(values, d_v), pool(value_scales, 1));
  }
  server(const server&) = delete;

  size_type pages_for(size_type n) const { return (n + page_rows - 1) / page_rows; }
  size_type row_stride() const { return max_pages + 2; }
  template <typename Scalar>
  heed::tensor_view<Scalar> pool(std::vector<Scalar>& numbers, size_type d) {
    return nhd ? heed::bnhd(numbers.data(), num_pages, page_rows, kv_heads, d)
               : heed::bhnd(numbers.data(), num_pages, kv_heads, page_rows, d);
  }
  void copy(const heed::detail::stored_tensor<Stored>& from,
            const heed::tensor_view<Stored>& elements, const heed::tensor_view<float>& scales) {
    for (size_type b = 0; b < size_type(lengths.size()); ++b)
      for (size_type j = 0; j < lengths[std::size_t(b)]; ++j) {
        const size_type page = size_type(table[std::size_t(b * row_stride() + j / page_rows)]),
                        row = j % page_rows;
        for (size_type h = 0; h < kv_heads; ++h) {
          for (size_type c = 0; c < from.cols; ++c)
            elements(page, h, row, c) = from.elements(b, h, j, c);
          if (has_scales) scales(page, h, row, 0) = from.scales(b, h, j, 0);
        }
      }
  }
  heed::page_table numbers() const {
    return heed::page_table(table.data(), size_type(lengths.size()), max_pages, row_stride());
  }
  heed::kv_pages<Stored> pages() {
    if (!has_scales)
      return heed::kv_pages<Stored>(pool(keys, d_k), pool(values, d_v), numbers(), given_lengths);
    return heed::kv_pages<Stored>(pool(keys, d_k), pool(values, d_v), pool(key_scales, 1),
                                  pool(value_scales, 1), numbers(), given_lengths);
  }
};

/// Ragged queries against a cache, by the kernels of an instruction set or by the reference.
template <typename Scalar>
struct mixed {
  std::vector<std::int32_t> starts{0};
  heed::rows<Scalar> query;
  heed::attention_options options;

  explicit mixed(const std::vector<size_type>& queries) {
    for (const size_type n : queries) starts.push_back(starts.back() + std::int32_t(n));
    query = testing::random_rows<Scalar>(starts.back(), heads * d_k, 99) * Scalar(3);
    options.causal = heed::causal::bottom_right;
  }
  template <typename Cache, typename... Terms>
  heed::rows<Scalar> reference(const Cache& cache, const Terms&... terms) const {
    heed::rows<Scalar> out(query.rows(), heads * d_v);
    heed::reference_ragged_cached_attention_into(
        heed::bnhd(query.data(), 1, query.rows(), heads, d_k), cache,
        heed::bnhd(out.data(), 1, query.rows(), heads, d_v), {}, starts, options, terms...);
    return out;
  }
  template <typename Cache, typename... Terms>
  heed::rows<Scalar> fused(const Cache& cache, heed::isa target, const Terms&... terms) const {
    heed::rows<Scalar> out(query.rows(), heads * d_v);
    heed::attention_options on = options;
    on.execution.target = target;
    heed::workspace memory;
    heed::ragged_cached_attention_into(heed::bnhd(query.data(), 1, query.rows(), heads, d_k), cache,
                                       heed::bnhd(out.data(), 1, query.rows(), heads, d_v), {},
                                       starts, on, memory, terms...);
    return out;
  }
};

const std::vector<size_type> lengths{5, 0, 333, 64, 130, 700};

template <typename Stored, typename Integer>
void check_like_a_cache(size_type page_rows, bool nhd) {
  using Scalar = scalar_of<Stored>;
  CAPTURE(page_rows, nhd, sizeof(Integer));
  server<Stored, Integer> s(lengths, page_rows, nhd);
  const auto pages = s.pages();
  // Decoding, a chunk, nothing, one query that is a prompt, a prompt, drafted tokens.
  for (const auto& queries :
       std::vector<std::vector<size_type>>{{1, 1, 1, 1, 1, 1}, {5, 0, 40, 1, 130, 2}}) {
    mixed<Scalar> call(queries);
    for (const size_type window : {-1, 37}) {
      CAPTURE(window);
      call.options.window_left = window;
      CHECK((call.reference(pages) == call.reference(s.whole)));
      for (const heed::isa target : testing::isas()) {
        CAPTURE(testing::name_of(target));
        const heed::rows<Scalar> got = call.fused(pages, target);
        CHECK(got.allFinite());
        CHECK((got == call.fused(s.whole, target)));
      }
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("pages of the caller's give what a cache gives, to the bit", "", float, double,
                   Eigen::bfloat16, Eigen::half, std::int8_t) {
  for (const size_type page_rows : {1, 7, 16, 48, 256})
    for (const bool nhd : {false, true}) {
      check_like_a_cache<TestType, std::int32_t>(page_rows, nhd);
      if (page_rows == 16) check_like_a_cache<TestType, std::int64_t>(page_rows, nhd);
    }
}

TEMPLATE_TEST_CASE("pages with masked pairs give what a cache gives, to the bit", "", float,
                   Eigen::bfloat16, std::int8_t) {
  const std::vector<size_type> queries{1, 0, 1, 9, 2, 2};
  const mixed<float> call(queries);
  std::vector<Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>> masks;
  std::mt19937 random(3);
  for (std::size_t b = 0; b < queries.size(); ++b) {
    masks.emplace_back(queries[b], lengths[b]);
    for (size_type n = 0; n < masks[b].size(); ++n) masks[b].data()[n] = random() % 4 > 0;
  }
  std::vector<heed::tensor_view<const bool>> views;
  for (const auto& mask : masks) views.push_back(heed::view(mask));
  for (const size_type page_rows : {1, 7, 16}) {
    CAPTURE(page_rows);
    server<TestType, std::int32_t> s(lengths, page_rows, true);
    for (const heed::isa target : testing::isas()) {
      CAPTURE(testing::name_of(target));
      CHECK((call.fused(s.pages(), target, heed::keep_each(views)) ==
             call.fused(s.whole, target, heed::keep_each(views))));
    }
  }
}

TEST_CASE("a batch of pages takes any sequences in any order, from lists without padding too") {
  server<float, std::int32_t> s(lengths, 16, true);
  const std::vector<std::int64_t> order{3, 0, 3};
  const mixed<float> three({2, 1, 2});
  const auto some = s.pages().batch(order);
  std::vector<std::int32_t> packed, starts{0};
  std::vector<size_type> their_lengths;
  for (const std::int64_t b : order) {
    const size_type length = lengths[std::size_t(b)];
    for (size_type place = 0; place < s.pages_for(length); ++place)
      packed.push_back(s.table[std::size_t(b * s.row_stride() + place)]);
    starts.push_back(std::int32_t(packed.size()));
    their_lengths.push_back(length);
  }
  const heed::kv_pages lists(s.pool(s.keys, d_k), s.pool(s.values, d_v),
                             heed::page_table(packed, starts), their_lengths);
  heed::kv_cache<float> whole(3, kv_heads, d_k, d_v);
  for (size_type n = 0; n < 3; ++n) {
    const size_type b = order[std::size_t(n)], length = lengths[std::size_t(b)];
    tokens<float>(length, heads, kv_heads, d_k, d_v, unsigned(b + 1)).append(whole, n, 0, length);
  }
  const auto wanted = three.fused(whole, heed::isa::automatic);
  CHECK(three.fused(some, heed::isa::automatic) == wanted);
  CHECK(three.fused(lists, heed::isa::automatic) == wanted);
  CHECK(three.reference(lists) == three.reference(whole));

  // one query each, in a padded batch
  const auto query = testing::random_rows<float>(3, heads * d_k, 5);
  heed::rows<float> out(3, heads * d_v), same(3, heads * d_v);
  heed::workspace memory;
  const auto q = heed::bnhd(query.data(), 3, 1, heads, d_k);
  memory.reserve(heed::cached_attention_workspace_bytes(q, some, three.options));
  const size_type bytes = memory.capacity();
  heed::cached_attention_into(q, some, heed::bnhd(out.data(), 3, 1, heads, d_v), {}, three.options,
                              memory);
  CHECK(memory.capacity() == bytes);
  heed::cached_attention_into(q, whole, heed::bnhd(same.data(), 3, 1, heads, d_v), {},
                              three.options, memory);
  CHECK(out == same);
}

TEST_CASE("keys and values in one tensor, and pages that two sequences share") {
  // [pages, 2, page_rows, heads, d]: FlashInfer's
  constexpr size_type pages = 5, page_rows = 4, d = 8;
  const auto both = testing::random_rows<float>(pages * 2 * page_rows, kv_heads * d, 1);
  auto keys = heed::bnhd(both.data(), 2 * pages, page_rows, kv_heads, d);
  keys.batch = pages, keys.batch_stride *= 2;
  auto values = keys;
  values.data += keys.batch_stride / 2;
  const std::vector<std::int32_t> table{3, 1, 4, 3, 1, 0}, their_lengths{9, 12};
  const heed::kv_pages<float> shared(keys, values, heed::page_table(table.data(), 2, 3),
                                     their_lengths);
  for (size_type b = 0; b < 2; ++b) {
    const size_type n = their_lengths[std::size_t(b)];
    heed::rows<float> key(n, kv_heads * d), value(n, kv_heads * d);
    for (size_type j = 0; j < n; ++j) {
      const size_type page = table[std::size_t(3 * b + j / page_rows)];
      key.row(j) = both.row(2 * page * page_rows + j % page_rows);
      value.row(j) = both.row((2 * page + 1) * page_rows + j % page_rows);
    }
    const auto query = testing::random_rows<float>(2, heads * d, 2);
    heed::rows<float> out(2, heads * d), wanted(2, heads * d);
    const std::vector<size_type> one{b};
    heed::workspace memory;
    heed::cached_attention_into(heed::bnhd(query.data(), 1, 2, heads, d), shared.batch(one),
                                heed::bnhd(out.data(), 1, 2, heads, d), {}, {}, memory);
    heed::multi_head_attention_into(heed::bnhd(query.data(), 1, 2, heads, d),
                                    heed::bnhd(key.data(), 1, n, kv_heads, d),
                                    heed::bnhd(value.data(), 1, n, kv_heads, d),
                                    heed::bnhd(wanted.data(), 1, 2, heads, d), {}, {}, memory);
    CHECK(out == wanted);
  }
}

TEST_CASE("one scale may serve all rows of int8, and none is a factor of 1") {
  server<std::int8_t, std::int32_t> s({20}, 8, false);
  const mixed<float> call({3});
  const float tenth = 0.1f, one = 1.0f;
  const auto scaled = [&](const float& key, const float& value) {
    const auto all = [&](const float& factor) {
      return heed::tensor_view<const float>{&factor, s.num_pages, kv_heads, 8, 1, 0, 0, 0, 0};
    };
    return heed::kv_pages<std::int8_t>(s.pool(s.keys, d_k), s.pool(s.values, d_v), all(key),
                                       all(value), s.numbers(), s.given_lengths);
  };
  const heed::kv_pages<std::int8_t> bare(s.pool(s.keys, d_k), s.pool(s.values, d_v), s.numbers(),
                                         s.given_lengths);
  for (const heed::isa target : testing::isas()) {
    CHECK(call.fused(bare, target) == call.fused(scaled(one, one), target));
    // 0.1 of each key is 0.1 of each score
    mixed<float> scores = call;
    scores.options.scale = 0.1 / std::sqrt(double(d_k));
    const auto got = call.fused(scaled(tenth, one), target), wanted = scores.fused(bare, target);
    CHECK((got - wanted).cwiseAbs().maxCoeff() < 1e-3f);
    CHECK((got - call.fused(bare, target)).cwiseAbs().maxCoeff() > 1);
  }
}

TEST_CASE("a page that no query sees may be gone, one that is seen is asked for") {
  server<float, std::int32_t> s({300, 40}, 16, true);
  mixed<float> call({20, 0});
  call.options.window_left = 50;  // query 0, token 280, sees tokens from 230 on: page 14
  const auto before = call.fused(s.pages(), heed::isa::automatic);
  const auto exact = call.reference(s.pages());
  const std::int32_t page = s.table[14];
  for (std::size_t place = 0; place < 14; ++place) s.table[place] = -7;
  s.table[std::size_t(s.row_stride())] = 1000;  // the second has no queries
  for (const heed::isa target : testing::isas())
    CHECK(call.fused(s.pages(), target) == call.fused(s.whole, target));
  CHECK(call.fused(s.pages(), heed::isa::automatic) == before);
  CHECK(call.reference(s.pages()) == exact);

  const auto refused = [&](const std::vector<std::string>& words) {
    heed::rows<float> out = heed::rows<float>::Constant(20, heads * d_v, 3.0f);
    heed::workspace memory;
    const auto query = heed::bnhd(call.query.data(), 1, 20, heads, d_k);
    const auto to = heed::bnhd(out.data(), 1, 20, heads, d_v);
    testing::check_refused(
        [&] {
          heed::ragged_cached_attention_into(query, s.pages(), to, {}, call.starts, call.options,
                                             memory);
        },
        words);
    testing::check_refused(
        [&] {
          heed::reference_ragged_cached_attention_into(query, s.pages(), to, {}, call.starts,
                                                       call.options);
        },
        words);
    testing::check_refused(
        [&] {
          heed::ragged_cached_attention_workspace_bytes(query, s.pages(), call.starts,
                                                        call.options);
        },
        words);
    CHECK((out.array() == 3.0f).all());
  };
  const std::string pages = std::to_string(s.num_pages);
  s.table[14] = -1;
  refused({"sequence 0", "entry 14", "page -1", pages + " pages"});
  s.table[14] = std::int32_t(s.num_pages);
  refused({"sequence 0", "entry 14", "page " + pages, pages + " pages"});
  s.table[14] = page;
  s.given_lengths[1] = -2;
  refused({"sequence 1", "-2"});
  s.given_lengths[1] = std::int32_t(16 * s.max_pages + 1);
  refused({"sequence 1", std::to_string(16 * s.max_pages + 1),
           std::to_string(s.max_pages + 1) + " pages", "has " + std::to_string(s.max_pages)});
  s.given_lengths[1] = 40;
  CHECK(call.fused(s.pages(), heed::isa::automatic) == before);
}

TEST_CASE("pages refuse what does not fit") {
  server<float, std::int32_t> s({20, 3}, 8, false);
  const auto keys = s.pool(s.keys, d_k), values = s.pool(s.values, d_v);
  const auto numbers = s.numbers();
  const auto refused = [](const auto& make, const std::vector<std::string>& words) {
    testing::check_refused(make, words);
  };
  auto fewer = values;
  fewer.batch = 2;
  refused([&] { heed::kv_pages<float>(keys, fewer, numbers, s.given_lengths); },
          {"heed::kv_pages", "values", "pages 2", std::to_string(s.num_pages)});
  fewer = values, fewer.rows = 7;
  refused([&] { heed::kv_pages<float>(keys, fewer, numbers, s.given_lengths); },
          {"values", "page_rows 7", "8"});
  fewer = values, fewer.heads = 1;
  refused([&] { heed::kv_pages<float>(keys, fewer, numbers, s.given_lengths); },
          {"values", "num_kv_heads 1", "2"});
  auto none = keys;
  none.rows = 0;
  refused([&] { heed::kv_pages<float>(none, none, numbers, s.given_lengths); },
          {"heed::kv_pages", "0"});
  refused(
      [&] {
        heed::kv_pages<float>({nullptr, 1, 1, 1, 1}, values, numbers, s.given_lengths);
      },
      {"heed::kv_pages", "keys", "null"});
  const std::vector<size_type> three(3, 1);
  refused([&] { heed::kv_pages<float>(keys, values, numbers, three); },
          {"heed::kv_pages", "lengths", "3", "2"});
  const auto scales = s.pool(s.key_scales, 1);
  refused([&] { heed::kv_pages<float>(keys, values, scales, scales, numbers, s.given_lengths); },
          {"heed::kv_pages", "int8"});
  server<std::int8_t, std::int32_t> whole_numbers({20}, 8, false);
  auto few = whole_numbers.pool(whole_numbers.key_scales, 1);
  few.batch = 1;
  refused(
      [&] {
        heed::kv_pages<std::int8_t>(whole_numbers.pool(whole_numbers.keys, d_k),
                                    whole_numbers.pool(whole_numbers.values, d_v), few, {},
                                    whole_numbers.numbers(), whole_numbers.given_lengths);
      },
      {"heed::kv_pages", "key_scales", "pages 1"});
  refused([] { heed::page_table(static_cast<const std::int32_t*>(nullptr), 2, 3); },
          {"heed::page_table", "2", "3", "null"});
  const std::vector<std::int32_t> list{1, 2, 3}, falling{0, 2, 1}, past{0, 4};
  refused([&] { heed::page_table(list, falling); }, {"heed::page_table", "entry 2", "1", "2"});
  refused([&] { heed::page_table(list, past); }, {"heed::page_table", "entry 1", "4", "3"});
  // The lists are the caller's, and may be others at the call.
  std::vector<std::int64_t> starts{0, 2, 3};
  const std::vector<size_type> lengths{1, 1};
  const heed::kv_pages<float> listed(s.pool(s.keys, d_k), s.pool(s.values, d_v),
                                     heed::page_table(list, starts), lengths);
  for (const std::int64_t last :
       {std::int64_t{1}, std::int64_t{4}, (std::numeric_limits<std::int64_t>::min)()}) {
    starts[2] = last;
    refused([&] { listed.keys(); },
            {"heed::page_table: starts: entry 2 is " + std::to_string(last) + " after 2"});
  }

  // what a call finds
  const mixed<float> call({1, 1});
  const std::vector<size_type> unknown{0, 2};
  refused([&] { call.fused(s.pages().batch(unknown), heed::isa::automatic); },
          {"sequences", "entry 1", "2"});
  auto over = s.pages();
  heed::workspace memory;
  const auto query = heed::bnhd(call.query.data(), 1, 2, heads, d_k);
  const auto refused_out = [&](float* out, const std::string& what) {
    refused(
        [&] {
          heed::ragged_cached_attention_into(query, over, heed::bnhd(out, 1, 2, heads, d_v), {},
                                             call.starts, call.options, memory);
        },
        {"heed::ragged_cached_attention_into", "out", "overlaps", what});
  };
  refused_out(s.keys.data(), "key");
  std::vector<float> room(1000);
  std::vector<std::int32_t>& table = s.table;
  table.resize(1000);
  over = s.pages();
  refused_out(reinterpret_cast<float*>(s.table.data()), "table of pages");
}
