#include <heed/backward.hpp>
#include <heed/ragged.hpp>

#include <heed/position.hpp>

#include <array>
#include <limits>
#include <vector>

#include "support/example.hpp"
#include "support/isas.hpp"
#include "support/refusal.hpp"
#include "support/variations.hpp"

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

}  // namespace

TEST_CASE("a ragged batch is its sequences one by one") {
  const packed<double> all;
  const heed::row_vector<double> slopes = heed::alibi_slopes<double>(heads),
                                 logits = testing::random_rows<double>(heads, 1, 4);
  for (const heed::attention_options& options : testing::position_options()) {
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
  for (const heed::attention_options& given : testing::position_options()) {
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

TEMPLATE_TEST_CASE("key_lengths and first_keys in a ragged batch: the keys between them alone", "",
                   float, double) {
  // Of [first key, length) in each sequence the numbers are those of `all`; others are NaN.
  const std::vector<std::int32_t> lengths{0, 1, 0, 6, 63, 10, 0}, first{0, 0, 0, 2, 5, 10, 0};
  std::vector<heed::size_type> used{0};
  packed<TestType> all, spoilt, cut;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    const heed::size_type k = key_starts[s], n = lengths[s] - first[s];
    for (heed::size_type j = k; j < key_starts[s + 1]; ++j)
      if (j < k + first[s] || j >= k + lengths[s]) {
        spoilt.key.row(j).setConstant(std::numeric_limits<TestType>::quiet_NaN());
        spoilt.value.row(j).setConstant(std::numeric_limits<TestType>::quiet_NaN());
      }
    cut.key.middleRows(used.back(), n) = all.key.middleRows(k + first[s], n);
    cut.value.middleRows(used.back(), n) = all.value.middleRows(k + first[s], n);
    used.push_back(used.back() + n);
  }
  cut.key = cut.key.topRows(used.back()).eval();
  cut.value = cut.value.topRows(used.back()).eval();
  const heed::row_vector<TestType> slopes = heed::alibi_slopes<TestType>(heads);
  std::vector<testing::mask> masks;
  std::vector<heed::tensor_view<const bool>> views;
  for (std::size_t s = 0; s < lengths.size(); ++s)
    masks.push_back(testing::random_mask(query_starts[s + 1] - query_starts[s],
                                         lengths[s] - first[s], unsigned(s)));
  for (const testing::mask& mask : masks) views.push_back(heed::view(mask));
  for (heed::attention_options options : testing::position_options()) {
    result<TestType> want, got;
    heed::workspace memory;
    heed::reference_ragged_attention_into(cut.query_view(), cut.key_view(), cut.value_view(),
                                          want.out_view(), want.lse_view(), query_starts, used,
                                          options, heed::alibi(slopes), heed::keep_each(views));
    heed::reference_ragged_attention_into(
        spoilt.query_view(), spoilt.key_view(), spoilt.value_view(), got.out_view(), got.lse_view(),
        query_starts, key_starts, options, heed::alibi(slopes), heed::keep_each(views),
        heed::key_lengths(lengths), heed::first_keys(first));
    CHECK(got.out == want.out);
    CHECK(got.lse == want.lse);
    const packed<TestType> grad_out;
    for (const heed::isa target : testing::isas())
      for (const int threads : {1, 3}) {
        CAPTURE(testing::name_of(target), threads);
        options.execution.target = target;
        options.execution.threads = threads;
        heed::ragged_attention_into(cut.query_view(), cut.key_view(), cut.value_view(),
                                    want.out_view(), want.lse_view(), query_starts, used, options,
                                    memory, heed::alibi(slopes), heed::keep_each(views));
        heed::ragged_attention_into(spoilt.query_view(), spoilt.key_view(), spoilt.value_view(),
                                    got.out_view(), got.lse_view(), query_starts, key_starts,
                                    options, memory, heed::alibi(slopes), heed::keep_each(views),
                                    heed::key_lengths(lengths), heed::first_keys(first));
        CHECK(got.out == want.out);  // which keys are near does not matter, nor where they begin
        CHECK(got.lse == want.lse);

        packed<TestType> grad, of_cut;
        of_cut.key.resize(used.back(), kv_heads * d_k);
        of_cut.value.resize(used.back(), kv_heads * d_v);
        const auto views_of = [](packed<TestType>& p) {
          return std::array<heed::tensor_view<TestType>, 3>{
              heed::split_heads(heed::writable_view(p.query), heads),
              heed::split_heads(heed::writable_view(p.key), kv_heads),
              heed::split_heads(heed::writable_view(p.value), kv_heads)};
        };
        const auto to = views_of(grad), to_cut = views_of(of_cut);
        heed::row_vector<TestType> slope_grad(heads), slope_grad_of_cut(heads);
        heed::ragged_attention_backward_into(
            spoilt.query_view(), spoilt.key_view(), spoilt.value_view(), got.out_view(),
            got.lse_view(), got.out_view(), to[0], to[1], to[2], query_starts, key_starts, options,
            memory, heed::alibi(slopes), heed::keep_each(views), heed::key_lengths(lengths),
            heed::first_keys(first), heed::grad_alibi(slope_grad));
        heed::ragged_attention_backward_into(
            cut.query_view(), cut.key_view(), cut.value_view(), want.out_view(), want.lse_view(),
            want.out_view(), to_cut[0], to_cut[1], to_cut[2], query_starts, used, options, memory,
            heed::alibi(slopes), heed::keep_each(views), heed::grad_alibi(slope_grad_of_cut));
        CHECK(grad.query == of_cut.query);
        CHECK(slope_grad == slope_grad_of_cut);
        for (std::size_t s = 0; s < lengths.size(); ++s) {
          const heed::size_type k = key_starts[s], n = lengths[s] - first[s],
                                rows = key_starts[s + 1] - k;
          for (auto part : {&packed<TestType>::key, &packed<TestType>::value}) {
            CHECK((grad.*part).middleRows(k + first[s], n) ==
                  (of_cut.*part).middleRows(used[s], n));
            CHECK((grad.*part).middleRows(k, first[s]).isZero(0));
            CHECK((grad.*part).middleRows(k + lengths[s], rows - lengths[s]).isZero(0));
          }
        }
      }
  }
}

TEMPLATE_TEST_CASE("query_lengths: rows past them are padding, whose output is that of no key", "",
                   float, double) {
  // Rows of queries that are none hold NaN.
  const std::vector<std::int32_t> used{0, 1, 2, 0, 50, 0, 0};
  const TestType nan = std::numeric_limits<TestType>::quiet_NaN();
  std::vector<heed::size_type> cut_starts{0};
  packed<TestType> all, spoilt, cut;
  result<TestType> grad_out;
  grad_out.out = testing::random_rows<TestType>(query_starts.back(), heads * d_v, 8);
  for (std::size_t s = 0; s < used.size(); ++s) {
    const heed::size_type q = query_starts[s], rows = query_starts[s + 1] - q;
    spoilt.query.middleRows(q + used[s], rows - used[s]).setConstant(nan);
    cut.query.middleRows(cut_starts.back(), used[s]) = all.query.middleRows(q, used[s]);
    cut_starts.push_back(cut_starts.back() + used[s]);
  }
  cut.query = cut.query.topRows(cut_starts.back()).eval();
  const heed::row_vector<TestType> slopes = heed::alibi_slopes<TestType>(heads);
  const auto split = [](auto& m, heed::size_type h) {
    return heed::split_heads(heed::writable_view(m), h);
  };
  heed::workspace memory;
  for (heed::attention_options options : testing::position_options()) {
    heed::row_vector<TestType> most(heads), most_of_cut(heads);
    const auto check = [&](const auto& attend, const auto& backward) {
      result<TestType> got;
      heed::rows<TestType> out(cut_starts.back(), heads * d_v), lse(cut_starts.back(), heads),
          grad(cut_starts.back(), heads * d_v);
      attend(spoilt, got.out_view(), got.lse_view(), query_starts, heed::query_lengths(used),
             heed::max_logits(most));
      attend(cut, split(out, heads), split(lse, heads), cut_starts, heed::max_logits(most_of_cut));
      CHECK(most == most_of_cut);
      packed<TestType> to, to_cut;
      to_cut.query.resize(cut_starts.back(), heads * d_k);
      for (std::size_t s = 0; s < used.size(); ++s)
        grad.middleRows(cut_starts[s], used[s]) = grad_out.out.middleRows(query_starts[s], used[s]);
      backward(spoilt, got.out_view(), got.lse_view(), grad_out.out_view(), to, query_starts,
               heed::query_lengths(used));
      backward(cut, split(out, heads), split(lse, heads), split(grad, heads), to_cut, cut_starts);
      CHECK(to.key == to_cut.key);
      CHECK(to.value == to_cut.value);
      for (std::size_t s = 0; s < used.size(); ++s) {
        const heed::size_type q = query_starts[s], rest = query_starts[s + 1] - q - used[s];
        CHECK(got.out.middleRows(q, used[s]) == out.middleRows(cut_starts[s], used[s]));
        CHECK(got.lse.middleRows(q, used[s]) == lse.middleRows(cut_starts[s], used[s]));
        CHECK(got.out.middleRows(q + used[s], rest).isZero(0));
        CHECK((got.lse.middleRows(q + used[s], rest).array() ==
               -std::numeric_limits<TestType>::infinity())
                  .all());
        CHECK(to.query.middleRows(q, used[s]) == to_cut.query.middleRows(cut_starts[s], used[s]));
        CHECK(to.query.middleRows(q + used[s], rest).isZero(0));
      }
    };
    check(
        [&](const auto& x, const auto& out, const auto& lse, const auto& starts,
            const auto&... terms) {
          heed::reference_ragged_attention_into(x.query_view(), x.key_view(), x.value_view(), out,
                                                lse, starts, key_starts, options,
                                                heed::alibi(slopes), terms...);
        },
        [&](const auto& x, const auto& out, const auto& lse, const auto& grad, auto& to,
            const auto& starts, const auto&... terms) {
          heed::reference_ragged_attention_backward_into(
              x.query_view(), x.key_view(), x.value_view(), out, lse, grad, split(to.query, heads),
              split(to.key, kv_heads), split(to.value, kv_heads), starts, key_starts, options,
              heed::alibi(slopes), terms...);
        });
    for (const heed::isa target : testing::isas())
      for (const int threads : {1, 3}) {
        CAPTURE(testing::name_of(target), threads);
        options.execution.target = target;
        options.execution.threads = threads;
        check(
            [&](const auto& x, const auto& out, const auto& lse, const auto& starts,
                const auto&... terms) {
              heed::ragged_attention_into(x.query_view(), x.key_view(), x.value_view(), out, lse,
                                          starts, key_starts, options, memory, heed::alibi(slopes),
                                          terms...);
            },
            [&](const auto& x, const auto& out, const auto& lse, const auto& grad, auto& to,
                const auto& starts, const auto&... terms) {
              heed::ragged_attention_backward_into(
                  x.query_view(), x.key_view(), x.value_view(), out, lse, grad,
                  split(to.query, heads), split(to.key, kv_heads), split(to.value, kv_heads),
                  starts, key_starts, options, memory, heed::alibi(slopes), terms...);
            });
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
  const std::vector<heed::size_type> none_negative{0, 0, 0, 8, 71, -1, 0},
      too_long{0, 1, 0, 9, 71, 10, 0}, lengths{0, 1, 0, 8, 60, 10, 0}, late{0, 1, 0, 9, 3, 0, 0};
  refuse(query_starts, key_starts, {"keep", "padded batch"}, heed::keep(keep));
  refuse(query_starts, key_starts, {"bias", "padded batch"}, heed::bias(bias));
  refuse(query_starts, key_starts, {"keep_bits", "padded batch"},
         heed::keep_bits(heed::view(bits), 90));
  refuse(query_starts, key_starts, {"blocks", "padded batch"}, heed::blocks(blocks));
  refuse(query_starts, key_starts, {"blocks", "padded batch"}, heed::mask_function(shown, blocks));
  refuse({0, 61}, {0, 90}, {"key_lengths: entries 7", "1"}, heed::key_lengths(lengths));
  refuse(query_starts, key_starts, {"key_lengths: entry 3 is 9", "8"}, heed::key_lengths(too_long));
  refuse(query_starts, key_starts, {"key_lengths: entry 5 is -1", "10"},
         heed::key_lengths(none_negative));
  refuse(query_starts, key_starts, {"first_keys: entry 3 is 9", "end at 8"},
         heed::key_lengths(lengths), heed::first_keys(late));
  CHECK((got.out.array() == -7).all());
}
