// Mixed batches against every kind of cache, in every type that a cache has, with every feature
// alone and with every other. A result is that of each sequence alone, to the bit; it is as exact
// as the reference in the same precision, which reads the tokens where this file keeps them: in
// order, and none dropped. What a call refuses must be refused.

#include <heed/heed.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/checksum.hpp"
#include "support/example.hpp"
#include "support/isas.hpp"
#include "support/matrix.hpp"
#include "support/refusal.hpp"

namespace {

using heed::size_type;
using heed::tensor_view;
using testing::matrix::combination;
using testing::matrix::feature;
using testing::matrix::heads;
using list = std::vector<size_type>;

std::size_t at(size_type n) { return static_cast<std::size_t>(n); }

// What a mixed batch has besides the features of every call.
constexpr feature query_lengths{unsigned(feature::count)}, max_logits{unsigned(feature::count) + 1},
    no_lse{unsigned(feature::count) + 2};
constexpr unsigned feature_count = unsigned(feature::count) + 3;

/// Terms that this matrix does not give yet.
bool left_out(feature f) {
  return f == feature::relative_keys || f == feature::relative_values ||
         f == feature::selected_keys || f == feature::weight_function;
}
/// Features that a mixed batch refuses, because they have the sizes of a padded batch or a cache
/// has them already; they have a test of their own.
bool refused_in_mixed_batches(feature f) {
  return f == feature::blocks || f == feature::mask_function_in_blocks || f == feature::key_lengths;
}
std::string name_of(feature f) {
  if (f == query_lengths) return "query_lengths";
  if (f == max_logits) return "max_logits";
  if (f == no_lse) return "no lse";
  return testing::matrix::names[unsigned(f)];
}
std::string name_of(const combination& c) { return name_of(c.a) + " + " + name_of(c.b); }

enum class kind : unsigned {
  contiguous,
  chosen_entries,
  rolling,
  rolling_keep_first,
  paged,
  nhd_pages,
  hnd_pages,
  count
};
const char* const kind_names[] = {"kv_cache",        "kv_cache::batch", "rolling kv_cache",
                                  "keep_first",      "paged_kv_cache",  "NHD pages, padded table",
                                  "HND pages, lists"};
constexpr size_type window = 40, keep_first = 4, page_rows = 16;

/// How many queries each sequence has, and how many tokens.
struct mix {
  list queries, tokens;
};
const mix mixes[] = {{{1, 37, 8, 0, 2}, {300, 37, 60, 10, 0}},
                     {{130, 0, 1}, {150, 90, 5}},
                     {{1, 1, 16, 3, 1}, {700, 33, 70, 3, 129}}};

/// The sequences of one run, in the order of the call: their tokens as the caller has them, in the
/// type of the queries.
struct sequences {
  combination features;
  list queries, tokens;
  size_type kv_heads, d_k, d_v;
  std::vector<heed::rows<double>> query, key, value;

  template <typename Scalar>
  sequences(Scalar, const combination& c, std::size_t turn, bool whole_blocks, unsigned draw = 0)
      : features(c),
        kv_heads(c.kv_heads()),
        d_k(whole_blocks ? 32 : 20),
        d_v(!c.has(feature::value_dim) ? d_k
            : whole_blocks             ? 64
                                       : 9) {
    const mix& m = mixes[turn % std::size(mixes)];
    for (std::size_t n = 0; n < m.queries.size(); ++n) {
      const std::size_t s = (n + turn / std::size(mixes)) % m.queries.size();
      const unsigned seed = 100 * draw + 3 * unsigned(s) + 1;
      queries.push_back(m.queries[s]);
      tokens.push_back(m.tokens[s]);
      query.push_back(random_rows_of<Scalar>(m.queries[s], heads * d_k, seed));
      key.push_back(random_rows_of<Scalar>(m.tokens[s], kv_heads * d_k, seed + 1));
      value.push_back(random_rows_of<Scalar>(m.tokens[s], kv_heads * d_v, seed + 2));
      if (!c.has(feature::nan_inputs) || m.tokens[s] < 60) continue;
      key.back().row(m.tokens[s] - 4).head(d_k).setConstant(nan());
      key.back().row(m.tokens[s] / 2).tail(d_k).setConstant(testing::matrix::infinity);
      value.back().row(12).head(d_v).setConstant(nan());
    }
  }
  static double nan() { return std::numeric_limits<double>::quiet_NaN(); }
  template <typename Scalar>
  static heed::rows<double> random_rows_of(size_type n, size_type cols, unsigned seed) {
    return testing::random_rows<Scalar>(n, cols, seed).template cast<double>();
  }
  size_type count() const { return static_cast<size_type>(queries.size()); }
  /// The last tokens are those of the queries, and appended at once.
  std::array<size_type, 4> cuts(size_type s) const {
    const size_type last = (std::min)((std::max)(queries[at(s)], size_type{1}), tokens[at(s)]),
                    before = tokens[at(s)] - last;
    return {0, before / 3, before, tokens[at(s)]};
  }
  /// Which tokens a cache of this kind holds, besides those that it must not need.
  list held(size_type s, bool keeps_first) const {
    list some;
    const auto cut = cuts(s);
    for (std::size_t piece = 0; piece < 3; ++piece) {
      if (keeps_first && static_cast<size_type>(some.size()) > keep_first + window)
        some.erase(some.begin() + keep_first, some.end() - window);
      for (size_type j = cut[piece]; j < cut[piece + 1]; ++j) some.push_back(j);
    }
    return some;
  }
  /// How many of them a rolling cache has dropped.
  size_type dropped(size_type s) const {
    size_type length = 0;
    const auto cut = cuts(s);
    for (std::size_t piece = 0; piece < 3; ++piece)
      length = (std::min)(length, window) + cut[piece + 1] - cut[piece];
    return tokens[at(s)] - length;
  }
  template <typename Append>
  void append_in_pieces(const Append& append) const {
    for (std::size_t piece = 0; piece < 3; ++piece)
      for (size_type s = 0; s < count(); ++s) {
        const auto cut = cuts(s);
        const auto rows_of = [&](const heed::rows<double>& all) {
          auto some = heed::split_heads(heed::view(all), kv_heads);
          some.data += cut[piece] * some.row_stride;
          some.rows = cut[piece + 1] - cut[piece];
          return some;
        };
        append(s, rows_of(key[at(s)]), rows_of(value[at(s)]));
      }
  }
};

/// A cache of any kind, as calls see it.
template <typename Stored>
struct any_cache {
  std::function<heed::detail::stored_tensor<Stored>()> keys, values;
  size_type window_of_cache = -1;
  size_type window() const { return window_of_cache; }
};
template <typename Stored, typename Cache>
std::shared_ptr<void> seen(const std::shared_ptr<Cache>& cache) {
  return std::make_shared<any_cache<Stored>>(any_cache<Stored>{
      [cache] { return cache->keys(); }, [cache] { return cache->values(); }, cache->window()});
}
/// Gives the cache of some sequences of a run: an any_cache<Stored>.
using chooser = std::function<std::shared_ptr<void>(const list&)>;

template <typename Stored>
heed::head_scales scales_for(size_type kv_heads) {
  heed::head_scales scales;
  if (heed::detail::storage_traits<Stored>::scales == heed::detail::scale_of::head)
    for (size_type h = 0; h < kv_heads; ++h) {
      scales.key.push_back(0.02f + 0.01f * float(h));
      scales.value.push_back(0.05f - 0.01f * float(h));
    }
  return scales;
}

template <typename Stored>
chooser make_kv_cache(const sequences& all, size_type keeps, size_type first, bool backwards) {
  auto cache =
      std::make_shared<heed::kv_cache<Stored>>(all.count(), all.kv_heads, all.d_k, all.d_v, 8,
                                               keeps, first, scales_for<Stored>(all.kv_heads));
  const auto entry = [backwards, n = all.count()](size_type s) {
    return backwards ? n - 1 - s : s;
  };
  all.append_in_pieces([&](size_type s, const auto& key, const auto& value) {
    cache->append(entry(s), key, value);
  });
  return [cache, entry](const list& chosen) -> std::shared_ptr<void> {
    auto entries = std::make_shared<list>();
    for (const size_type s : chosen) entries->push_back(entry(s));
    list in_order(at(cache->batch()));
    std::iota(in_order.begin(), in_order.end(), size_type{0});
    if (*entries == in_order) return seen<Stored>(cache);
    using view = typename heed::kv_cache<Stored>::batch_view;
    const std::shared_ptr<view> some(new view(*cache, *entries), [cache, entries](view* v) {
      delete v;  // NOLINT: what it looks at lives as long
    });
    return seen<Stored>(some);
  };
}

template <typename Stored>
chooser make_paged_cache(const sequences& all) {
  auto cache = std::make_shared<heed::paged_kv_cache<Stored>>(
      80, page_rows, all.kv_heads, all.d_k, all.d_v, scales_for<Stored>(all.kv_heads));
  for (size_type s = 0; s < all.count(); ++s) cache->add_sequence();
  all.append_in_pieces(
      [&](size_type s, const auto& key, const auto& value) { cache->append(s, key, value); });
  return [cache](const list& chosen) {
    auto names = std::make_shared<list>(chosen);
    using view = typename heed::paged_kv_cache<Stored>::batch_view;
    const std::shared_ptr<view> some(new view(*cache, *names),
                                     [cache, names](view* v) { delete v; });
    return seen<Stored>(some);
  };
}

/// Pages of a server's own: K and V of a page side by side, pages in no order, room behind each
/// row, and numbers that must never be read where nothing is stored.
template <typename Stored>
struct server_pages {
  std::vector<Stored> numbers;
  std::vector<float> scales;
  std::vector<std::int32_t> padded, lengths;
  std::vector<std::int64_t> packed, starts{0};
  std::vector<heed::kv_pages<Stored>> view;  // one
};
template <typename Stored>
chooser make_pages(const sequences& all, bool nhd) {
  using traits = heed::detail::storage_traits<Stored>;
  const heed::kv_cache<Stored> plain = [&] {
    heed::kv_cache<Stored> cache(all.count(), all.kv_heads, all.d_k, all.d_v, 8, -1, 0,
                                 scales_for<Stored>(all.kv_heads));
    all.append_in_pieces(
        [&](size_type s, const auto& key, const auto& value) { cache.append(s, key, value); });
    return cache;
  }();
  const auto keys = plain.keys(), values = plain.values();
  const size_type h_kv = all.kv_heads, width_k = keys.elements.cols, width_v = values.elements.cols,
                  row = (std::max)(width_k, width_v) + 1, most = 50, pages = 103;
  auto memory = std::make_shared<server_pages<Stored>>();
  server_pages<Stored>& m = *memory;
  m.numbers.resize(at(pages * 2 * h_kv * page_rows * row));
  std::memset(static_cast<void*>(m.numbers.data()), 0xff, m.numbers.size() * sizeof(Stored));
  m.scales.assign(at(2 * pages * h_kv * page_rows), std::numeric_limits<float>::quiet_NaN());
  const size_type page = 2 * h_kv * page_rows * row;
  const auto pool = [&](Stored* from, size_type cols) {
    return nhd ? tensor_view<Stored>{from, pages, h_kv, page_rows, cols, page, row, h_kv * row, 1}
               : tensor_view<Stored>{from, pages,           h_kv, page_rows, cols,
                                     page, page_rows * row, row,  1};
  };
  const tensor_view<Stored> k = pool(m.numbers.data(), width_k),
                            v = pool(m.numbers.data() + page / 2, width_v);
  tensor_view<float> scale_k, scale_v;
  if (traits::scales == heed::detail::scale_of::row) {
    scale_k = heed::bhnd(m.scales.data(), pages, h_kv, page_rows, 1);
    scale_v = heed::bhnd(m.scales.data() + pages * h_kv * page_rows, pages, h_kv, page_rows, 1);
  }
  if (traits::scales == heed::detail::scale_of::head) {
    scale_k = {m.scales.data(), pages, h_kv, page_rows, 1, 0, 1, 0, 1};
    scale_v = {m.scales.data() + h_kv, pages, h_kv, page_rows, 1, 0, 1, 0, 1};
  }
  m.padded.assign(at(all.count() * most), -1);
  size_type used = 0;
  for (size_type s = 0; s < all.count(); ++s) {
    m.lengths.push_back(std::int32_t(all.tokens[at(s)]));
    for (size_type j = 0; j < all.tokens[at(s)]; ++j) {
      if (j % page_rows == 0) {
        m.padded[at(s * most + j / page_rows)] = std::int32_t(used * 7 % pages);
        m.packed.push_back(used++ * 7 % pages);
      }
      const size_type to = m.packed.back();
      for (size_type h = 0; h < h_kv; ++h) {
        for (size_type c = 0; c < width_k; ++c)
          k(to, h, j % page_rows, c) = keys.elements(s, h, j, c);
        for (size_type c = 0; c < width_v; ++c)
          v(to, h, j % page_rows, c) = values.elements(s, h, j, c);
        if (scale_k.data) scale_k(to, h, j % page_rows, 0) = keys.scales(s, h, j, 0);
        if (scale_v.data) scale_v(to, h, j % page_rows, 0) = values.scales(s, h, j, 0);
      }
    }
    m.starts.push_back(std::int64_t(m.packed.size()));
  }
  const heed::page_table table = nhd ? heed::page_table(m.padded.data(), all.count(), most)
                                     : heed::page_table(m.packed, m.starts);
  m.view.emplace_back(k, v, tensor_view<const float>(scale_k), tensor_view<const float>(scale_v),
                      table, m.lengths);
  return [memory](const list& chosen) {
    auto names = std::make_shared<list>(chosen);
    const std::shared_ptr<heed::kv_pages<Stored>> some(
        new heed::kv_pages<Stored>(memory->view[0].batch(*names)),
        [memory, names](heed::kv_pages<Stored>* p) { delete p; });
    return seen<Stored>(some);
  };
}

template <typename Stored>
chooser make_cache(kind k, const sequences& all, std::size_t turn) {
  switch (k) {
    case kind::contiguous:
      return make_kv_cache<Stored>(all, -1, 0, false);
    case kind::chosen_entries:
      return make_kv_cache<Stored>(all, -1, 0, true);
    case kind::rolling:
      return make_kv_cache<Stored>(all, window, 0, turn % 2 == 0);
    case kind::rolling_keep_first:
      return make_kv_cache<Stored>(all, window, keep_first, turn % 2 == 1);
    case kind::paged:
      return make_paged_cache<Stored>(all);
    case kind::nhd_pages:
      return make_pages<Stored>(all, true);
    default:
      return make_pages<Stored>(all, false);
  }
}

/// Number c of a row, exactly.
template <typename Stored>
double exact_number(const heed::detail::stored_rows<Stored>& rows, size_type j, size_type c) {
  const Stored* const row = rows.data + j * rows.row;
  if constexpr (std::is_same<Stored, heed::int4_block>::value) {
    const Stored& block = row[c / 32];
    return double(Stored::widen(block.minimum)) +
           double(Stored::widen(block.scale)) * block.quant(c % 32);
  } else if constexpr (std::is_same<Stored, heed::int8_block>::value) {
    return double(row[c / 32].scale) * row[c / 32].quants[c % 32];
  } else {
    using wide = std::conditional_t<std::is_same<Stored, double>::value, double, float>;
    return double(wide(row[c])) * (rows.scales ? double(rows.scales[j * rows.scale_row]) : 1);
  }
}
/// What the cache stores of each token, side by side: [sequences, H_kv, most tokens, d].
struct plain_tokens {
  heed::rows<double> key, value;
  list lengths;
  size_type longest = 0, kv_heads, d_k, d_v;
};
template <typename Stored>
plain_tokens as_stored(const sequences& all, bool keeps_first) {
  plain_tokens plain;
  plain.kv_heads = all.kv_heads, plain.d_k = all.d_k, plain.d_v = all.d_v;
  for (size_type s = 0; s < all.count(); ++s) {
    plain.lengths.push_back(static_cast<size_type>(all.held(s, keeps_first).size()));
    plain.longest = (std::max)(plain.longest, plain.lengths.back());
  }
  heed::kv_cache<Stored> cache(all.count(), all.kv_heads, all.d_k, all.d_v, 8, -1, 0,
                               scales_for<Stored>(all.kv_heads));
  all.append_in_pieces(
      [&](size_type s, const auto& key, const auto& value) { cache.append(s, key, value); });
  const auto spread_out = [&](const heed::detail::stored_tensor<Stored>& from, size_type d) {
    heed::rows<double> to = heed::rows<double>::Constant(
        all.count() * all.kv_heads * plain.longest, d, std::numeric_limits<double>::quiet_NaN());
    for (size_type s = 0; s < all.count(); ++s) {
      const list tokens = all.held(s, keeps_first);
      for (size_type h = 0; h < all.kv_heads; ++h) {
        const auto rows = from.head(s, h, 0, all.tokens[at(s)]);
        for (size_type j = 0; j < plain.lengths[at(s)]; ++j)
          for (size_type c = 0; c < d; ++c)
            to((s * all.kv_heads + h) * plain.longest + j, c) =
                exact_number(rows, tokens[at(j)], c);
      }
    }
    return to;
  };
  plain.key = spread_out(cache.keys(), all.d_k);
  plain.value = spread_out(cache.values(), all.d_v);
  return plain;
}
template <typename Number>
any_cache<Number> cache_of(const plain_tokens& plain) {
  const auto part = [&plain](const heed::rows<double>& numbers) {
    auto all = std::make_shared<heed::rows<Number>>(numbers.template cast<Number>());
    return [all, &plain] {
      heed::detail::stored_tensor<Number> rows(tensor_view<const Number>(
          heed::bhnd(all->data(), static_cast<size_type>(plain.lengths.size()), plain.kv_heads,
                     plain.longest, all->cols())));
      rows.lengths = plain.lengths;
      return rows;
    };
  };
  return {part(plain.key), part(plain.value)};
}

/// The numbers of the sequences' terms. Masks have a column for each token.
struct terms_of_sequences {
  std::vector<testing::mask> keep, kept_keys, kept_bits;
  std::vector<heed::rows<float>> bias;  // heads one below the other
  heed::rows<float> slopes;             // a row a sequence, or one for all
  heed::row_vector<float> sinks, factors;
  list first_keys, queries;

  terms_of_sequences(const sequences& all, const list& lengths) : queries(all.queries) {
    const combination& c = all.features;
    for (size_type s = 0; s < all.count(); ++s) {
      const size_type n_q = all.queries[at(s)], n_kv = lengths[at(s)];
      const unsigned seed = 40 + 10 * unsigned(s);
      keep.push_back(testing::random_mask(c.has(feature::keep_keys) ? 1 : n_q, n_kv, seed));
      kept_bits.push_back(testing::random_mask(n_q, n_kv, seed + 1, 0.6));
      if (!c.has(feature::keep_keys) && n_q > 0) keep.back().row(n_q / 2).setConstant(false);
      bias.push_back(
          testing::random_rows<float>(c.has(feature::bias) ? heads * n_q : n_q, n_kv, seed + 2));
      if (c.has(feature::bias_infinite))
        bias.back() = testing::random_mask(n_q, n_kv, seed + 3)
                          .select(bias.back(), -std::numeric_limits<float>::infinity());
      first_keys.push_back((std::min)(n_kv, n_kv / 2 + 3));
      if (c.has(query_lengths)) queries[at(s)] -= queries[at(s)] / 3;
    }
    if (c.has(feature::alibi)) slopes = heed::alibi_slopes<float>(heads).transpose();
    if (c.has(feature::alibi_of_entries))
      slopes = testing::random_rows<float>(all.count(), heads, 28).cwiseAbs() * 0.14f;
    if (c.has(feature::sinks)) {
      sinks.resize(heads);
      sinks << 0.5f, -std::numeric_limits<float>::infinity(), -1, 2;
    }
    if (c.has(feature::logit_scales)) {
      factors.resize(heads);
      factors << 0.5f, 1.25f, -1, 0;
    }
  }
};

heed::attention_options options_of(const combination& c) {
  return testing::matrix::setup({c.a < feature::count ? c.a : feature::plain,
                                 c.b < feature::count ? c.b : feature::plain},
                                {1, 1})
      .options;
}

/// Functions see the number of the sequence in the run, wherever it is in the call.
struct shown_in_run {
  const list* chosen;
  bool operator()(size_type b, size_type h, size_type i, size_type j) const {
    return testing::matrix::shown((*chosen)[at(b)], h, i, j);
  }
};
struct changed_in_run {
  const list* chosen;
  template <typename Acc>
  Acc operator()(Acc score, size_type b, size_type h, size_type i, size_type j) const {
    return testing::matrix::changed_score(score, (*chosen)[at(b)], h, i, j);
  }
};

template <typename Scalar>
struct result {
  using Acc = heed::accumulator_t<Scalar>;
  heed::rows<Scalar> out;  // rows of queries, heads side by side
  heed::rows<Acc> lse, largest_scores;
};

/// One call: some sequences of a run with all of their queries, the others with none.
struct call {
  list chosen, active;
  heed::attention_options options;
};

/// The memory of a call, on caches that hold the last `keys` tokens of each sequence.
template <typename Numbers>
struct prepared {
  using Acc = heed::accumulator_t<Numbers>;
  combination c;
  size_type d_v;
  const call& now;
  list starts{0}, first_keys, queries;
  std::vector<tensor_view<const bool>> keep;
  std::vector<heed::rows<Acc>> bias_numbers;
  std::vector<tensor_view<const Acc>> bias;
  std::vector<std::uint8_t> bits;
  list bits_from;
  heed::rows<Acc> slopes;
  heed::row_vector<Acc> sinks, factors;
  shown_in_run shown;
  changed_in_run changed;
  heed::rows<Numbers> query;
  result<Numbers> got;

  prepared(const sequences& all, const terms_of_sequences& numbers, const list& tokens,
           const list& keys, const call& one);
  prepared(const prepared&) = delete;

  /// attend(query, out, lse, starts, terms...)
  template <typename Attend>
  void run(const Attend& attend) {
    auto query_view = heed::split_heads(heed::view(query), heads);
    const auto out_view = heed::split_heads(heed::writable_view(got.out), heads);
    auto lse_view = heed::split_heads(heed::writable_view(got.lse), heads);
    const bool strides = c.has(feature::strides);
    std::optional<testing::matrix::spread<Numbers>> apart, out_apart;
    if (strides) {
      apart.emplace(query_view), out_apart.emplace(out_view);
      query_view = apart->view;
    }
    if (c.has(no_lse)) lse_view = {};
    using heed::when;
    attend(query_view, strides ? out_apart->view : out_view, lse_view, starts,
           when(c.has_any(feature::keep, feature::keep_keys), heed::keep_each(keep)),
           when(c.has_any(feature::bias, feature::bias_infinite), heed::bias_each(bias)),
           when(c.has(feature::keep_bits), heed::packed_keep_bits(bits, bits_from)),
           when(slopes.size() > 0, heed::alibi(slopes)), when(sinks.size() > 0, heed::sinks(sinks)),
           when(factors.size() > 0, heed::logit_scales(factors)),
           when(c.has(feature::first_keys), heed::first_keys(first_keys)),
           when(c.has(query_lengths), heed::query_lengths(queries)),
           when(c.has(max_logits), heed::max_logits(got.largest_scores)),
           when(c.has(feature::dropout), heed::dropout(0.3, 27)),
           when(c.has(feature::score_function), heed::score_function(changed)),
           when(c.has(feature::mask_function), heed::mask_function(shown)));
    if (strides) testing::matrix::copy(out_apart->view, out_view);
  }
};
template <typename Numbers>
prepared<Numbers>::prepared(const sequences& all, const terms_of_sequences& numbers,
                            const list& tokens, const list& keys, const call& one)
    : c(all.features), d_v(all.d_v), now(one), shown{&one.chosen}, changed{&one.chosen} {
  const size_type count = static_cast<size_type>(now.chosen.size());
  slopes.resize(c.has(feature::alibi_of_entries) ? count : numbers.slopes.rows(),
                numbers.slopes.cols());
  if (c.has(feature::alibi)) slopes = numbers.slopes.template cast<Acc>();
  query.resize(0, heads * all.d_k);
  for (size_type b = 0; b < count; ++b) {
    const size_type s = now.chosen[at(b)];
    const bool active = now.active[at(b)] != 0;
    const size_type stored = active ? all.queries[at(s)] : 0,
                    n_q = active ? numbers.queries[at(s)] : 0;
    starts.push_back(starts.back() + stored);
    queries.push_back(n_q);
    query.conservativeResize(starts.back(), Eigen::NoChange);
    query.bottomRows(stored) = all.query[at(s)].topRows(stored).template cast<Numbers>();
    // rows of keys that are read: those from the first key on, of what is held
    const size_type first = c.has(feature::first_keys) ? numbers.first_keys[at(s)] : 0,
                    n_kv = (std::min)(keys[at(s)], tokens[at(s)] - first), columns = tokens[at(s)],
                    before = columns - n_kv;
    first_keys.push_back(first);
    const testing::mask& mask = numbers.keep[at(s)];
    keep.push_back(
        {mask.data() + before, 1, 1, c.has(feature::keep_keys) ? 1 : n_q, n_kv, 0, 0, columns, 1});
    bias_numbers.push_back(numbers.bias[at(s)].template cast<Acc>());
    const bool each_head = c.has(feature::bias);
    bias.push_back({bias_numbers.back().data() + before, 1, each_head ? heads : 1, n_q, n_kv, 0,
                    all.queries[at(s)] * columns, columns, 1});
    bits_from.push_back(static_cast<size_type>(bits.size()));
    bits.resize(bits.size() + at((n_q * n_kv + 7) / 8), 0);
    for (size_type i = 0; i < n_q; ++i)
      for (size_type j = 0; j < n_kv; ++j)
        if (const size_type bit = i * n_kv + j; numbers.kept_bits[at(s)](i, before + j))
          bits[at(bits_from.back() + bit / 8)] |= std::uint8_t(1u << bit % 8);
    if (c.has(feature::alibi_of_entries))
      slopes.row(b) = numbers.slopes.row(s).template cast<Acc>();
  }
  sinks = numbers.sinks.template cast<Acc>();
  factors = numbers.factors.template cast<Acc>();
  got = {heed::rows<Numbers>::Constant(starts.back(), heads * all.d_v, Numbers(-7.0f)),
         heed::rows<Acc>::Constant(starts.back(), heads, Acc(-7)),
         heed::rows<Acc>::Constant(count, heads, Acc(-7))};
}

/// What the reference makes of a call, in the type Numbers, from the tokens themselves.
template <typename Numbers>
result<Numbers> by_reference(const sequences& all, const terms_of_sequences& numbers,
                             const plain_tokens& plain, const call& now) {
  const auto cache = cache_of<heed::accumulator_t<Numbers>>(plain);
  prepared<Numbers> one(all, numbers, plain.lengths, plain.lengths, now);
  one.run([&](const auto& query, const auto& out, const auto& lse, const list& starts,
              const auto&... terms) {
    heed::reference_ragged_cached_attention_into(query, cache, out, lse, starts, now.options,
                                                 terms...);
  });
  return one.got;
}

/// A type that a cache has.
struct storage {
  bool in_blocks;
  plain_tokens (*as_stored)(const sequences&, bool keeps_first);
  chooser (*make_cache)(kind, const sequences&, std::size_t turn);
};
/// What is right for a call, and how wrong the reference in Scalar is.
template <typename Scalar>
struct judged {
  using wide = testing::wider_t<Scalar>;
  plain_tokens plain;
  terms_of_sequences numbers;
  result<wide> exact;
  testing::reference_error error;

  judged(const sequences& all, plain_tokens tokens)
      : plain(std::move(tokens)), numbers(all, plain.lengths) {}
  void judge(const sequences& all, const call& now) {
    exact = by_reference<wide>(all, numbers, plain, now);
    const result<Scalar> same = by_reference<Scalar>(all, numbers, plain, now);
    error.out = testing::max_error(same.out, exact.out);
    error.lse = testing::max_error(same.lse, exact.lse);
  }
};

template <typename Got, typename Exact>
void check_exactness(const std::string& name, const Got& got, const Exact& exact, long double error,
                     long double scale = 0) {
  testing::checksum(name, got);
  INFO(name);
  testing::check_error(got, exact, error, scale);
}

/// What has been run.
struct coverage {
  std::set<std::tuple<feature, feature, kind>> pairs;
  std::set<std::tuple<feature, kind, unsigned>> types;
  std::set<std::tuple<feature, kind, heed::isa>> sets;
  std::set<std::tuple<unsigned, kind, heed::isa>> types_on_sets;
  size_type refused = 0;

  void add(const combination& c, kind k, unsigned type, heed::isa target) {
    pairs.emplace(c.a, c.b, k);
    for (const feature f : {c.a, c.b}) {
      types.emplace(f, k, type);
      sets.emplace(f, k, target);
    }
    types_on_sets.emplace(type, k, target);
  }
};

constexpr const char* function_name = "heed::ragged_cached_attention_into";

template <typename Stored>
constexpr storage storage_of{(heed::detail::numbers_in<Stored> > 1), as_stored<Stored>,
                             make_cache<Stored>};

template <typename Scalar>
using attend_on = void (*)(prepared<Scalar>&, const void* cache, const heed::attention_options&,
                           heed::workspace&);
template <typename Scalar, typename Stored>
void attend(prepared<Scalar>& one, const void* cache, const heed::attention_options& options,
            heed::workspace& memory) {
  one.run([&](const auto& query, const auto& out, const auto& lse, const list& starts,
              const auto&... terms) {
    heed::ragged_cached_attention_into(query, *static_cast<const any_cache<Stored>*>(cache), out,
                                       lse, starts, options, memory, terms...);
  });
}

/// One combination on every kind of cache of one type.
template <typename Scalar>
void run_combination(const combination& c, unsigned type, const char* type_name,
                     const storage& stored, attend_on<Scalar> attend, std::size_t turn,
                     std::size_t first_set, coverage& done) {
  // Kinds that hold the same tokens, and see them with the same options, have the same result.
  std::map<std::tuple<bool, bool, bool>, std::unique_ptr<judged<Scalar>>> known;
  for (unsigned n = 0; n < unsigned(kind::count); ++n) {
    const kind k = kind(n);
    const bool is_view = k == kind::nhd_pages || k == kind::hnd_pages;
    const bool whole_blocks = stored.in_blocks && is_view;
    const sequences all(Scalar(), c, turn, whole_blocks);
    call now{list(at(all.count())), list(at(all.count()), 1), options_of(c)};
    std::iota(now.chosen.begin(), now.chosen.end(), size_type{0});
    const chooser cache = stored.make_cache(k, all, turn);
    const std::vector<heed::isa> sets = testing::isas();
    const heed::isa target = sets[(first_set + n) % sets.size()];
    done.add(c, k, type, target);
    const std::string name = std::string(type_name) + ": " + kind_names[n] + ": " + name_of(c) +
                             ": " + testing::name_of(target);
    INFO(name << ", turn " << turn);

    list keys;
    for (size_type s = 0; s < all.count(); ++s)
      keys.push_back(k == kind::rolling ? all.tokens[at(s)] - all.dropped(s)
                                        : static_cast<size_type>(
                                              all.held(s, k == kind::rolling_keep_first).size()));
    heed::workspace memory;
    const auto run = [&](const judged<Scalar>& right, call one, int threads) {
      one.options.execution.target = target;
      one.options.execution.threads = threads;
      prepared<Scalar> memory_of(all, right.numbers, right.plain.lengths, keys, one);
      attend(memory_of, cache(one.chosen).get(), one.options, memory);
      return memory_of.got;
    };
    const auto refuse = [&](const judged<Scalar>& right, const call& one,
                            const std::vector<std::string>& words) {
      testing::check_refused([&] { run(right, one, 1); }, words);
      ++done.refused;
    };

    // A rolling cache is asked for no more than it keeps.
    const bool bounded = k == kind::rolling && now.options.window_left < 0;
    const call unbounded = now;
    if (bounded) now.options.window_left = window;
    std::unique_ptr<judged<Scalar>>& right =
        known[{k == kind::rolling_keep_first, bounded, whole_blocks}];
    const bool hidden_logits = c.has(max_logits) && c.has(feature::sinks);
    if (!right) {
      const bool keeps_first = k == kind::rolling_keep_first;
      right.reset(new judged<Scalar>(all, stored.as_stored(all, keeps_first)));
      if (!hidden_logits) right->judge(all, now);
      // in double a draw of so few rows was right by luck
      for (unsigned draw = 1; draw < 3 && std::is_same<Scalar, double>::value && !hidden_logits;
           ++draw) {
        const sequences again(Scalar(), c, turn, whole_blocks, draw);
        judged<Scalar> other(again, stored.as_stored(again, keeps_first));
        other.judge(again, now);
        right->error.out = (std::max)(right->error.out, other.error.out);
        right->error.lse = (std::max)(right->error.lse, other.error.lse);
      }
    }
    if (bounded && !hidden_logits)
      refuse(*right, unbounded,
             {function_name, "window_left -1 reaches past what the cache keeps: its window is 40"});
    bool too_far = false;
    for (size_type s = 0; s < all.count(); ++s) {
      const size_type first = c.has(feature::first_keys) ? right->numbers.first_keys[at(s)] : 0;
      too_far = too_far || (all.dropped(s) > first && right->numbers.queries[at(s)] > 0);
    }
    if (hidden_logits) {
      refuse(*right, now, {function_name, "leave sinks or max_logits out"});
      continue;
    }
    if (k == kind::rolling && now.options.causal == heed::causal::top_left && too_far) {
      refuse(*right, now, {function_name, "the window of query 0 of sequence", "it has dropped"});
      continue;
    }

    const result<Scalar> got = run(*right, now, 1 + int(turn % 2));
    check_exactness(name + ": out", got.out, right->exact.out, right->error.out);
    if (c.has(no_lse))
      CHECK((got.lse.array() == heed::accumulator_t<Scalar>(-7)).all());
    else
      check_exactness(name + ": lse", got.lse, right->exact.lse, right->error.lse, 1);
    // Among scores that are NaN the largest is any number. Another is as right as its sum of d_k
    // products of numbers below 2, scaled by 0.375 at most, and the steps after it.
    if (c.has(max_logits) && !c.has(feature::nan_inputs)) {
      testing::checksum(name + ": max_logits", got.largest_scores);
      const auto ulp =
          static_cast<long double>(Eigen::NumTraits<heed::accumulator_t<Scalar>>::epsilon());
      const auto d_k = static_cast<long double>(all.d_k);
      CHECK(testing::max_error(got.largest_scores, right->exact.largest_scores) <=
            ulp * (d_k + 8) * (4 * 0.375L * d_k + testing::magnitude(right->exact.largest_scores)));
    }

    size_type row = 0;
    for (size_type s = 0; s < all.count(); ++s) {
      // dropout depends on the place in the batch
      call alone{{s}, {1}, now.options};
      const size_type place = c.has(feature::dropout) ? s : 0;
      if (c.has(feature::dropout)) {
        alone.chosen = now.chosen, alone.active.assign(at(all.count()), 0);
        alone.active[at(s)] = 1;
      }
      const result<Scalar> one = run(*right, alone, 2 - int(turn % 2));
      const size_type rows = all.queries[at(s)];
      INFO("sequence " << s);
      CHECK(testing::max_error(one.out, got.out.middleRows(row, rows)) == 0);
      CHECK(testing::max_error(one.lse, got.lse.middleRows(row, rows)) == 0);
      if (!c.has(feature::nan_inputs))
        CHECK(testing::max_error(one.largest_scores.row(place), got.largest_scores.row(s)) == 0);
      row += rows;
    }
  }
}

struct types {
  const char* name;
  std::function<void(const combination&, unsigned, const char*, std::size_t turn,
                     std::size_t first_set, coverage&)>
      run;
};
template <typename Scalar, typename Stored>
types on(const char* name) {
  return {name, [](const combination& c, unsigned type, const char* type_name, std::size_t turn,
                   std::size_t first_set, coverage& done) {
            run_combination<Scalar>(c, type, type_name, storage_of<Stored>, attend<Scalar, Stored>,
                                    turn, first_set, done);
          }};
}
const types all_types[] = {
    on<double, double>("double on double"),
    on<float, float>("float on float"),
    on<float, Eigen::bfloat16>("float on bfloat16"),
    on<float, Eigen::half>("float on half"),
    on<float, std::int8_t>("float on int8"),
    on<float, heed::int8_block>("float on int8_block"),
    on<float, heed::int4_block>("float on int4_block"),
    on<float, heed::float8_e4m3>("float on float8_e4m3"),
    on<float, heed::float8_e5m2>("float on float8_e5m2"),
    on<Eigen::bfloat16, float>("bfloat16 on float"),
    on<Eigen::bfloat16, Eigen::bfloat16>("bfloat16 on bfloat16"),
    on<Eigen::bfloat16, Eigen::half>("bfloat16 on half"),
    on<Eigen::bfloat16, std::int8_t>("bfloat16 on int8"),
    on<Eigen::bfloat16, heed::int8_block>("bfloat16 on int8_block"),
    on<Eigen::bfloat16, heed::int4_block>("bfloat16 on int4_block"),
    on<Eigen::bfloat16, heed::float8_e4m3>("bfloat16 on float8_e4m3"),
    on<Eigen::bfloat16, heed::float8_e5m2>("bfloat16 on float8_e5m2"),
    on<Eigen::half, float>("half on float"),
    on<Eigen::half, Eigen::bfloat16>("half on bfloat16"),
    on<Eigen::half, Eigen::half>("half on half"),
    on<Eigen::half, std::int8_t>("half on int8"),
    on<Eigen::half, heed::int8_block>("half on int8_block"),
    on<Eigen::half, heed::int4_block>("half on int4_block"),
    on<Eigen::half, heed::float8_e4m3>("half on float8_e4m3"),
    on<Eigen::half, heed::float8_e5m2>("half on float8_e5m2"),
};

}  // namespace

TEST_CASE("mixed batches: features in pairs on every kind of cache, in every type") {
  coverage done;
  std::set<std::pair<feature, unsigned>> tried;
  std::vector<feature> features;
  for (unsigned f = 0; f < feature_count; ++f)
    if (!refused_in_mixed_batches(feature(f)) && !left_out(feature(f)))
      features.push_back(feature(f));
  const std::size_t kinds = std::size_t(kind::count), sets = testing::isas().size();
  std::set<std::pair<feature, std::size_t>> begun;
  std::set<std::pair<unsigned, std::size_t>> begun_types;
  std::size_t turn = 0, pairs = 0;
  const auto run = [&](const combination& c, unsigned type) {
    // the instruction set to begin with that has been tried least with all three
    std::size_t first_set = 0, most = 0;
    for (std::size_t n = 0; n < sets; ++n) {
      const std::size_t set = (turn + n) % sets, fresh = 4 - begun.count({c.a, set}) -
                                                         begun.count({c.b, set}) -
                                                         begun_types.count({type, set});
      if (fresh > most) most = fresh, first_set = set;
    }
    begun.insert({{c.a, first_set}, {c.b, first_set}});
    begun_types.emplace(type, first_set);
    tried.insert({{c.a, type}, {c.b, type}});
    all_types[type].run(c, type, all_types[type].name, turn++, first_set, done);
  };
  for (std::size_t a = 0; a < features.size(); ++a)
    for (std::size_t b = a + 1; b < features.size(); ++b) {
      const combination c{features[a], features[b]};
      if (!c.possible()) continue;
      ++pairs;
      // the type that has been tried least with the two
      unsigned best = 0;
      std::size_t most = 0;
      for (unsigned n = 0; n < std::size(all_types); ++n) {
        const unsigned type = unsigned((turn + n) % std::size(all_types));
        const std::size_t fresh =
            1 + (1 - tried.count({c.a, type})) + (1 - tried.count({c.b, type}));
        if (fresh > most) most = fresh, best = type;
      }
      run(c, best);
    }
  for (const feature f : features)
    for (unsigned type = 0; type < std::size(all_types); ++type)
      if (tried.count({f, type}) == 0) run({feature::plain, f}, type);

  CHECK(done.pairs.size() == pairs * kinds);
  CHECK(done.types.size() == features.size() * std::size(all_types) * kinds);
  CHECK(done.sets.size() == features.size() * sets * kinds);
  CHECK(done.types_on_sets.size() == std::size(all_types) * sets * kinds);
  CHECK(done.refused > 0);
}

TEST_CASE("mixed batches: every kind of cache refuses terms of a padded batch") {
  const sequences all(float(), {feature::plain, feature::plain}, 0, false);
  list chosen(at(all.count())), starts{0};
  std::iota(chosen.begin(), chosen.end(), size_type{0});
  for (const size_type n : all.queries) starts.push_back(starts.back() + n);
  const size_type total = starts.back();
  const heed::rows<float> query = testing::random_rows<float>(total, heads * all.d_k, 5);
  heed::rows<float> out = heed::rows<float>::Constant(total, heads * all.d_v, -7);
  const heed::rows<bool> keep = heed::rows<bool>::Constant(1, 1, true);
  const heed::rows<float> bias = heed::rows<float>::Zero(1, 1);
  const std::vector<std::uint8_t> bits(1, 255);
  heed::workspace memory;
  for (unsigned n = 0; n < unsigned(kind::count); ++n) {
    INFO(kind_names[n]);
    const std::shared_ptr<void> made = make_cache<float>(kind(n), all, 0)(chosen);
    const auto& cache = *static_cast<const any_cache<float>*>(made.get());
    const heed::detail::stored_tensor<float> keys = cache.keys();
    const heed::block_mask blocks(1, 1, total, keys.rows, 16, 32);
    heed::attention_options options;
    options.window_left = window;
    for (const feature f : {feature::keep, feature::keep_bits, feature::bias, feature::blocks,
                            feature::mask_function_in_blocks, feature::key_lengths}) {
      INFO(name_of(f));
      list lengths;
      for (size_type b = 0; b < keys.batch; ++b) lengths.push_back(keys.length(b));
      using heed::when;
      testing::check_refused(
          [&] {
            heed::ragged_cached_attention_into(
                heed::split_heads(heed::view(query), heads), cache,
                heed::split_heads(heed::writable_view(out), heads), {}, starts, options, memory,
                when(f == feature::keep, heed::keep(keep)),
                when(f == feature::keep_bits,
                     heed::keep_bits(heed::bhnd(bits.data(), 1, 1, 1, 1), keys.rows)),
                when(f == feature::bias, heed::bias(bias)),
                when(f == feature::blocks, heed::blocks(blocks)),
                when(f == feature::mask_function_in_blocks,
                     heed::mask_function(testing::matrix::shown, blocks)),
                when(f == feature::key_lengths, heed::key_lengths(lengths)));
          },
          {function_name, f == feature::key_lengths
                              ? "a cache has its own key_lengths; leave the term out"
                              : "give keep_each, bias_each, packed_keep_bits or a mask function"});
      CHECK((out.array() == -7.0f).all());
    }
  }
}
