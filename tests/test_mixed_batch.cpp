#include <heed/cached_attention.hpp>

#include <heed/kv_cache.hpp>
#include <heed/paged_kv_cache.hpp>
#include <heed/position.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "support/example.hpp"
#include "support/isas.hpp"
#include "support/refusal.hpp"

namespace {

using heed::size_type;

constexpr size_type heads = 6, kv_heads = 2, d_k = 20, d_v = 9;

/// What a server has at a step: a prompt, one token, drafted tokens, a sequence with nothing new,
/// one without keys, a chunk of a prompt, tokens after more keys than a part.
const std::vector<size_type> queries{37, 1, 8, 0, 1, 64, 3, 2},
    lengths{37, 1400, 200, 10, 0, 150, 1, 1200};

std::vector<size_type> starts_of(const std::vector<size_type>& counts) {
  std::vector<size_type> starts{0};
  for (const size_type n : counts) starts.push_back(starts.back() + n);
  return starts;
}

/// The sequences in pages, and their new queries one after the other.
template <typename Scalar, typename Stored>
struct server {
  heed::paged_kv_cache<Stored> pages{400, 16, kv_heads, d_k, d_v};
  std::vector<size_type> names, starts = starts_of(queries);
  heed::rows<Scalar> query = testing::random_rows<Scalar>(starts.back(), heads* d_k, 1);

  server() {
    for (const size_type length : lengths) {
      names.push_back(pages.add_sequence());
      const unsigned seed = 10 + unsigned(names.back());
      const auto key = testing::random_rows<Scalar>(length, kv_heads * d_k, seed),
                 value = testing::random_rows<Scalar>(length, kv_heads * d_v, 100 + seed);
      pages.append(names.back(), heed::split_heads(heed::view(key), kv_heads),
                   heed::split_heads(heed::view(value), kv_heads));
    }
  }
  auto view() const { return heed::split_heads(heed::view(query), heads); }
  /// The queries of sequence b alone.
  auto view_of(std::size_t b) const {
    auto one = view();
    one.data += starts[b] * one.row_stride;
    one.rows = queries[b];
    return one;
  }
};

template <typename Scalar>
struct result {
  using Acc = heed::accumulator_t<Scalar>;
  heed::rows<Scalar> out;
  heed::rows<Acc> lse;
  explicit result(size_type rows)
      : out(heed::rows<Scalar>::Constant(rows, heads * d_v, Scalar(-7))),
        lse(heed::rows<Acc>::Constant(rows, heads, Acc(-7))) {}
  auto out_view() { return heed::split_heads(heed::writable_view(out), heads); }
  auto lse_view() { return heed::split_heads(heed::writable_view(lse), heads); }
};

std::vector<heed::attention_options> variations() {
  std::vector<heed::attention_options> all(4);
  all[1].causal = heed::causal::bottom_right;
  all[2].causal = heed::causal::top_left;
  all[2].softcap = 3;
  all[3].causal = heed::causal::bottom_right;
  all[3].window_left = 90;
  return all;
}

/// What of a mixed call belongs to sequence b equals, to the bit, what alone(b) computes.
template <typename Scalar, typename Stored, typename Alone>
void check_alone(const server<Scalar, Stored>& s, const result<Scalar>& mixed, const Alone& alone) {
  for (std::size_t b = 0; b < queries.size(); ++b) {
    result<Scalar> one(queries[b]);
    alone(b, one);
    CAPTURE(b);
    CHECK(mixed.out.middleRows(s.starts[b], queries[b]) == one.out);
    CHECK(mixed.lse.middleRows(s.starts[b], queries[b]) == one.lse);
  }
}

template <typename Query, typename Cached>
struct types {
  using scalar = Query;
  using stored = Cached;
};

}  // namespace

TEMPLATE_TEST_CASE("a mixed batch is each sequence alone, to the bit", "", (types<float, float>),
                   (types<double, double>), (types<Eigen::bfloat16, Eigen::bfloat16>),
                   (types<Eigen::half, Eigen::bfloat16>), (types<float, std::int8_t>)) {
  using Scalar = typename TestType::scalar;
  using Stored = typename TestType::stored;
  using Acc = heed::accumulator_t<Scalar>;
  const server<Scalar, Stored> s;
  const heed::row_vector<Acc> slopes = heed::alibi_slopes<Acc>(heads),
                              logits = testing::random_rows<Acc>(heads, 1, 4);
  const auto near_by = [](size_type, size_type, size_type i, size_type j) {
    return (i + j) % 3 != 0;
  };
  for (heed::attention_options options : variations())
    for (const heed::isa target : testing::isas())
      for (const int threads : {1, 3}) {
        CAPTURE(testing::name_of(target), threads, int(options.causal), options.window_left);
        options.execution.target = target;
        options.execution.threads = threads;
        const auto compare = [&](const auto&... terms) {
          result<Scalar> mixed(s.starts.back());
          heed::workspace memory;
          heed::ragged_cached_attention_into(s.view(), s.pages.batch(s.names), mixed.out_view(),
                                             mixed.lse_view(), s.starts, options, memory, terms...);
          check_alone(s, mixed, [&](std::size_t b, result<Scalar>& one) {
            heed::workspace own;
            const std::vector<size_type> name{s.names[b]};
            heed::attention_options single = options;
            single.execution.threads = 1;
            heed::cached_attention_into(s.view_of(b), s.pages.batch(name), one.out_view(),
                                        one.lse_view(), single, own, terms...);
          });
        };
        compare();
        compare(heed::alibi(slopes), heed::sinks(logits));
        compare(heed::mask_function(near_by));
      }
}

TEST_CASE("masks and biases of a mixed batch have the sizes of each sequence") {
  using Stored = float;
  const server<float, Stored> s;
  std::vector<heed::rows<bool>> masks;
  std::vector<heed::rows<float>> numbers;
  std::vector<std::uint8_t> bits;
  std::vector<std::int32_t> bits_from{0};
  for (std::size_t b = 0; b < queries.size(); ++b) {
    const auto drawn = testing::random_rows<float>(queries[b], lengths[b], 40 + unsigned(b));
    masks.push_back(drawn.array() > -0.5f);
    numbers.push_back(testing::random_rows<float>(queries[b], lengths[b], 60 + unsigned(b)));
    std::vector<std::uint8_t> own(std::size_t((queries[b] * lengths[b] + 7) / 8), 0);
    for (size_type i = 0; i < queries[b]; ++i)
      for (size_type j = 0; j < lengths[b]; ++j)
        if (masks[b](i, j)) {
          const auto bit = std::size_t(i * lengths[b] + j);
          own[bit / 8] = std::uint8_t(own[bit / 8] | 1 << bit % 8);
        }
    bits.insert(bits.end(), own.begin(), own.end());
    bits_from.push_back(std::int32_t(bits.size()));
  }
  std::vector<heed::tensor_view<const bool>> mask_views;
  std::vector<heed::tensor_view<const float>> bias_views;
  for (std::size_t b = 0; b < queries.size(); ++b) {
    mask_views.push_back(heed::view(masks[b]));
    bias_views.push_back(heed::view(numbers[b]));
  }
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  for (const heed::isa target : testing::isas()) {
    options.execution.target = target;
    CAPTURE(testing::name_of(target));
    const auto mixed = [&](const auto&... terms) {
      result<float> all(s.starts.back());
      heed::workspace memory;
      heed::ragged_cached_attention_into(s.view(), s.pages.batch(s.names), all.out_view(),
                                         all.lse_view(), s.starts, options, memory, terms...);
      return all;
    };
    const auto alone = [&](const auto& term) {
      return [&s, &options, term](std::size_t b, result<float>& one) {
        heed::workspace memory;
        const std::vector<size_type> name{s.names[b]};
        heed::cached_attention_into(s.view_of(b), s.pages.batch(name), one.out_view(),
                                    one.lse_view(), options, memory, term(b));
      };
    };
    const auto keep = alone([&](std::size_t b) { return heed::keep(masks[b]); });
    const auto bias = alone([&](std::size_t b) { return heed::bias(numbers[b]); });
    check_alone(s, mixed(heed::keep_each(mask_views)), keep);
    check_alone(s, mixed(heed::bias_each(bias_views)), bias);
    // The bits go through a function of blocks, which may choose another path for hidden pairs:
    // the values are the same, since what is hidden adds nothing.
    const result<float> by_bits = mixed(heed::packed_keep_bits(bits, bits_from)),
                        by_mask = mixed(heed::keep_each(mask_views));
    CHECK(by_bits.out == by_mask.out);
    CHECK(by_bits.lse == by_mask.lse);
  }
  // The reference takes them too.
  result<float> reference(s.starts.back()), by_bits(s.starts.back());
  heed::reference_ragged_cached_attention_into(s.view(), s.pages.batch(s.names),
                                               reference.out_view(), reference.lse_view(), s.starts,
                                               options, heed::keep_each(mask_views));
  heed::reference_ragged_cached_attention_into(s.view(), s.pages.batch(s.names), by_bits.out_view(),
                                               by_bits.lse_view(), s.starts, options,
                                               heed::packed_keep_bits(bits, bits_from));
  CHECK(reference.out == by_bits.out);
}

TEST_CASE("the sequences of a mixed batch can come in any order") {
  const server<float, float> s;
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  heed::workspace memory;
  result<float> forwards(s.starts.back()), backwards(s.starts.back());
  heed::ragged_cached_attention_into(s.view(), s.pages.batch(s.names), forwards.out_view(), {},
                                     s.starts, options, memory);
  std::vector<size_type> order(queries.size()), names, counts;
  std::iota(order.begin(), order.end(), 0);
  std::reverse(order.begin(), order.end());
  heed::rows<float> turned(s.query.rows(), s.query.cols());
  size_type row = 0;
  for (const size_type b : order) {
    const auto at = std::size_t(b);
    names.push_back(s.names[at]);
    counts.push_back(queries[at]);
    turned.middleRows(row, queries[at]) = s.query.middleRows(s.starts[at], queries[at]);
    row += queries[at];
  }
  heed::ragged_cached_attention_into(heed::split_heads(heed::view(turned), heads),
                                     s.pages.batch(names), backwards.out_view(), {},
                                     starts_of(counts), options, memory);
  row = 0;
  for (const size_type b : order) {
    const auto at = std::size_t(b);
    CHECK(backwards.out.middleRows(row, queries[at]) ==
          forwards.out.middleRows(s.starts[at], queries[at]));
    row += queries[at];
  }
}

TEST_CASE("decoding takes memory for the sequences at work, not for all of them") {
  // One token for each of 256 sequences, one of them long.
  heed::paged_kv_cache<float> pages(1600, 16, 8, 128, 128);
  std::vector<size_type> names;
  const heed::rows<float> tokens = heed::rows<float>::Constant(16000, 8 * 128, 0.5f);
  const auto all = heed::split_heads(heed::view(tokens), 8);
  for (size_type b = 0; b < 256; ++b) {
    names.push_back(pages.add_sequence());
    auto some = all;
    some.rows = b == 100 ? 16000 : 1 + b % 16;
    pages.append(names.back(), some, some);
  }
  const heed::rows<float> query = heed::rows<float>::Constant(256, 32 * 128, 0.1f);
  const auto one_each = heed::split_heads(heed::view(query), 32, 256);
  for (const int threads : {1, 2, 8}) {
    heed::attention_options options;
    options.execution.threads = threads;
    CHECK(heed::cached_attention_workspace_bytes(one_each, pages.batch(names), options) <=
          threads * (size_type{1} << 20));
  }
}

TEST_CASE("a mixed batch refuses what does not fit") {
  const server<float, float> s;
  result<float> got(s.starts.back());
  heed::workspace memory;
  const auto call = [&](const std::vector<size_type>& starts, const auto&... terms) {
    heed::ragged_cached_attention_into(s.view(), s.pages.batch(s.names), got.out_view(),
                                       got.lse_view(), starts, {}, memory, terms...);
  };
  const auto refused = [&](const std::vector<size_type>& starts, const std::string& message,
                           const auto&... terms) {
    CHECK_THROWS_WITH(call(starts, terms...), "heed::ragged_cached_attention_into: " + message);
    CHECK((got.out.array() == -7.0f).all());
  };
  std::vector<size_type> falling = s.starts, few(s.starts.begin() + 1, s.starts.end());
  falling[2] = falling[1] - 1;
  few.front() = 0;
  refused(falling, "query_starts must not decrease, but entry 2 is 36 after 37");
  refused(few, "the cache: sequences 8 does not match query_starts' sequences 7");
  const heed::rows<bool> mask = heed::rows<bool>::Constant(s.starts.back(), 1, true);
  refused(s.starts,
          "keep, keep_bits, bias and blocks have the sizes of a padded batch; for sequences of "
          "their own sizes give keep_each, bias_each, packed_keep_bits or a mask function",
          heed::keep(mask));
  std::vector<heed::tensor_view<const bool>> views(queries.size(), heed::view(mask));
  refused(s.starts, "keep_each of sequence 0: n_q 116 is neither 1 nor 37", heed::keep_each(views));
  views.pop_back();
  refused(s.starts, "keep_each 7 does not match the call's sequences 8", heed::keep_each(views));
  const std::vector<std::uint8_t> bits(100, 255);
  const std::vector<std::int32_t> from(9, 0);
  refused(s.starts,
          "packed_keep_bits: sequence 0 has bytes [0, 0) of 100, but its 37 x 37 pairs take 172",
          heed::packed_keep_bits(bits, from));
  // An end before its beginning, however far.
  std::vector<std::int64_t> ends(9, 1);
  ends[1] = (std::numeric_limits<std::int64_t>::min)();
  refused(s.starts,
          "packed_keep_bits: sequence 0 has bytes [1, " + std::to_string(ends[1]) +
              ") of 100, but its 37 x 37 pairs take 172",
          heed::packed_keep_bits(bits, ends));
}
