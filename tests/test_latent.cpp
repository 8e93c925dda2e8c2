#include <heed/latent.hpp>

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
