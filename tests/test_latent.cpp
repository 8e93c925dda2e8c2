#include <heed/kv_pages.hpp>
#include <heed/latent.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "support/example.hpp"
#include "support/refusal.hpp"

namespace {

/// Latent attention of H heads: d_c + rope_dim cached numbers a token.
template <typename Scalar>
struct latent_example {
  heed::rows<Scalar> query, latent;
  heed::latent_weights<Scalar> w;

  latent_example(heed::size_type n_q, heed::size_type n_kv, heed::size_type heads,
                 heed::size_type d_c, heed::size_type d_nope, heed::size_type rope_dim,
                 heed::size_type d_v)
      : query(testing::random_rows<Scalar>(n_q, heads * (d_nope + rope_dim), 1)),
        latent(testing::random_rows<Scalar>(n_kv, d_c + rope_dim, 2)) {
    w.w_uk = testing::random_rows<Scalar>(heads * d_nope, d_c, 3) / Scalar(std::sqrt(double(d_c)));
    w.w_uv = testing::random_rows<Scalar>(heads * d_v, d_c, 4) / Scalar(std::sqrt(double(d_c)));
    w.num_heads = heads;
    w.rope_dim = rope_dim;
  }
  template <typename Other>
  latent_example<Other> cast() const {
    latent_example<Other> other(0, 0, 1, 1, 1, 1, 1);
    other.query = query.template cast<Other>();
    other.latent = latent.template cast<Other>();
    other.w.w_uk = w.w_uk.template cast<Other>();
    other.w.w_uv = w.w_uv.template cast<Other>();
    other.w.num_heads = w.num_heads;
    other.w.rope_dim = w.rope_dim;
    return other;
  }
  /// As the formula reads, with keys and values of every head made.
  heed::rows<Scalar> direct(const heed::attention_options& given) const {
    const heed::size_type d_c = w.d_c(), d_nope = w.d_nope(), width = d_nope + w.rope_dim,
                          d_v = w.d_v();
    heed::rows<Scalar> out(query.rows(), w.num_heads * d_v);
    for (heed::size_type h = 0; h < w.num_heads; ++h) {
      heed::rows<Scalar> key(latent.rows(), width);
      key << latent.leftCols(d_c) * w.w_uk.middleRows(h * d_nope, d_nope).transpose(),
          latent.rightCols(w.rope_dim);
      const heed::rows<Scalar> value =
          latent.leftCols(d_c) * w.w_uv.middleRows(h * d_v, d_v).transpose();
      out.middleCols(h * d_v, d_v) =
          heed::reference_attention(query.middleCols(h * width, width), key, value, given);
    }
    return out;
  }
};

}  // namespace

TEMPLATE_TEST_CASE("the absorbed and the expanded form are the formula, to rounding", "", float,
                   double) {
  const heed::size_type n_q = GENERATE(heed::size_type(1), heed::size_type(20));
  const latent_example<TestType> e(n_q, 50, 4, 24, 16, 8, 12);
  heed::attention_options options;
  SECTION("plain") {}
  SECTION("causal") { options.causal = heed::causal::bottom_right; }
  SECTION("scale") { options.scale = 0.1; }
  const auto exact = e.template cast<testing::wider_t<TestType>>().direct(options);
  const auto same = e.direct(options);
  testing::check_as_exact_as(heed::expanded_latent_attention(e.query, e.latent, e.w, options), same,
                             exact);
  // the absorbed form sums d_c + rope_dim numbers for a score where the formula sums d_nope +
  // rope_dim
  const long double more = 32.0L / 24;
  testing::check_error(heed::latent_attention(e.query, e.latent, e.w, options), exact,
                       more * testing::max_error(same, exact));
}

TEMPLATE_TEST_CASE("latent attention sums 16-bit numbers up in float", "", Eigen::bfloat16,
                   Eigen::half) {
  // Sums of ones: where they are added one by one, bfloat16 ends at 256 and half at 2048.
  const heed::size_type d = 2560;
  latent_example<TestType> e(8, 3, 1, 1, 1, 0, 1);
  const auto ones = [](heed::size_type n, heed::size_type cols) {
    return heed::rows<TestType>::Constant(n, cols, TestType(1)).eval();
  };
  e.query = ones(8, d), e.latent = ones(3, d), e.w.w_uk = ones(d, d), e.w.w_uv = ones(d, d);
  CHECK((heed::latent_attention(e.query, e.latent, e.w).array() == TestType(d)).all());
  CHECK((heed::expanded_latent_attention(e.query, e.latent, e.w).array() == TestType(d)).all());
}

TEST_CASE("latent attention refuses what does not fit") {
  latent_example<double> e(3, 5, 2, 6, 4, 2, 3);
  const auto refuse = [&](const std::vector<std::string>& words) {
    testing::check_refused([&] { heed::latent_attention(e.query, e.latent, e.w); }, words);
    testing::check_refused([&] { heed::expanded_latent_attention(e.query, e.latent, e.w); }, words);
  };
  const latent_example<double> good = e;
  e.w.num_heads = 0;
  refuse({"latent_attention", "num_heads", "0"});
  e.w.num_heads = 3;
  refuse({"latent_attention", "w_uk", "8", "3"});
  e = good;
  e.w.rope_dim = -1;
  refuse({"rope_dim", "-1"});
  e = good;
  e.query.resize(3, 11);
  refuse({"query: columns 11", "12"});
  e = good;
  e.latent.resize(5, 7);
  refuse({"latent: columns 7", "8"});
  e = good;
  e.w.w_uv.resize(6, 5);
  refuse({"w_uv: d_c 5", "6"});
}

TEST_CASE("latent attention refuses options and terms by its own name") {
  const latent_example<float> e(3, 5, 2, 6, 4, 2, 3);
  heed::attention_options wrong;
  wrong.softcap = -1;
  testing::check_refused([&] { heed::latent_attention(e.query, e.latent, e.w, wrong); },
                         {"heed::latent_attention: softcap", "-1"});
  testing::check_refused([&] { heed::expanded_latent_attention(e.query, e.latent, e.w, wrong); },
                         {"heed::expanded_latent_attention: softcap", "-1"});
  wrong = {};
  wrong.execution.threads = 0;  // which the projections would meet first
  testing::check_refused([&] { heed::latent_attention(e.query, e.latent, e.w, wrong); },
                         {"heed::latent_attention: execution.threads", "0"});
  testing::check_refused([&] { heed::expanded_latent_attention(e.query, e.latent, e.w, wrong); },
                         {"heed::expanded_latent_attention: execution.threads", "0"});
  const Eigen::Map<const heed::rows<float>> nowhere(nullptr, 5, 8), no_query(nullptr, 3, 12);
  testing::check_refused([&] { heed::latent_attention(e.query, nowhere, e.w); },
                         {"heed::latent_attention: latent: a null pointer"});
  testing::check_refused([&] { heed::expanded_latent_attention(no_query, e.latent, e.w); },
                         {"heed::expanded_latent_attention: query: a null pointer"});
  latent_example<float> empty(3, 5, 2, 6, 0, 0,
                              3);  // heads of no dimensions: every key weighs the same
  CHECK(heed::latent_attention(empty.query, empty.latent, empty.w).allFinite());
  CHECK(heed::expanded_latent_attention(empty.query, empty.latent, empty.w).allFinite());
  heed::latent_weights<float> none;
  testing::check_refused([&] { none.d_nope(); }, {"num_heads", "0"});
  testing::check_refused([&] { none.d_v(); }, {"num_heads", "0"});
}

TEMPLATE_TEST_CASE(
    "a batch of latent attention, in views and in pages, is its sequences one by one", "", float,
    Eigen::bfloat16, long double) {
  using Acc = heed::accumulator_t<TestType>;
  constexpr heed::size_type batch = 3, heads = 4, d_c = 24, d_nope = 16, rope_dim = 8, d_v = 12,
                            page_rows = 8, cached = d_c + rope_dim;
  const heed::size_type n_q = GENERATE(heed::size_type(1), heed::size_type(5)), n_kv = 40;
  const latent_example<TestType> e(batch * n_q, batch * n_kv, heads, d_c, d_nope, rope_dim, d_v);
  const std::vector<heed::size_type> lengths{17, 40, 6};
  // Page 5 * b + i of sequence b is somewhere else in the pool.
  const auto page_of = [](heed::size_type place) { return place * 4 % 15; };
  heed::rows<TestType> pool(batch * n_kv, cached);
  std::vector<std::int32_t> table;
  for (heed::size_type place = 0; place < 15; ++place) {
    pool.middleRows(page_of(place) * page_rows, page_rows) =
        e.latent.middleRows(place * page_rows, page_rows);
    table.push_back(std::int32_t(page_of(place)));
  }
  // Heads in the columns, as latent_attention has them.
  const auto query = heed::split_heads(heed::view(e.query), heads, batch);
  const auto latent = heed::bhnd(e.latent.data(), batch, 1, n_kv, cached);
  const auto pages = heed::bhnd(pool.data(), 15, 1, page_rows, cached);
  auto values = pages;
  values.cols = d_c;
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  heed::workspace memory;
  for (const int threads : {1, 2}) {
    options.execution.threads = threads;
    heed::rows<TestType> out(batch * n_q, heads * d_v), paged(out);
    heed::rows<Acc> lse(batch * n_q, heads), paged_lse(lse);
    heed::latent_attention_into(query, latent, e.w,
                                heed::split_heads(heed::writable_view(out), heads, batch),
                                heed::split_heads(heed::writable_view(lse), heads, batch), options,
                                memory, heed::key_lengths(lengths));
    heed::cached_latent_attention_into(
        query, heed::kv_pages(pages, values, heed::page_table(table.data(), batch, 5), lengths),
        e.w, heed::split_heads(heed::writable_view(paged), heads, batch),
        heed::split_heads(heed::writable_view(paged_lse), heads, batch), options, memory);
    CHECK(paged == out);
    CHECK(paged_lse == lse);
    const auto grown = memory.capacity();
    heed::latent_attention_into(query, latent, e.w,
                                heed::split_heads(heed::writable_view(paged), heads, batch), {},
                                options, memory, heed::key_lengths(lengths));
    CHECK(memory.capacity() == grown);
    CHECK(paged == out);
    for (heed::size_type b = 0; b < batch; ++b) {
      const heed::rows<TestType> one_query = e.query.middleRows(b * n_q, n_q),
                                 one_latent =
                                     e.latent.middleRows(b * n_kv, lengths[std::size_t(b)]);
      CHECK(out.middleRows(b * n_q, n_q) ==
            heed::latent_attention(one_query, one_latent, e.w, options));
    }
  }
}

TEST_CASE("the log-sum-exp of latent attention is that of the expanded keys") {
  const latent_example<float> e(7, 50, 4, 24, 16, 8, 12);
  const auto direct = [](const auto& x) {  // as the formula reads
    using Scalar = typename std::decay_t<decltype(x.query)>::Scalar;
    heed::rows<Scalar> lse(7, 4);
    for (heed::size_type h = 0; h < 4; ++h) {
      heed::rows<Scalar> key(50, 24);
      key << x.latent.leftCols(24) * x.w.w_uk.middleRows(h * 16, 16).transpose(),
          x.latent.rightCols(8);
      lse.col(h) = heed::reference_attention_with_lse(x.query.middleCols(h * 24, 24), key, key).lse;
    }
    return lse;
  };
  const heed::rows<double> exact = direct(e.cast<double>());
  heed::rows<float> out(7, 4 * 12), lse(7, 4);
  heed::workspace memory;
  heed::latent_attention_into(heed::split_heads(heed::view(e.query), 4), heed::view(e.latent), e.w,
                              heed::split_heads(heed::writable_view(out), 4),
                              heed::split_heads(heed::writable_view(lse), 4), {}, memory);
  CHECK(out == heed::latent_attention(e.query, e.latent, e.w));
  // sums of 32 numbers a score instead of 24, as above
  testing::check_error(lse, exact, 32.0L / 24 * testing::max_error(direct(e), exact));
}

TEST_CASE("latent attention of views refuses what does not fit, before it writes") {
  const latent_example<float> e(3, 5, 2, 6, 4, 2, 3);
  heed::rows<float> out = heed::rows<float>::Constant(3, 2 * 3, 7);
  const auto query = heed::split_heads(heed::view(e.query), 2);
  const auto to = heed::split_heads(heed::writable_view(out), 2);
  heed::workspace memory;
  const auto refuse = [&](const auto& q, const auto& latent, const auto& o,
                          const std::vector<std::string>& words) {
    testing::check_refused([&] { heed::latent_attention_into(q, latent, e.w, o, {}, {}, memory); },
                           words);
    CHECK((out.array() == 7).all());
  };
  const auto latent = heed::view(e.latent);
  auto other = query;
  other.heads = 1;
  refuse(other, latent, to, {"heed::latent_attention_into: query: num_heads 1", "2"});
  other = query, other.cols = 5;
  refuse(other, latent, to, {"query: head_dim 5", "6"});
  other = latent, other.cols = 7;
  refuse(query, other, to, {"latent: columns 7", "8"});
  other = latent, other.heads = 2, other.head_stride = 0;
  refuse(query, other, to, {"latent: heads 2", "1"});
  auto wrong = to;
  wrong.cols = 2;
  refuse(query, latent, wrong, {"out: head_dim 2", "3"});
  wrong = to, wrong.data = const_cast<float*>(e.latent.data());
  refuse(query, latent, wrong, {"out (", " overlaps key ("});
  wrong.data = const_cast<float*>(e.w.w_uv.data());
  refuse(query, latent, wrong, {"out (", " overlaps w_uv ("});
  wrong.data = const_cast<float*>(e.query.data());
  refuse(query, latent, wrong, {"out (", " overlaps query ("});
}
