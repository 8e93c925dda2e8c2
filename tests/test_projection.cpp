#include <heed/projection.hpp>

#include "support/example.hpp"
#include "support/refusal.hpp"

using heed::project;
using heed::project_qkv;
using heed::self_attention;
using heed::self_attention_batch;

namespace {

/// x W, one dot product after the other.
template <typename X, typename W>
heed::rows<typename X::Scalar> direct_product(const X& x, const W& w) {
  using Scalar = typename X::Scalar;
  heed::rows<Scalar> out = heed::rows<Scalar>::Constant(x.rows(), w.cols(), Scalar(0));
  for (heed::size_type i = 0; i < x.rows(); ++i)
    for (heed::size_type j = 0; j < w.cols(); ++j)
      for (heed::size_type c = 0; c < x.cols(); ++c) out(i, j) += x(i, c) * w(c, j);
  return out;
}

template <typename Scalar>
struct layer {
  heed::rows<Scalar> x, w_q, w_k, w_v;
  layer(heed::size_type n, heed::size_type d_model, heed::size_type d_k, heed::size_type d_v)
      : x(testing::random_rows<Scalar>(n, d_model, 1)),
        w_q(testing::random_rows<Scalar>(d_model, d_k, 2) * Scalar(0.2)),
        w_k(testing::random_rows<Scalar>(d_model, d_k, 3) * Scalar(0.2)),
        w_v(testing::random_rows<Scalar>(d_model, d_v, 4) * Scalar(0.2)) {}
};

}  // namespace

TEMPLATE_TEST_CASE("project is as exact as the direct product", "", float, double) {
  using wide = testing::wider_t<TestType>;
  struct shape {
    heed::size_type n, d_model, d_out;
  };
  for (const shape& s : {shape{0, 3, 2},
                         {1, 1, 1},
                         {2, 0, 3},
                         {3, 5, 0},
                         {7, 8, 9},
                         {15, 16, 17},
                         {48, 64, 64},
                         {49, 65, 47},
                         {130, 33, 129}}) {
    CAPTURE(s.n, s.d_model, s.d_out);
    const heed::rows<TestType> x = testing::random_rows<TestType>(s.n, s.d_model, 1),
                               w = testing::random_rows<TestType>(s.d_model, s.d_out, 2);
    const heed::rows<TestType> got = project(x, w);
    testing::check_as_exact_as(
        got, direct_product(x, w),
        direct_product(x.template cast<wide>().eval(), w.template cast<wide>().eval()));
    const Eigen::Matrix<TestType, Eigen::Dynamic, Eigen::Dynamic> columns = w;
    testing::check_as_exact_as(
        project(x, columns), direct_product(x, w),
        direct_product(x.template cast<wide>().eval(), w.template cast<wide>().eval()));
  }
}

TEST_CASE("project takes other scalars, expressions and fixed sizes") {
  const layer<float> l(9, 6, 5, 4);
  const heed::rows<float> want = project(l.x, l.w_q);
  CHECK(project(l.x + heed::rows<float>::Zero(9, 6), l.w_q) == want);
  const heed::rows<float> transposed = l.w_q.transpose();
  CHECK(project(l.x, transposed.transpose()).isApprox(want, 1e-6f));
  const Eigen::Matrix<float, 6, 5> fixed = l.w_q;
  const heed::rows<float, 5> out = project(l.x, fixed);
  CHECK(out.isApprox(want, 1e-6f));
  const heed::rows<long double> x = l.x.cast<long double>(), w = l.w_q.cast<long double>();
  CHECK(project(x, w).isApprox(direct_product(x, w), 1e-17L));
}

TEST_CASE("project_qkv is the three projections") {
  const layer<double> l(11, 6, 5, 4);
  const auto qkv = project_qkv(l.x, l.w_q, l.w_k, l.w_v);
  CHECK(qkv.query == project(l.x, l.w_q));
  CHECK(qkv.key == project(l.x, l.w_k));
  CHECK(qkv.value == project(l.x, l.w_v));
}

TEMPLATE_TEST_CASE("self_attention is as exact as the reference on direct products", "", float,
                   double) {
  using wide = testing::wider_t<TestType>;
  const layer<TestType> l(70, 24, 16, 12);
  heed::attention_options options;
  options.causal = heed::causal::top_left;
  const auto reference = [&](const auto& x, const auto& w_q, const auto& w_k, const auto& w_v) {
    return heed::reference_attention(direct_product(x, w_q), direct_product(x, w_k),
                                     direct_product(x, w_v), options);
  };
  const heed::rows<TestType> got = self_attention(l.x, l.w_q, l.w_k, l.w_v, options);
  testing::check_as_exact_as(
      got, reference(l.x, l.w_q, l.w_k, l.w_v),
      reference(l.x.template cast<wide>().eval(), l.w_q.template cast<wide>().eval(),
                l.w_k.template cast<wide>().eval(), l.w_v.template cast<wide>().eval()));
}

TEST_CASE("self_attention takes terms") {
  const layer<double> l(6, 4, 4, 3);
  const testing::mask keep = testing::mask::Identity(6, 6);
  CHECK(self_attention(l.x, l.w_q, l.w_k, l.w_v, {}, heed::keep(keep))
            .isApprox(project(l.x, l.w_v), 1e-15));
}

TEST_CASE("self_attention_batch is self_attention of each sequence") {
  const layer<double> l(3 * 20, 8, 6, 5);
  heed::attention_options options;
  options.causal = heed::causal::top_left;
  const heed::rows<double> all = self_attention_batch(l.x, 3, l.w_q, l.w_k, l.w_v, options);
  for (heed::size_type b = 0; b < 3; ++b) {
    const heed::rows<double> one =
        self_attention(l.x.middleRows(b * 20, 20), l.w_q, l.w_k, l.w_v, options);
    CHECK(all.middleRows(b * 20, 20).isApprox(one, 1e-14));
  }
}

TEST_CASE("the projections refuse weights that do not fit") {
  const layer<float> l(6, 4, 3, 2);
  const heed::rows<float> bad = heed::rows<float>::Zero(5, 3);
  testing::check_refused([&] { project(l.x, bad); },
                         {"heed::project:", "weight: rows 5", "d_model 4"});
  testing::check_refused([&] { project_qkv(l.x, bad, l.w_k, l.w_v); },
                         {"w_q: rows 5", "d_model 4"});
  testing::check_refused([&] { project_qkv(l.x, l.w_q, bad, l.w_v); },
                         {"w_k: rows 5", "d_model 4"});
  testing::check_refused([&] { project_qkv(l.x, l.w_q, l.w_k, bad); },
                         {"heed::project_qkv:", "w_v: rows 5", "d_model 4"});
  const heed::rows<float> wide = heed::rows<float>::Zero(4, 7);
  testing::check_refused([&] { self_attention(l.x, l.w_q, wide, l.w_v); },
                         {"heed::self_attention: key: head_dim 7", "query's head_dim 3"});
  testing::check_refused([&] { self_attention_batch(l.x, 4, l.w_q, l.w_k, l.w_v); },
                         {"heed::self_attention_batch: query: 6", "batch 4"});
}

TEST_CASE("what is built on the projections refuses by its own name") {
  const layer<float> l(6, 4, 4, 4);
  const heed::rows<float> bad = heed::rows<float>::Zero(5, 4), w_o = heed::rows<float>::Zero(4, 4);
  const testing::mask mask = testing::mask::Constant(5, 5, true);
  heed::attention_options wrong;
  wrong.softcap = -1;
  const auto check = [&](const std::string& name, const auto& call) {
    const auto refused = [&](const auto& weights, const auto& options, const char* word,
                             const auto&... terms) {
      testing::check_refused([&] { call(weights, options, terms...); },
                             {"heed::" + name + ": ", word});
    };
    refused(bad, heed::attention_options(), "w_k: rows 5");
    refused(l.w_k, wrong, "softcap");
    refused(l.w_k, heed::attention_options(), "keep has n_q 5", heed::keep(mask));
  };
  check("self_attention", [&](const auto& w_k, const auto& options, const auto&... terms) {
    self_attention(l.x, l.w_q, w_k, l.w_v, options, terms...);
  });
  check("self_attention_batch", [&](const auto& w_k, const auto& options, const auto&... terms) {
    self_attention_batch(l.x, 2, l.w_q, w_k, l.w_v, options, terms...);
  });
  check(
      "multi_head_self_attention", [&](const auto& w_k, const auto& options, const auto&... terms) {
        heed::multi_head_self_attention(l.x, l.w_q, w_k, l.w_v, w_o, {2, 2, 2}, options, terms...);
      });
  heed::rows<float> x = heed::rows<float>::Ones(4, 4);
  heed::workspace memory;
  testing::check_refused([&] { heed::project_into(x, l.w_q, x, {}, memory); },
                         {"heed::project_into: out", "overlaps x ("});
  testing::check_refused([&] { heed::project_into(l.w_q, x, x, {}, memory); },
                         {"heed::project_into: out", "overlaps weight ("});
  testing::check_refused([&] { project(l.x, l.w_q, wrong); }, {"heed::project: softcap"});
}
