#include <heed/latent_backward.hpp>

#include <unsupported/Eigen/AutoDiff>

#include <cstring>

#include "support/differences.hpp"
#include "support/isas.hpp"
#include "support/refusal.hpp"

using heed::size_type;
using testing::plain_product;
using testing::random_rows;

namespace {

struct shape {
  size_type n_q, n_kv, heads, d_c, d_nope, rope_dim, d_v;
};

/// Latent attention and the gradient of its output.
template <typename Scalar>
struct example {
  heed::rows<Scalar> query, latent, grad_out;
  heed::latent_weights<Scalar> w;
  heed::attention_options options;

  example() = default;
  explicit example(const shape& s, unsigned draw = 0)
      : query(random_rows<Scalar>(s.n_q, s.heads * (s.d_nope + s.rope_dim), 5 * draw + 1)),
        latent(random_rows<Scalar>(s.n_kv, s.d_c + s.rope_dim, 5 * draw + 2)),
        grad_out(random_rows<Scalar>(s.n_q, s.heads * s.d_v, 5 * draw + 3)) {
    const double scale = 1 / std::sqrt(double(s.d_c));
    w.w_uk = (random_rows<double>(s.heads * s.d_nope, s.d_c, 5 * draw + 4) * scale)
                 .template cast<Scalar>();
    w.w_uv =
        (random_rows<double>(s.heads * s.d_v, s.d_c, 5 * draw + 5) * scale).template cast<Scalar>();
    w.num_heads = s.heads;
    w.rope_dim = s.rope_dim;
    options.causal = heed::causal::bottom_right;
  }
  template <typename Other>
  example<Other> cast() const {
    example<Other> other;
    other.query = query.template cast<Other>();
    other.latent = latent.template cast<Other>();
    other.grad_out = grad_out.template cast<Other>();
    other.w.w_uk = w.w_uk.template cast<Other>();
    other.w.w_uv = w.w_uv.template cast<Other>();
    other.w.num_heads = w.num_heads;
    other.w.rope_dim = w.rope_dim;
    other.options = options;
    return other;
  }
  heed::latent_gradients<Scalar> absorbed() const {
    return heed::latent_attention_backward(query, latent, w, grad_out, options);
  }
  heed::latent_gradients<Scalar> expanded() const {
    return heed::expanded_latent_attention_backward(query, latent, w, grad_out, options);
  }
  /// The absorbed form, or the expanded one, step after step, with the reference.
  heed::latent_gradients<Scalar> direct(bool absorb) const {
    using rows = heed::rows<Scalar>;
    using Acc = heed::accumulator_t<Scalar>;
    const size_type d_c = w.d_c(), d_nope = w.d_nope(), d_v = w.d_v(), d_r = w.rope_dim,
                    width = d_nope + d_r;
    heed::latent_gradients<Scalar> result{query, latent, w.w_uk, w.w_uv};
    heed::attention_options scaled = options;
    scaled.scale = 1 / std::sqrt(double(width));
    heed::rows<Acc> back = heed::rows<Acc>::Constant(latent.rows(), latent.cols(), Acc(0));
    const rows c = latent.leftCols(d_c);
    for (size_type h = 0; h < w.num_heads; ++h) {
      const rows uk = w.w_uk.middleRows(h * d_nope, d_nope), uv = w.w_uv.middleRows(h * d_v, d_v),
                 q = query.middleCols(h * width, width), g = grad_out.middleCols(h * d_v, d_v);
      if (absorb) {
        rows a(q.rows(), d_c + d_r);
        a << plain_product<Scalar>(q.leftCols(d_nope), uk), q.rightCols(d_r);
        const rows d_summed = plain_product<Scalar>(g, uv);
        const auto forward = heed::reference_attention_with_lse(a, latent, c, scaled);
        const auto d = heed::reference_attention_backward(a, latent, c, forward.out, forward.lse,
                                                          d_summed, scaled);
        const rows d_plain = d.query.leftCols(d_c);
        result.query.middleCols(h * width, width) << plain_product<Scalar>(d_plain, uk.transpose()),
            d.query.rightCols(d_r);
        result.w_uk.middleRows(h * d_nope, d_nope) =
            plain_product<Scalar>(q.leftCols(d_nope).transpose(), d_plain);
        result.w_uv.middleRows(h * d_v, d_v) = plain_product<Scalar>(g.transpose(), forward.out);
        back += d.key.template cast<Acc>();
        back.leftCols(d_c) += d.value.template cast<Acc>();
      } else {
        rows key(latent.rows(), width);
        key << plain_product<Scalar>(c, uk.transpose()), latent.rightCols(d_r);
        const rows value = plain_product<Scalar>(c, uv.transpose());
        const auto forward = heed::reference_attention_with_lse(q, key, value, scaled);
        const auto d =
            heed::reference_attention_backward(q, key, value, forward.out, forward.lse, g, scaled);
        result.query.middleCols(h * width, width) = d.query;
        const rows d_plain = d.key.leftCols(d_nope);
        result.w_uk.middleRows(h * d_nope, d_nope) = plain_product<Scalar>(d_plain.transpose(), c);
        result.w_uv.middleRows(h * d_v, d_v) = plain_product<Scalar>(d.value.transpose(), c);
        back.leftCols(d_c) +=
            plain_product<Acc>(d_plain.template cast<Acc>().eval(),
                               uk.template cast<Acc>().eval()) +
            plain_product<Acc>(d.value.template cast<Acc>().eval(), uv.template cast<Acc>().eval());
        back.rightCols(d_r) += d.key.rightCols(d_r).template cast<Acc>();
      }
    }
    result.latent = back.template cast<Scalar>();
    return result;
  }
};

/// How wrong the steps are in the precision of the example. In a few rows they may be right by
/// luck: small examples are drawn again until some two hundred rows have been seen.
struct step_errors {
  long double query = 0, latent = 0, w_uk = 0, w_uv = 0;
};
template <typename Scalar>
step_errors errors_of_steps(const shape& s, bool absorb) {
  step_errors largest;
  unsigned draw = 0;
  for (size_type rows = 0; rows < 200; rows += (std::min)(s.n_q, s.n_kv) + 3, ++draw) {
    const example<Scalar> e(s, draw);
    const auto same = e.direct(absorb);
    const auto exact = e.template cast<testing::wider_t<Scalar>>().direct(absorb);
    const auto see = [](long double& error, const auto& got, const auto& right) {
      error = (std::max)(error, testing::max_error(got, right));
    };
    see(largest.query, same.query, exact.query);
    see(largest.latent, same.latent, exact.latent);
    see(largest.w_uk, same.w_uk, exact.w_uk);
    see(largest.w_uv, same.w_uv, exact.w_uv);
  }
  return largest;
}

template <typename Scalar>
bool same_bits(const heed::rows<Scalar>& a, const heed::rows<Scalar>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), sizeof(Scalar) * static_cast<std::size_t>(a.size())) == 0;
}

}  // namespace

TEMPLATE_TEST_CASE("the gradients of both forms are as exact as those of their steps", "", float,
                   double, Eigen::half, Eigen::bfloat16) {
  for (const shape& s :
       {shape{20, 50, 4, 24, 16, 8, 12}, shape{1, 7, 2, 9, 5, 2, 3}, shape{6, 6, 3, 8, 4, 0, 8}}) {
    const example<TestType> e(s);
    for (const bool absorb : {true, false}) {
      const step_errors error = errors_of_steps<TestType>(s, absorb);
      const auto exact = e.template cast<testing::wider_t<TestType>>().direct(absorb);
      for (const heed::isa target : testing::isas()) {
        CAPTURE(testing::name_of(target), absorb, s.n_q);
        example<TestType> on = e;
        on.options.execution.target = target;
        const auto got = absorb ? on.absorbed() : on.expanded();
        testing::check_error(got.query, exact.query, error.query);
        testing::check_error(got.latent, exact.latent, error.latent);
        testing::check_error(got.w_uk, exact.w_uk, error.w_uk);
        testing::check_error(got.w_uv, exact.w_uv, error.w_uv);
        on.options.execution.threads = 3;
        const auto threads = absorb ? on.absorbed() : on.expanded();
        CHECK(same_bits(threads.query, got.query));
        CHECK(same_bits(threads.latent, got.latent));
        CHECK(same_bits(threads.w_uk, got.w_uk));
        CHECK(same_bits(threads.w_uv, got.w_uv));
      }
    }
  }
}

TEST_CASE("the gradients of both forms are that of latent attention, by differences") {
  const example<double> e({4, 6, 2, 5, 3, 2, 3});
  heed::rows<double> bias = random_rows<double>(4, 6, 7), grad_bias(4, 6);
  example<long double> wide = e.cast<long double>();
  heed::rows<long double> wide_bias = bias.cast<long double>();
  const auto loss = [&] {
    return testing::inner(heed::expanded_latent_attention(wide.query, wide.latent, wide.w,
                                                          wide.options, heed::bias(wide_bias)),
                          e.grad_out);
  };
  for (const bool absorb : {true, false}) {
    CAPTURE(absorb);
    const auto got =
        absorb ? heed::latent_attention_backward(e.query, e.latent, e.w, e.grad_out, e.options,
                                                 heed::bias(bias), heed::grad_bias(grad_bias))
               : heed::expanded_latent_attention_backward(e.query, e.latent, e.w, e.grad_out,
                                                          e.options, heed::bias(bias),
                                                          heed::grad_bias(grad_bias));
    testing::check_differences(got.query, wide.query, loss);
    testing::check_differences(got.latent, wide.latent, loss);
    testing::check_differences(got.w_uk, wide.w.w_uk, loss);
    testing::check_differences(got.w_uv, wide.w.w_uv, loss);
    testing::check_differences(grad_bias, wide_bias, loss);
  }
}

TEST_CASE("the gradients of latent attention agree with derivatives that it carries") {
  using dual = Eigen::AutoDiffScalar<Eigen::Vector3d>;
  const example<double> e({4, 6, 2, 5, 3, 2, 3});
  example<dual> with = e.cast<dual>();
  with.query(2, 4).derivatives() = Eigen::Vector3d::Unit(0);
  with.latent(3, 1).derivatives() = Eigen::Vector3d::Unit(1);
  with.w.w_uk(4, 2).derivatives() = Eigen::Vector3d::Unit(2);
  const auto out = heed::latent_attention(with.query, with.latent, with.w, with.options);
  Eigen::Vector3d sum = Eigen::Vector3d::Zero();
  for (size_type i = 0; i < out.rows(); ++i)
    for (size_type c = 0; c < out.cols(); ++c) sum += out(i, c).derivatives() * e.grad_out(i, c);
  for (const auto& got : {e.absorbed(), e.expanded()}) {
    // some hundred roundings of numbers of about 1
    CHECK(std::abs(got.query(2, 4) - sum(0)) <= 1e-13);
    CHECK(std::abs(got.latent(3, 1) - sum(1)) <= 1e-13);
    CHECK(std::abs(got.w_uk(4, 2) - sum(2)) <= 1e-13);
  }
  for (const auto& got : {with.absorbed(), with.expanded()}) {
    CHECK(std::abs(got.latent(3, 1).value() - sum(1)) <= 1e-13);
    CHECK(std::abs(got.latent(3, 1).derivatives()(0) - got.query(2, 4).derivatives()(1)) <= 1e-13);
  }
}

TEMPLATE_TEST_CASE("the gradients of latent attention sum 16-bit numbers up in float", "",
                   Eigen::bfloat16, Eigen::half) {
  // Sums of ones: where they are added one by one, bfloat16 ends at 256 and half at 2048.
  const size_type n = 2560;
  example<TestType> e({n, 1, 1, 1, 1, 0, 1});
  const auto ones = [](size_type rows, size_type cols) {
    return heed::rows<TestType>::Constant(rows, cols, TestType(1)).eval();
  };
  e.query = ones(n, 1), e.latent = ones(1, 1), e.grad_out = ones(n, 1);
  e.w.w_uk = ones(1, 1), e.w.w_uv = ones(1, 1);
  e.options = {};
  for (const auto& got : {e.absorbed(), e.expanded()}) {
    CHECK(got.w_uv(0, 0) == TestType(n));
    CHECK(got.latent(0, 0) == TestType(n));
    CHECK(got.query.isZero(TestType(0)));
  }
}

TEST_CASE("the gradients of latent attention refuse what does not fit, by their own names") {
  const example<float> good({3, 5, 2, 6, 4, 2, 3});
  const auto refuse = [](const example<float>& e, const std::vector<std::string>& words) {
    auto named = words;
    named.push_back("heed::latent_attention_backward: ");
    testing::check_refused([&] { e.absorbed(); }, named);
    named.back() = "heed::expanded_latent_attention_backward: ";
    testing::check_refused([&] { e.expanded(); }, named);
  };
  example<float> e = good;
  e.grad_out.resize(4, 6);
  refuse(e, {"grad_out: rows 4", "query's rows 3"});
  e = good;
  e.grad_out.resize(3, 5);
  refuse(e, {"grad_out: columns 5", "num_heads * d_v 6"});
  e = good;
  e.latent.resize(5, 7);
  refuse(e, {"latent: columns 7", "8"});
  e = good;
  e.w.num_heads = 3;
  refuse(e, {"w_uk", "8", "3"});
  e = good;
  e.options.softcap = -1;
  refuse(e, {"softcap", "-1"});
  e = good;
  e.options.execution.threads = 0;
  refuse(e, {"execution.threads", "0"});
  const Eigen::Map<const heed::rows<float>> nowhere(nullptr, 3, 6);
  testing::check_refused(
      [&] { heed::latent_attention_backward(good.query, good.latent, good.w, nowhere); },
      {"heed::latent_attention_backward: grad_out: a null pointer"});
}
