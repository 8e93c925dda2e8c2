#include <heed/ragged.hpp>

#include <heed/position.hpp>

#include <vector>

#include "support/example.hpp"
#include "support/isas.hpp"
#include "support/refusal.hpp"

namespace {

constexpr heed::size_type heads = 4, kv_heads = 2, d_k = 12, d_v = 7;

/// Sequences of every kind: empty, without keys, without queries, one token, more than a block.
const std::vector<heed::size_type> query_starts{0, 0, 1, 4, 4, 60, 61, 61},
    key_starts{0, 0, 1, 1, 9, 80, 90, 90};

/// All tokens, one after the other: [total, H, d].
template <typename Scalar>
struct packed {
  heed::rows<Scalar> query, key, value;
  packed()
      : query(testing::random_rows<Scalar>(query_starts.back(), heads * d_k, 1)),
        key(testing::random_rows<Scalar>(key_starts.back(), kv_heads * d_k, 2)),
        value(testing::random_rows<Scalar>(key_starts.back(), kv_heads * d_v, 3)) {}
  auto query_view() const { return heed::split_heads(heed::view(query), heads); }
  auto key_view() const { return heed::split_heads(heed::view(key), kv_heads); }
  auto value_view() const { return heed::split_heads(heed::view(value), kv_heads); }
};

/// out [total, H * d_v] and lse [total, H].
template <typename Scalar>
struct result {
  heed::rows<Scalar> out =
      heed::rows<Scalar>::Constant(query_starts.back(), heads* d_v, Scalar(-7));
  heed::rows<Scalar> lse = heed::rows<Scalar>::Constant(query_starts.back(), heads, Scalar(-7));
  auto out_view() { return heed::split_heads(heed::writable_view(out), heads); }
  auto lse_view() { return heed::split_heads(heed::writable_view(lse), heads); }
};

template <typename Scalar, typename... Terms>
result<Scalar> reference_of(const packed<Scalar>& all, const heed::attention_options& options,
                            const Terms&... terms) {
  result<Scalar> got;
  heed::reference_ragged_attention_into(all.query_view(), all.key_view(), all.value_view(),
                                        got.out_view(), got.lse_view(), query_starts, key_starts,
                                        options, terms...);
  return got;
}

const std::vector<heed::attention_options> all_options = [] {
  std::vector<heed::attention_options> all(4);
  all[1].causal = heed::causal::bottom_right;
  all[2].causal = heed::causal::top_left;
  all[3].window_left = 3;
  all[3].window_right = 5;
  return all;
}();

}  // namespace

TEST_CASE("a ragged batch is its sequences one by one") {
  const packed<double> all;
  const heed::row_vector<double> slopes = heed::alibi_slopes<double>(heads),
                                 logits = testing::random_rows<double>(heads, 1, 4);
  for (const heed::attention_options& options : all_options) {
    const auto got = reference_of(all, options, heed::alibi(slopes), heed::sinks(logits));
    for (std::size_t s = 0; s + 1 < query_starts.size(); ++s) {
      const heed::size_type q = query_starts[s], n_q = query_starts[s + 1] - q, k = key_starts[s],
                            n_kv = key_starts[s + 1] - k;
      for (heed::size_type h = 0; h < heads; ++h) {
        const heed::size_type h_kv = h / 2;
        const auto one = heed::reference_attention_with_lse(
            all.query.block(q, h * d_k, n_q, d_k), all.key.block(k, h_kv * d_k, n_kv, d_k),
            all.value.block(k, h_kv * d_v, n_kv, d_v), options, heed::alibi(slopes.segment<1>(h)),
            heed::sinks(logits.segment<1>(h)));
        CAPTURE(s, h);
        CHECK(got.out.block(q, h * d_v, n_q, d_v) == one.out);
        CHECK(got.lse.block(q, h, n_q, 1) == one.lse);
      }
    }
  }
}

TEMPLATE_TEST_CASE("ragged_attention_into is as exact as the reference, on any number of threads",
                   "", float, double) {
  using wide = testing::wider_t<TestType>;
  const packed<TestType> all;
  for (const heed::attention_options& given : all_options) {
    const auto same = reference_of(all, given);
    packed<wide> cast;
    cast.query = all.query.template cast<wide>();
    cast.key = all.key.template cast<wide>();
    cast.value = all.value.template cast<wide>();
    const auto exact = reference_of(cast, given);
    for (const heed::isa target : testing::isas()) {
      heed::attention_options options = given;
      options.execution.target = target;
      result<TestType> one;
      for (const int threads : {1, 2, 5}) {
        CAPTURE(testing::name_of(target), threads);
        options.execution.threads = threads;
        heed::workspace memory;
        result<TestType> got;
        heed::ragged_attention_into(all.query_view(), all.key_view(), all.value_view(),
                                    got.out_view(), got.lse_view(), query_starts, key_starts,
                                    options, memory);
        testing::check_as_exact_as(got.out, same.out, exact.out);
        testing::check_as_exact_as(got.lse, same.lse, exact.lse, 1);
        if (threads == 1) one = got;
        CHECK(got.out == one.out);
        CHECK(got.lse == one.lse);
      }
    }
  }
}

TEST_CASE("starts of 32 bits, as cu_seqlens are elsewhere, serve as those of 64 do") {
  const packed<float> all;
  const std::vector<std::int32_t> queries{0, 0, 1, 4, 4, 60, 61, 61},
      keys{0, 0, 1, 1, 9, 80, 90, 90};
  result<float> wide, narrow;
  heed::workspace memory;
  heed::ragged_attention_into(all.query_view(), all.key_view(), all.value_view(), wide.out_view(),
                              wide.lse_view(), query_starts, key_starts, {}, memory);
  heed::ragged_attention_into(all.query_view(), all.key_view(), all.value_view(), narrow.out_view(),
                              narrow.lse_view(), queries, keys, {}, memory);
  CHECK(narrow.out == wide.out);
  CHECK(narrow.lse == wide.lse);
}

TEST_CASE("ragged_attention_into refuses starts that do not fit and terms that it does not offer") {
  const packed<double> all;
  result<double> got;
  heed::workspace memory;
  const auto refuse = [&](const std::vector<heed::size_type>& q,
                          const std::vector<heed::size_type>& k,
                          const std::vector<std::string>& words, const auto&... terms) {
    testing::check_refused(
        [&] {
          heed::ragged_attention_into(all.query_view(), all.key_view(), all.value_view(),
                                      got.out_view(), got.lse_view(), q, k, {}, memory, terms...);
        },
        words);
  };
  refuse({}, key_starts, {"heed::ragged_attention_into", "query_starts", "0"});
  refuse({1, 61}, key_starts, {"query_starts", "begins with 1"});
  refuse({0, 50, 40, 61}, key_starts, {"query_starts", "entry 2 is 40", "50"});
  refuse({0, 60}, {0, 90}, {"query_starts: last entry 60", "61"});
  refuse({0, 61}, {0, 91}, {"key_starts: last entry 91", "90"});
  refuse({0, 61}, {0, 4, 90}, {"key_starts: sequences 2", "1"});
  const testing::mask keep = testing::mask::Constant(61, 90, true);
  const heed::rows<double> bias = heed::rows<double>::Zero(61, 90);
  const heed::block_mask blocks(1, 1, 61, 90, 16, 16);
  const heed::rows<std::uint8_t> bits = heed::rows<std::uint8_t>::Constant(61, 12, 0xff);
  const auto shown = [](heed::size_type, heed::size_type, heed::size_type, heed::size_type) {
    return true;
  };
  const std::vector<heed::size_type> lengths{90};
  refuse(query_starts, key_starts, {"keep", "not supported"}, heed::keep(keep));
  refuse(query_starts, key_starts, {"bias", "not supported"}, heed::bias(bias));
  refuse(query_starts, key_starts, {"keep_bits", "not supported"},
         heed::keep_bits(heed::view(bits), 90));
  refuse(query_starts, key_starts, {"blocks", "not supported"}, heed::blocks(blocks));
  refuse(query_starts, key_starts, {"blocks", "not supported"}, heed::mask_function(shown, blocks));
  refuse(query_starts, key_starts, {"key_lengths", "not supported"}, heed::key_lengths(lengths));
  CHECK((got.out.array() == -7).all());
}
