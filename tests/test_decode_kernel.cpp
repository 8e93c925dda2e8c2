#include <heed/detail/decode_plan.hpp>
#include <heed/paged_kv_cache.hpp>
#include <heed/reference.hpp>
#include <heed/workspace.hpp>

#include <cstdint>
#include <limits>
#include <vector>

#include "support/isas.hpp"
#include "support/variations.hpp"

namespace {

/// A problem by decode, whatever its shape: what decode is chosen for is another matter.
const auto decode = [](const auto& problem) {
  const auto every_sequence = [](heed::size_type) { return true; };
  const heed::detail::decode_plan plan = heed::detail::plan_decode_now(problem, every_sequence);
  heed::workspace memory;
  heed::detail::decode(problem, plan, memory.reserve(plan.bytes), every_sequence);
};

/// One head by decode.
auto decode_on(heed::isa target) {
  return [target](const auto& query, const auto& key, const auto& value,
                  heed::attention_options options, const auto&... terms) {
    using Scalar = typename std::decay_t<decltype(query)>::Scalar;
    options.execution.target = target;
    heed::attention_result<Scalar> result(query.rows(), value.cols());
    decode(heed::detail::make_problem<Scalar>("decode", heed::view(query), heed::view(key),
                                              heed::view(value), heed::writable_view(result.out),
                                              heed::writable_view(result.lse), options, terms...));
    return result;
  };
}

/// Several heads of several sequences: [batch, heads, n, d].
template <typename Scalar>
struct heads_example {
  using accumulator = heed::accumulator_t<Scalar>;

  heed::size_type batch = 2, num_heads, num_kv_heads, n_q, n_kv, d_k, d_v;
  heed::rows<Scalar> query, key, value;  // each row of a head, one after the other
  heed::attention_options options;

  heads_example(heed::size_type heads, heed::size_type kv_heads, heed::size_type queries,
                heed::size_type keys, heed::size_type key_dim, heed::size_type value_dim)
      : num_heads(heads),
        num_kv_heads(kv_heads),
        n_q(queries),
        n_kv(keys),
        d_k(key_dim),
        d_v(value_dim),
        query(testing::random_rows<Scalar>(2 * heads * queries, key_dim, 1)),
        key(testing::random_rows<Scalar>(2 * kv_heads * keys, key_dim, 2)),
        value(testing::random_rows<Scalar>(2 * kv_heads * keys, value_dim, 3)) {}

  template <typename Other>
  heads_example<Other> cast() const {
    heads_example<Other> other(num_heads, num_kv_heads, n_q, n_kv, d_k, d_v);
    other.query = query.template cast<Other>();
    other.key = key.template cast<Other>();
    other.value = value.template cast<Other>();
    other.options = options;
    return other;
  }
  /// run(problem) on freshly made outputs.
  template <typename Run, typename... Terms>
  heed::attention_result<Scalar> run(const Run& run_problem, const Terms&... terms) const {
    heed::attention_result<Scalar> result(batch * num_heads * n_q, d_v);
    run_problem(heed::detail::make_problem<Scalar>(
        "decode", heed::bhnd(query.data(), batch, num_heads, n_q, d_k),
        heed::bhnd(key.data(), batch, num_kv_heads, n_kv, d_k),
        heed::bhnd(value.data(), batch, num_kv_heads, n_kv, d_v),
        heed::bhnd(result.out.data(), batch, num_heads, n_q, d_v),
        heed::bhnd(result.lse.data(), batch, num_heads, n_q, 1), options, terms...));
    return result;
  }
};

const auto reference = [](const auto& problem) { heed::detail::reference(problem); };

template <typename Scalar, typename... Terms>
void check_heads(const heads_example<Scalar>& e, const Terms&... terms) {
  const heed::attention_result<Scalar> got = e.run(decode, terms...),
                                       same = e.run(reference, terms...);
  const auto exact = e.template cast<testing::wider_t<Scalar>>().run(reference, terms...);
  testing::check_as_exact_as(got.out, same.out, exact.out);
  testing::check_as_exact_as(got.lse, same.lse, exact.lse, 1);
}

}  // namespace

TEMPLATE_TEST_CASE("decode is as exact as the reference", "", float, double, Eigen::half,
                   Eigen::bfloat16) {
  for (const heed::isa target : testing::isas()) {
    INFO(testing::name_of(target));
    testing::check_path_everywhere<TestType>(decode_on(target));
    testing::check_hidden_values<TestType>(decode_on(target));
  }
}

TEMPLATE_TEST_CASE("decode: groups of heads, short queries and many parts", "", float, double,
                   Eigen::bfloat16) {
  for (const heed::isa target : testing::isas())
    for (const heed::size_type group : {1, 2, 3, 4, 7})
      for (const heed::size_type n_q : {1, 3}) {
        CAPTURE(testing::name_of(target), group, n_q);
        heads_example<TestType> e(2 * group, 2, n_q, 1100, 48, 80);
        e.options.execution.target = target;
        check_heads(e);
        e.options.causal = heed::causal::bottom_right;
        check_heads(e);
        e.options.window_left = 600;
        check_heads(e);
      }
}

TEST_CASE("decode: every thread count gives the same bits") {
  heads_example<float> e(4, 2, 2, 3000, 32, 32);
  const heed::attention_result<float> one = e.run(decode);
  for (const int threads : {2, 3, 8}) {
    e.options.execution.threads = threads;
    const heed::attention_result<float> many = e.run(decode);
    CHECK(many.out == one.out);
    CHECK(many.lse == one.lse);
  }
}

TEMPLATE_TEST_CASE("decode: strides and alignment", "", float, Eigen::half) {
  using scalar = TestType;
  const testing::example<scalar> e(2, 70, 33, 20);
  using column_major = Eigen::Matrix<scalar, Eigen::Dynamic, Eigen::Dynamic>;
  for (const heed::isa target : testing::isas()) {
    CAPTURE(testing::name_of(target));
    const auto path = decode_on(target);
    SECTION("column-major keys and values") {
      const column_major query = e.query, key = e.key, value = e.value;
      testing::check_result(path(query, key, value, e.options), e);
    }
    SECTION("rows that begin anywhere") {
      heed::rows<scalar> packed = heed::rows<scalar>::Zero(70, 1 + 33 + 20 + 5);
      packed.middleCols(1, 33) = e.key;
      packed.middleCols(34, 20) = e.value;
      testing::check_result(
          path(e.query, packed.middleCols(1, 33), packed.middleCols(34, 20), e.options), e);
    }
    SECTION("every second column") {
      heed::rows<scalar> spread = heed::rows<scalar>::Zero(70, 66);
      using strided =
          Eigen::Map<heed::rows<scalar>, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;
      strided key(spread.data(), 70, 33, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(66, 2));
      key = e.key;
      testing::check_result(path(e.query, key, e.value, e.options), e);
    }
  }
}

TEST_CASE("decode: functions of the user and dropout") {
  const auto bend = [](auto score, heed::size_type, heed::size_type h, heed::size_type i,
                       heed::size_type j) {
    using scalar = decltype(score);
    return (i + j) % 7 == 0 ? -std::numeric_limits<scalar>::infinity()
                            : score * scalar(0.5) + scalar(double(h));
  };
  const auto shows = [](heed::size_type b, heed::size_type h, heed::size_type i,
                        heed::size_type j) { return (b + h + i + j) % 5 != 0; };
  for (const heed::isa target : testing::isas()) {
    CAPTURE(testing::name_of(target));
    heads_example<float> e(6, 2, 2, 700, 40, 24);
    e.options.execution.target = target;
    check_heads(e, heed::score_function(bend));
    check_heads(e, heed::mask_function(shows));
    check_heads(e, heed::dropout(0.3, 17));
    check_heads(e, heed::score_function(bend), heed::mask_function(shows), heed::dropout(0.3, 17));
  }
}

namespace {

/// Decode of two queries of each of two sequences against what a cache holds, as exact as the
/// reference on the same cache.
template <typename Cache>
void check_cache(const Cache& cache, heed::isa target) {
  CAPTURE(testing::name_of(target));
  const heed::rows<float> query = testing::random_rows<float>(2 * 6 * 2, 40, 5);
  const auto run = [&](auto type, const auto& run_problem) {
    using scalar = decltype(type);
    heed::attention_options options;
    options.execution.target = target;
    options.causal = heed::causal::bottom_right;
    const heed::rows<scalar> cast_query = query.cast<scalar>();
    heed::attention_result<scalar> result(2 * 6 * 2, 24);
    run_problem(heed::detail::make_cached_problem<scalar>(
        "decode", heed::bhnd(cast_query.data(), 2, 6, 2, 40), cache,
        heed::bhnd(result.out.data(), 2, 6, 2, 24), heed::bhnd(result.lse.data(), 2, 6, 2, 1),
        options));
    return result;
  };
  const auto got = run(0.0f, decode), same = run(0.0f, reference);
  const auto exact = run(0.0, reference);
  testing::check_as_exact_as(got.out, same.out, exact.out);
  testing::check_as_exact_as(got.lse, same.lse, exact.lse, 1);
}

}  // namespace

TEMPLATE_TEST_CASE("decode: caches in one piece and in pages", "", float, Eigen::bfloat16,
                   Eigen::half, std::int8_t, heed::float8_e4m3, heed::float8_e5m2, heed::int8_block,
                   heed::int4_block) {
  const heed::rows<float> key = testing::random_rows<float>(2 * 700, 40, 6),
                          value = testing::random_rows<float>(2 * 700, 24, 7);
  const auto tokens = [](const heed::rows<float>& rows, heed::size_type n) {
    return heed::bhnd(rows.data(), 1, 2, n, rows.cols());
  };
  for (const heed::isa target : testing::isas()) {
    heed::kv_cache<TestType> whole(2, 2, 40, 24);
    whole.append(0, tokens(key, 700), tokens(value, 700));
    whole.append(1, tokens(key, 130), tokens(value, 130));
    check_cache(whole, target);
    for (const heed::size_type page_rows : {16, 100}) {
      CAPTURE(page_rows);
      heed::paged_kv_cache<TestType> paged(100, page_rows, 2, 40, 24);
      const heed::size_type a = paged.add_sequence(), b = paged.add_sequence();
      for (heed::size_type part = 0; part < 7;
           ++part) {  // the pages of the two sequences take turns
        paged.append(a, tokens(key, 100), tokens(value, 100));
        paged.append(b, tokens(key, 19), tokens(value, 19));
      }
      const std::vector<heed::size_type> sequences{b, a};
      check_cache(paged.batch(sequences), target);
    }
  }
}
