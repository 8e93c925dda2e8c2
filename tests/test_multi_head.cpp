#include <heed/multi_head.hpp>

#include "support/example.hpp"
#include "support/isas.hpp"
#include "support/refusal.hpp"

using heed::bhnd;
using heed::bnhd;
using heed::tensor_view;

namespace {

/// The numbers of a batch of heads, in one long vector each.
template <typename Scalar>
struct batch_example {
  heed::size_type batch, heads, kv_heads, n_q, n_kv, d_k, d_v;
  heed::rows<Scalar> query, key, value;  // one row

  batch_example(heed::size_type b, heed::size_type h, heed::size_type h_kv, heed::size_type m,
                heed::size_type n, heed::size_type dk, heed::size_type dv)
      : batch(b), heads(h), kv_heads(h_kv), n_q(m), n_kv(n), d_k(dk), d_v(dv) {
    query = testing::random_rows<Scalar>(1, b * h * m * dk, 1);
    key = testing::random_rows<Scalar>(1, b * h_kv * n * dk, 2);
    value = testing::random_rows<Scalar>(1, b * h_kv * n * dv, 3);
  }
  template <typename Other>
  batch_example<Other> cast() const {
    batch_example<Other> other(batch, heads, kv_heads, n_q, n_kv, d_k, d_v);
    other.query = query.template cast<Other>();
    other.key = key.template cast<Other>();
    other.value = value.template cast<Other>();
    return other;
  }
  auto query_view() const { return bhnd(query.data(), batch, heads, n_q, d_k); }
  auto key_view() const { return bhnd(key.data(), batch, kv_heads, n_kv, d_k); }
  auto value_view() const { return bhnd(value.data(), batch, kv_heads, n_kv, d_v); }
};

template <typename Scalar>
struct batch_result {
  explicit batch_result(const batch_example<Scalar>& e) : shape(e) {
    out = heed::rows<Scalar>::Constant(1, e.batch * e.heads * e.n_q * e.d_v, Scalar(-7));
    lse = heed::rows<heed::accumulator_t<Scalar>>::Constant(1, e.batch * e.heads * e.n_q,
                                                            heed::accumulator_t<Scalar>(-7));
  }
  auto out_view() { return bhnd(out.data(), shape.batch, shape.heads, shape.n_q, shape.d_v); }
  auto lse_view() {
    return bhnd(lse.data(), shape.batch, shape.heads, shape.n_q, heed::size_type(1));
  }

  const batch_example<Scalar>& shape;
  heed::rows<Scalar> out;
  heed::rows<heed::accumulator_t<Scalar>> lse;
};

template <typename Scalar, typename... Terms>
batch_result<Scalar> reference_of(const batch_example<Scalar>& e,
                                  const heed::attention_options& options, const Terms&... terms) {
  batch_result<Scalar> result(e);
  heed::reference_multi_head_attention_into(e.query_view(), e.key_view(), e.value_view(),
                                            result.out_view(), result.lse_view(), options,
                                            terms...);
  return result;
}

}  // namespace

TEST_CASE("the reference of many heads is the reference of each, the kv head shared by its group") {
  const batch_example<double> e(2, 6, 2, 4, 5, 8, 3);
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  const auto all = reference_of(e, options);
  for (heed::size_type b = 0; b < e.batch; ++b)
    for (heed::size_type h = 0; h < e.heads; ++h) {
      const auto part = [](const heed::rows<double>& numbers, heed::size_type n,
                           heed::size_type rows, heed::size_type cols) {
        return heed::rows<double>(
            Eigen::Map<const heed::rows<double>>(numbers.data() + n * rows * cols, rows, cols));
      };
      const heed::size_type group = e.heads / e.kv_heads, kv = b * e.kv_heads + h / group;
      const auto one = heed::reference_attention_with_lse(part(e.query, b * e.heads + h, 4, 8),
                                                          part(e.key, kv, 5, 8),
                                                          part(e.value, kv, 5, 3), options);
      CHECK(part(all.out, b * e.heads + h, 4, 3) == one.out);
      CHECK(part(all.lse, b * e.heads + h, 4, 1) == one.lse);
    }
}

TEMPLATE_TEST_CASE("multi_head_attention_into is as exact as the reference", "", float, double) {
  for (const heed::size_type kv_heads : {6, 3, 1})
    for (const heed::size_type n_q : {1, 5, 50}) {
      const batch_example<TestType> e(2, 6, kv_heads, n_q, 70, 24, 20);
      heed::attention_options options;
      options.causal = heed::causal::bottom_right;
      const std::vector<heed::size_type> lengths{70, 33};
      const auto same = reference_of(e, options, heed::key_lengths(lengths));
      const auto wide = e.template cast<testing::wider_t<TestType>>();
      const auto exact = reference_of(wide, options, heed::key_lengths(lengths));
      for (const heed::isa target : testing::isas()) {
        CAPTURE(kv_heads, n_q, testing::name_of(target));
        options.execution.target = target;
        heed::workspace memory;
        batch_result<TestType> got(e);
        heed::multi_head_attention_into(e.query_view(), e.key_view(), e.value_view(),
                                        got.out_view(), got.lse_view(), options, memory,
                                        heed::key_lengths(lengths));
        testing::check_as_exact_as(got.out, same.out, exact.out);
        testing::check_as_exact_as(got.lse, same.lse, exact.lse, 1);
      }
    }
}

TEST_CASE("the strides of a tensor change nothing") {
  const batch_example<float> e(2, 4, 2, 9, 20, 8, 8);
  heed::workspace memory;
  const auto run = [&](const tensor_view<const float>& query, const tensor_view<const float>& key,
                       const tensor_view<const float>& value) {
    batch_result<float> got(e);
    heed::multi_head_attention_into(query, key, value, got.out_view(), got.lse_view(), {}, memory);
    return got;
  };
  const auto plain = run(e.query_view(), e.key_view(), e.value_view());

  SECTION("[B, N, H, D], in and out") {
    const auto turned = [](const tensor_view<const float>& from) {
      heed::rows<float> numbers(1, from.batch * from.heads * from.rows * from.cols);
      const auto to = bnhd(numbers.data(), from.batch, from.rows, from.heads, from.cols);
      for (heed::size_type b = 0; b < from.batch; ++b)
        for (heed::size_type h = 0; h < from.heads; ++h)
          for (heed::size_type i = 0; i < from.rows; ++i)
            for (heed::size_type c = 0; c < from.cols; ++c) to(b, h, i, c) = from(b, h, i, c);
      return numbers;
    };
    const auto query = turned(e.query_view()), key = turned(e.key_view()),
               value = turned(e.value_view());
    heed::rows<float> out(1, plain.out.size());
    const auto out_view = bnhd(out.data(), e.batch, e.n_q, e.heads, e.d_v);
    heed::multi_head_attention_into(bnhd(query.data(), e.batch, e.n_q, e.heads, e.d_k),
                                    bnhd(key.data(), e.batch, e.n_kv, e.kv_heads, e.d_k),
                                    bnhd(value.data(), e.batch, e.n_kv, e.kv_heads, e.d_v),
                                    out_view, {}, {}, memory);
    CHECK(out == turned(bhnd(plain.out.data(), e.batch, e.heads, e.n_q, e.d_v)));
  }
  SECTION("a batch stride of 0 shares one key and value") {
    auto key = e.key_view(), value = e.value_view();
    key.batch_stride = value.batch_stride = 0;
    const auto shared = run(e.query_view(), key, value);
    CHECK(shared.out.leftCols(shared.out.size() / 2) == plain.out.leftCols(plain.out.size() / 2));
    CHECK(shared.out.rightCols(shared.out.size() / 2) != plain.out.rightCols(plain.out.size() / 2));
  }
  SECTION("a row stride of 0 repeats one query") {
    batch_example<float> copied = e;
    const auto first = e.query_view();
    const auto copies = bhnd(copied.query.data(), e.batch, e.heads, e.n_q, e.d_k);
    for (heed::size_type b = 0; b < e.batch; ++b)
      for (heed::size_type h = 0; h < e.heads; ++h)
        for (heed::size_type i = 0; i < e.n_q; ++i)
          for (heed::size_type c = 0; c < e.d_k; ++c) copies(b, h, i, c) = first(b, h, 0, c);
    auto query = e.query_view();
    query.row_stride = 0;
    CHECK(run(query, e.key_view(), e.value_view()).out ==
          run(copied.query_view(), e.key_view(), e.value_view()).out);
  }
  SECTION("no lse wanted") {
    batch_result<float> got(e);
    heed::multi_head_attention_into(e.query_view(), e.key_view(), e.value_view(), got.out_view(),
                                    {}, {}, memory);
    CHECK(got.out == plain.out);
    CHECK((got.lse.array() == -7).all());
  }
}

TEST_CASE(
    "packed_multi_head_attention reads and writes the packed layout, as multi_head_attention of "
    "views does") {
  const heed::size_type batch = 2, n_q = 5, n_kv = 7, heads = 4, kv_heads = 2, d_k = 6, d_v = 3;
  const heed::rows<double> query = testing::random_rows<double>(batch * n_q, heads * d_k, 1);
  const heed::rows<double> key = testing::random_rows<double>(batch * n_kv, kv_heads * d_k, 2);
  const heed::rows<double> value = testing::random_rows<double>(batch * n_kv, kv_heads * d_v, 3);
  const heed::rows<double> out =
      heed::packed_multi_head_attention(query, key, value, {heads, kv_heads, batch});
  REQUIRE(out.rows() == batch * n_q);
  REQUIRE(out.cols() == heads * d_v);
  for (heed::size_type b = 0; b < batch; ++b)
    for (heed::size_type h = 0; h < heads; ++h) {
      const auto one = heed::attention(query.block(b * n_q, h * d_k, n_q, d_k),
                                       key.block(b * n_kv, h / 2 * d_k, n_kv, d_k),
                                       value.block(b * n_kv, h / 2 * d_v, n_kv, d_v));
      CHECK(out.block(b * n_q, h * d_v, n_q, d_v) == one);
    }

  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  const heed::packed_heads packed{heads, kv_heads, batch};
  const heed::row_vector<double> logits = heed::row_vector<double>::Constant(heads, 0.5);
  const auto sinks = heed::sinks(logits);
  const heed::rows<double> want =
      heed::packed_multi_head_attention(query, key, value, packed, options, sinks);
  const auto q = heed::split_heads(heed::view(query), heads, batch);
  const auto k = heed::split_heads(heed::view(key), kv_heads, batch),
             v = heed::split_heads(heed::view(value), kv_heads, batch);
  CHECK(heed::multi_head_attention(q, k, v, options, sinks) == want);

  heed::rows<double> got(batch * n_q, heads * d_v), lse(batch * n_q, heads),
      sums(batch * n_q, heads);
  heed::workspace memory;
  heed::packed_multi_head_attention_into(query, key, value, packed, got, lse, options, memory,
                                         sinks);
  CHECK(got == want);
  heed::multi_head_attention_into(
      q, k, v, heed::split_heads(heed::writable_view(got), heads, batch),
      heed::split_heads(heed::writable_view(sums), heads, batch), options, memory, sinks);
  CHECK(lse == sums);
  got.setZero();
  heed::packed_multi_head_attention_into(query, key, value, packed, got, {}, options, memory,
                                         sinks);
  CHECK(got == want);
  CHECK(heed::packed_multi_head_attention_workspace_bytes(query, key, value, packed, options,
                                                          sinks) ==
        heed::multi_head_attention_workspace_bytes(q, k, v, options, sinks));

  const std::string name = "heed::packed_multi_head_attention_into: ";
  heed::rows<double> wrong(batch * n_q, 2);
  const auto refuse = [&](auto& o, auto& l, const std::vector<std::string>& words) {
    testing::check_refused(
        [&] {
          heed::packed_multi_head_attention_into(query, key, value, packed, o, l, options, memory);
        },
        words);
  };
  refuse(wrong, lse, {name, "out: 2", "num_heads 4"});
  refuse(got, wrong, {name, "lse: 2", "num_heads 4"});
  CHECK(got == want);
  testing::check_refused([&] { heed::multi_head_attention(q, k, q, options); },
                         {"heed::multi_head_attention: value: kv_length 5", "7"});
}

TEST_CASE("many heads do not depend on the number of threads, bit for bit") {
  for (const heed::size_type n_q : {1, 3, 100}) {
    const batch_example<float> e(2, 6, 2, n_q, 300, 32, 16);
    const auto run = [&](int threads) {
      heed::attention_options options;
      options.execution.threads = threads;
      heed::workspace memory;
      batch_result<float> got(e);
      heed::multi_head_attention_into(e.query_view(), e.key_view(), e.value_view(), got.out_view(),
                                      got.lse_view(), options, memory);
      return got;
    };
    const auto one = run(1);
    for (const int threads : {2, 3, 4, 100}) {
      CAPTURE(n_q, threads);
      const auto many = run(threads);
      CHECK(many.out == one.out);
      CHECK(many.lse == one.lse);
    }
  }
}

TEST_CASE("multi_head_attention_into refuses what does not fit, and writes nothing") {
  const batch_example<float> e(2, 4, 2, 3, 5, 8, 6);
  batch_result<float> got(e);
  heed::workspace memory;
  const auto refuse = [&](const auto& change, const std::string& argument,
                          const std::string& other) {
    auto query = e.query_view(), key = e.key_view(), value = e.value_view();
    auto out = got.out_view();
    auto lse = got.lse_view();
    change(query, key, value, out, lse);
    testing::check_refused(
        [&] { heed::multi_head_attention_into(query, key, value, out, lse, {}, memory); },
        {"heed::multi_head_attention_into:", argument, other});
    testing::check_refused(
        [&] { heed::reference_multi_head_attention_into(query, key, value, out, lse, {}); },
        {"heed::reference_multi_head_attention_into:", argument, other});
  };
  refuse([](auto&, auto& key, auto&, auto&, auto&) { key.cols = 7; }, "key: head_dim 7",
         "query's head_dim 8");
  refuse([](auto&, auto& key, auto&, auto&, auto&) { key.batch = 1; }, "key: batch 1",
         "query's batch 2");
  refuse([](auto&, auto& key, auto& value, auto&, auto&) { key.rows = value.rows = -5; },
         "key: sizes must not be negative", "-5");
  refuse([](auto& query, auto&, auto&, auto& out,
            auto& lse) { query.rows = out.rows = lse.rows = -3; },
         "query: sizes", "-3");
  refuse([](auto&, auto&, auto& value, auto&, auto&) { value.data = nullptr; },
         "value: a null pointer to 2 x 2 x 5 x 6", "numbers");
  refuse([](auto&, auto& key, auto&, auto&, auto&) { key.rows = 4; }, "value: kv_length 5",
         "key's kv_length 4");
  refuse([](auto&, auto&, auto& value, auto&, auto&) { value.batch = 1; }, "value: batch 1",
         "key's batch 2");
  refuse([](auto&, auto&, auto& value, auto&, auto&) { value.heads = 1; }, "value: num_kv_heads 1",
         "key's num_kv_heads 2");
  refuse([](auto& query, auto&, auto&, auto&, auto&) { query.heads = 3; }, "num_heads 3",
         "num_kv_heads 2");
  refuse([](auto&, auto& key, auto& value, auto&, auto&) { key.heads = value.heads = 0; },
         "num_heads 4", "num_kv_heads 0");
  refuse([](auto&, auto&, auto&, auto& out, auto&) { out.batch = 1; }, "out: batch 1",
         "query's batch 2");
  refuse([](auto&, auto&, auto&, auto& out, auto&) { out.heads = 2; }, "out: num_heads 2",
         "query's num_heads 4");
  refuse([](auto&, auto&, auto&, auto& out, auto&) { out.rows = 2; }, "out: n_q 2",
         "query's n_q 3");
  refuse([](auto&, auto&, auto&, auto& out, auto&) { out.cols = 8; }, "out: head_dim 8",
         "value's head_dim 6");
  refuse([](auto&, auto&, auto&, auto&, auto& lse) { lse.rows = 2; }, "lse: n_q 2",
         "query's n_q 3");
  refuse([](auto&, auto&, auto&, auto&, auto& lse) { lse.cols = 2; }, "lse: columns 2", "1");
  CHECK((got.out.array() == -7).all());
  CHECK((got.lse.array() == -7).all());
}

TEST_CASE("packed_multi_head_attention refuses columns and rows that are no multiple") {
  const heed::rows<float> query = heed::rows<float>::Zero(6, 8),
                          key = heed::rows<float>::Zero(6, 4),
                          value = heed::rows<float>::Zero(6, 6);
  const std::string name = "heed::packed_multi_head_attention:";
  testing::check_refused(
      [&] {
        heed::packed_multi_head_attention(query, key, value, {3, 1});
      },
      {name, "query: 8", "num_heads 3"});
  testing::check_refused(
      [&] {
        heed::packed_multi_head_attention(query, key, value, {4, 3});
      },
      {name, "key: 4", "num_kv_heads 3"});
  testing::check_refused(
      [&] {
        heed::packed_multi_head_attention(query, key, value, {4, 4});
      },
      {name, "value: 6", "num_kv_heads 4"});
  testing::check_refused(
      [&] {
        heed::packed_multi_head_attention(query, key, value, {0, 1});
      },
      {name, "num_heads", "0"});
  testing::check_refused(
      [&] {
        heed::packed_multi_head_attention(query, key, value, {4, 2, 4});
      },
      {name, "query: 6", "batch 4"});
  testing::check_refused(
      [&] {
        heed::packed_multi_head_attention(query, key, value, {4, 2, 0});
      },
      {name, "batch", "0"});
  testing::check_refused(
      [&] {
        heed::packed_multi_head_attention(query, key, value.topRows(5), {4, 2});
      },
      {name, "value: kv_length 5", "6"});
}

TEST_CASE("sizes whose scratch no index can count are refused, before anything is written") {
  // Only strides of 0 make such views possible.
  float number = 1;
  for (const int shift : {61, 57, 50}) {
    const heed::size_type d = heed::size_type{1} << shift;
    const tensor_view<const float> wide{&number, 1, 1, 2, d, 0, 0, 0, 0},
        narrow{&number, 1, 1, 2, 3, 0, 0, 0, 0};
    float out = -7;
    const tensor_view<float> one{&out, 1, 1, 2, 3, 0, 0, 0, 0}, many{&out, 1, 1, 2, d, 0, 0, 0, 0};
    heed::workspace memory;
    testing::check_refused(
        [&] { heed::multi_head_attention_into(wide, wide, narrow, one, {}, {}, memory); },
        {"heed::multi_head_attention_into: scratch for query's head_dim, in bytes: " +
         std::to_string(d)});
    testing::check_refused(
        [&] { heed::multi_head_attention_into(narrow, narrow, wide, many, {}, {}, memory); },
        {"heed::multi_head_attention_into: scratch for value's head_dim, in bytes: " +
         std::to_string(d)});
    CHECK(out == -7);
  }
}
