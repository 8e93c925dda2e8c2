// Lists of keys: what test_matrix.cpp does not try with all other features.

#include "support/allocations_of.hpp"

#include <heed/heed.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "support/example.hpp"
#include "support/isas.hpp"
#include "support/refusal.hpp"

namespace {

using heed::bhnd;
using heed::size_type;

constexpr size_type batch = 2, heads = 6, kv_heads = 2, d_k = 20, d_v = 9;

/// Lists [batch, list_heads, n_q, k] of keys below n_kv, all different.
struct lists {
  size_type list_heads, n_q, k;
  std::vector<std::int64_t> numbers;

  lists(size_type of_heads, size_type queries, size_type n_kv, size_type listed)
      : list_heads(of_heads), n_q(queries), k(listed) {
    std::mt19937 engine(5);
    std::vector<std::int64_t> all(static_cast<std::size_t>(n_kv));
    for (size_type row = 0; row < batch * list_heads * n_q; ++row) {
      for (size_type j = 0; j < n_kv; ++j) all[std::size_t(j)] = j;
      for (size_type n = 0; n < k; ++n)
        std::swap(all[std::size_t(n)], all[std::size_t(n + size_type(engine()) % (n_kv - n))]);
      numbers.insert(numbers.end(), all.begin(), all.begin() + k);
    }
  }
  auto view() const { return bhnd(numbers.data(), batch, list_heads, n_q, k); }
};

/// The inputs of a call, its options, and the results of calls with them.
template <typename Scalar>
struct example {
  using Acc = heed::accumulator_t<Scalar>;
  struct result {
    heed::rows<Scalar> out;
    heed::rows<Acc> lse;

    bool operator==(const result& other) const { return out == other.out && lse == other.lse; }
  };

  size_type n_q, n_kv;
  heed::rows<Scalar> query = testing::random_rows<Scalar>(1, batch*heads*n_q*d_k, 1),
                     key = testing::random_rows<Scalar>(1, batch*kv_heads*n_kv*d_k, 2),
                     value = testing::random_rows<Scalar>(1, batch*kv_heads*n_kv*d_v, 3);
  heed::attention_options options{};

  auto query_view() const { return bhnd(query.data(), batch, heads, n_q, d_k); }
  auto key_view() const { return bhnd(key.data(), batch, kv_heads, n_kv, d_k); }
  auto value_view() const { return bhnd(value.data(), batch, kv_heads, n_kv, d_v); }
  auto view(heed::rows<Scalar>& out) const { return bhnd(out.data(), batch, heads, n_q, d_v); }
  auto view(heed::rows<Acc>& lse, int) const {
    return bhnd(lse.data(), batch, heads, n_q, size_type{1});
  }
  result empty() const {
    return {heed::rows<Scalar>::Constant(1, batch * heads * n_q * d_v, Scalar(-7)),
            heed::rows<Acc>::Constant(1, batch * heads * n_q, Acc(-7))};
  }
  template <typename... Terms>
  result run(const Terms&... terms) const {
    heed::workspace memory;
    result got = empty();
    heed::multi_head_attention_into(query_view(), key_view(), value_view(), view(got.out),
                                    view(got.lse, 0), options, memory, terms...);
    return got;
  }
  template <typename... Terms>
  result reference(const Terms&... terms) const {
    result got = empty();
    heed::reference_multi_head_attention_into(query_view(), key_view(), value_view(), view(got.out),
                                              view(got.lse, 0), options, terms...);
    return got;
  }
};

}  // namespace

TEST_CASE("to the reference a list is a mask") {
  const example<double> e{7, 40};
  for (const size_type list_heads : {size_type{1}, kv_heads, heads}) {
    const lists some(list_heads, e.n_q, e.n_kv, 5);
    heed::rows<bool> mask = heed::rows<bool>::Constant(1, batch * heads * e.n_q * e.n_kv, false);
    const auto keep = heed::bhnd(mask.data(), batch, heads, e.n_q, e.n_kv);
    for (size_type b = 0; b < batch; ++b)
      for (size_type h = 0; h < heads; ++h)
        for (size_type i = 0; i < e.n_q; ++i)
          for (size_type n = 0; n < some.k; ++n)
            keep(b, h, i, size_type(some.view()(b, h * list_heads / heads, i, n))) = true;
    CHECK(e.reference(heed::selected_keys(some.view())) == e.reference(heed::keep(keep)));
    CHECK(!(e.reference(heed::selected_keys(some.view())) == e.reference()));
  }
}

TEST_CASE("lists of all heads, of key/value heads and of query heads") {
  example<float> e{5, 700};
  const example<double> wide{5, 700, e.query.cast<double>(), e.key.cast<double>(),
                             e.value.cast<double>()};
  for (const size_type list_heads : {size_type{1}, kv_heads, heads}) {
    const lists some(list_heads, e.n_q, e.n_kv, 600);
    const auto selected = heed::selected_keys(some.view());
    const auto exact = wide.reference(selected), same = wide.reference(selected);
    const auto single = e.reference(selected);
    for (const heed::isa target : testing::isas()) {
      INFO(list_heads << " heads of lists, " << testing::name_of(target));
      e.options.execution.target = target;
      const auto got = e.run(selected);
      testing::check_error(got.out, exact.out, testing::max_error(single.out, exact.out));
      testing::check_error(got.lse, exact.lse, testing::max_error(single.lse, exact.lse), 1);
    }
  }
}

TEMPLATE_TEST_CASE("a list of all keys is decoding, to the bit", "", float, Eigen::bfloat16) {
  example<TestType> e{1, 1300};  // three parts
  std::vector<std::int32_t> all(std::size_t(e.n_kv));
  for (size_type j = 0; j < e.n_kv; ++j) all[std::size_t(j)] = std::int32_t(j);
  for (const heed::isa target : testing::isas()) {
    INFO(testing::name_of(target));
    e.options.execution.target = target;
    CHECK(e.run(heed::selected_keys(bhnd(all.data(), 1, 1, 1, e.n_kv))) == e.run());
  }
}

TEST_CASE("a key counts once, and what is no key changes nothing, to the bit") {
  const example<float> e{3, 900};
  const lists some(kv_heads, e.n_q, e.n_kv, 560);
  lists padded = some;
  padded.k += 140;
  padded.numbers.clear();
  for (std::size_t n = 0; n < some.numbers.size(); ++n) {
    padded.numbers.push_back(some.numbers[n]);
    if (n % 4 == 0) padded.numbers.push_back(n % 8 == 0 ? -1 : some.numbers[n]);
  }
  CHECK(e.run(heed::selected_keys(padded.view())) == e.run(heed::selected_keys(some.view())));
}

TEST_CASE("lists on threads give the same bits, however many parts and queries there are") {
  for (const size_type n_q : {1, 2, 50})
    for (const size_type list_heads : {size_type{1}, heads}) {
      example<float> e{n_q, 2000};
      e.options.causal = heed::causal::bottom_right;
      const lists some(list_heads, n_q, e.n_kv, 1700);  // four parts
      const auto alone = e.run(heed::selected_keys(some.view()));
      for (const int threads : {2, 3, 16}) {
        INFO(n_q << " queries, " << list_heads << " heads of lists, " << threads << " threads");
        e.options.execution.threads = threads;
        CHECK(e.run(heed::selected_keys(some.view())) == alone);
      }
    }
}

TEST_CASE("lists in a ragged batch are those of each sequence alone, to the bit") {
  const std::vector<size_type> query_starts{0, 4, 4, 5, 14}, key_starts{0, 50, 50, 800, 820},
      query_lengths{3, 0, 1, 9};
  const size_type total_q = query_starts.back(), total_kv = key_starts.back();
  const auto query = testing::random_rows<float>(total_q, heads * d_k, 1),
             key = testing::random_rows<float>(total_kv, kv_heads * d_k, 2),
             value = testing::random_rows<float>(total_kv, kv_heads * d_v, 3);
  Eigen::Matrix<int, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> chosen(600, total_q);
  std::mt19937 engine(4);
  for (size_type b = 0; b + 1 < size_type(query_starts.size()); ++b)
    for (size_type i = query_starts[std::size_t(b)]; i < query_starts[std::size_t(b) + 1]; ++i)
      for (size_type n = 0; n < chosen.rows(); ++n) {
        const size_type keys = key_starts[std::size_t(b) + 1] - key_starts[std::size_t(b)];
        chosen(n, i) = int(engine() % unsigned(keys + 1)) - 1;
      }
  chosen.col(3).setConstant(1 << 20);  // of padding
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  options.window_left = 500;
  heed::workspace memory;
  heed::rows<float> out(total_q, heads * d_v), lse(total_q, heads);
  const auto split = [](auto& m, size_type of) {
    return heed::split_heads(heed::writable_view(m), of);
  };
  const auto read = [](const auto& m, size_type of) {
    return heed::split_heads(heed::view(m), of);
  };
  heed::ragged_attention_into(read(query, heads), read(key, kv_heads), read(value, kv_heads),
                              split(out, heads), split(lse, heads), query_starts, key_starts,
                              options, memory, heed::selected_keys(chosen),
                              heed::query_lengths(query_lengths));
  CHECK(out.row(3).isZero());
  for (std::size_t b = 0; b < query_lengths.size(); ++b) {
    const size_type q0 = query_starts[b], k0 = key_starts[b], n_q = query_lengths[b],
                    n_kv = key_starts[b + 1] - k0;
    heed::rows<float> one(n_q, heads * d_v), one_lse(n_q, heads);
    heed::packed_multi_head_attention_into(query.middleRows(q0, n_q), key.middleRows(k0, n_kv),
                                           value.middleRows(k0, n_kv), {heads, kv_heads}, one,
                                           one_lse, options, memory,
                                           heed::selected_keys(chosen.middleCols(q0, n_q)));
    CAPTURE(b);
    CHECK(out.middleRows(q0, n_q) == one);
    CHECK(lse.middleRows(q0, n_q) == one_lse);
  }
}

TEST_CASE("functions are asked for the keys of lists alone, by their numbers") {
  const size_type n = 300, k = 20;
  const heed::rows<float> x = testing::random_rows<float>(n, d_k, 1);
  Eigen::MatrixXi some(k, n);
  for (size_type i = 0; i < n; ++i)
    for (size_type c = 0; c < k; ++c) some(c, i) = int((7 * i + 13 * c) % n);
  std::atomic<int> asked{0}, others{0};
  const auto function = [&](size_type, size_type, size_type i, size_type j) {
    ++asked;
    others += (some.col(i).array() == int(j)).any() ? 0 : 1;
    return true;
  };
  heed::attention(x, x, x, {}, heed::selected_keys(some), heed::mask_function(function));
  CHECK(asked == n * k);
  CHECK(others == 0);
}

TEST_CASE("a call with lists allocates nothing once its workspace has grown") {
  const example<float> e{3, 900};
  const lists some(1, e.n_q, e.n_kv, 700);
  const auto selected = heed::selected_keys(some.view());
  heed::workspace memory;
  memory.reserve(heed::multi_head_attention_workspace_bytes(e.query_view(), e.key_view(),
                                                            e.value_view(), e.options, selected));
  auto got = e.empty();
  const auto call = [&] {
    heed::multi_head_attention_into(e.query_view(), e.key_view(), e.value_view(), e.view(got.out),
                                    e.view(got.lse, 0), e.options, memory, selected);
  };
  CHECK(testing::allocations_of(call) == 0);
  CHECK(got == e.run(selected));
}

TEST_CASE("what is wrong with lists is refused before anything is written") {
  const example<float> e{3, 10};
  lists some(kv_heads, e.n_q, e.n_kv, 4);
  auto got = e.empty();
  const auto before = got;
  const auto refused = [&](const auto& view, const std::vector<std::string>& words) {
    heed::workspace memory;
    testing::check_refused(
        [&] {
          heed::multi_head_attention_into(e.query_view(), e.key_view(), e.value_view(),
                                          e.view(got.out), e.view(got.lse, 0), e.options, memory,
                                          heed::selected_keys(view));
        },
        words);
    CHECK(got == before);
  };
  auto& number = some.numbers[std::size_t(((1 * kv_heads + 1) * e.n_q + 2) * some.k + 3)];
  for (const std::int64_t wrong : {std::int64_t{10}, std::int64_t{-2}, std::int64_t{1} << 40}) {
    number = wrong;
    refused(some.view(),
            {"heed::multi_head_attention_into", "selected_keys", "query 2 of batch entry 1",
             "head 1", "entry 3 is " + std::to_string(wrong), "n_kv is 10"});
  }
  number = -1;
  auto view = some.view();
  view.rows = 2;
  refused(view, {"selected_keys has n_q 2", "n_q 3"});
  view = some.view(), view.heads = 3;
  refused(view, {"selected_keys has num_heads 3", "num_kv_heads 2", "num_heads 6"});
  view = some.view(), view.batch = 3;
  refused(view, {"selected_keys has batch 3", "batch 2"});
  view = some.view(), view.data = nullptr;
  refused(view, {"selected_keys", "null pointer"});

  heed::rows<float> out = heed::rows<float>::Zero(1, batch * heads * e.n_q * d_v);
  heed::workspace memory;
  testing::check_refused(
      [&] {
        heed::multi_head_attention_into(
            e.query_view(), e.key_view(), e.value_view(), e.view(out), {}, e.options, memory,
            heed::selected_keys(
                bhnd(reinterpret_cast<const std::int32_t*>(out.data()), 1, 1, e.n_q, 2)));
      },
      {"out", "overlaps selected_keys"});

  const heed::rows<float> x = testing::random_rows<float>(4, d_k, 1);
  const auto forward = heed::attention_with_lse(x, x, x);
  testing::check_refused(
      [&] {
        heed::attention_backward(x, x, x, forward.out, forward.lse, x, {},
                                 heed::selected_keys(Eigen::MatrixXi::Zero(1, 4).eval()));
      },
      {"heed::attention_backward", "selected_keys has no gradient", "keep"});
}
