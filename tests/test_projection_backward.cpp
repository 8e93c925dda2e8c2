#include <heed/projection_backward.hpp>

#include <unsupported/Eigen/AutoDiff>

#include <cstring>
#include <vector>

#include "support/differences.hpp"
#include "support/isas.hpp"
#include "support/refusal.hpp"

using heed::size_type;
using testing::plain_product;
using testing::random_rows;

namespace {

/// A multi-head layer and the gradient of its output.
template <typename Scalar>
struct layer {
  heed::rows<Scalar> x, w_q, w_k, w_v, w_o, grad_out;
  heed::packed_heads heads;
  heed::attention_options options;

  layer(size_type n, size_type d_model, size_type d_k, size_type d_v,
        const heed::packed_heads& given)
      : x(random_rows<Scalar>(given.batch * n, d_model, 1)),
        w_q(weight(d_model, given.num_heads * d_k, 2)),
        w_k(weight(d_model, given.num_kv_heads * d_k, 3)),
        w_v(weight(d_model, given.num_kv_heads * d_v, 4)),
        w_o(weight(given.num_heads * d_v, d_model + 1, 5)),
        grad_out(random_rows<Scalar>(given.batch * n, d_model + 1, 6)),
        heads(given) {
    options.causal = heed::causal::top_left;
  }
  static heed::rows<Scalar> weight(size_type d_in, size_type d_out, unsigned seed) {
    return (random_rows<double>(d_in, d_out, seed) / std::sqrt(double(d_in)))
        .template cast<Scalar>();
  }
  template <typename Other>
  layer<Other> cast() const {
    layer<Other> other(1, 1, 1, 1, {1, 1, 1});
    other.x = x.template cast<Other>();
    other.w_q = w_q.template cast<Other>();
    other.w_k = w_k.template cast<Other>();
    other.w_v = w_v.template cast<Other>();
    other.w_o = w_o.template cast<Other>();
    other.grad_out = grad_out.template cast<Other>();
    other.heads = heads;
    other.options = options;
    return other;
  }
  auto gradient() const {
    return heed::multi_head_self_attention_backward(x, w_q, w_k, w_v, w_o, heads, grad_out,
                                                    options);
  }
  /// Step after step, with the reference.
  heed::multi_head_self_attention_gradients<Scalar> direct() const {
    using rows = heed::rows<Scalar>;
    const rows q = plain_product<Scalar>(x, w_q), k = plain_product<Scalar>(x, w_k),
               v = plain_product<Scalar>(x, w_v),
               grad_heads = plain_product<Scalar>(grad_out, w_o.transpose());
    rows out(x.rows(), w_o.rows()), dq = q, dk = k, dv = v;
    heed::rows<heed::accumulator_t<Scalar>> lse(x.rows(), heads.num_heads);
    const auto of_query = [&](const auto& view) {
      return heed::split_heads(view, heads.num_heads, heads.batch);
    };
    const auto of_key = [&](const auto& view) {
      return heed::split_heads(view, heads.num_kv_heads, heads.batch);
    };
    using heed::view;
    using heed::writable_view;
    heed::reference_multi_head_attention_into(of_query(view(q)), of_key(view(k)), of_key(view(v)),
                                              of_query(writable_view(out)),
                                              of_query(writable_view(lse)), options);
    heed::reference_multi_head_attention_backward_into(
        of_query(view(q)), of_key(view(k)), of_key(view(v)), of_query(view(out)),
        of_query(view(lse)), of_query(view(grad_heads)), of_query(writable_view(dq)),
        of_key(writable_view(dk)), of_key(writable_view(dv)), options);
    rows grads(x.rows(), q.cols() + k.cols() + v.cols()), weights(x.cols(), grads.cols());
    grads << dq, dk, dv;
    weights << w_q, w_k, w_v;
    heed::multi_head_self_attention_gradients<Scalar> result;
    result.x = plain_product<Scalar>(grads, weights.transpose());
    result.w_q = plain_product<Scalar>(x.transpose(), dq);
    result.w_k = plain_product<Scalar>(x.transpose(), dk);
    result.w_v = plain_product<Scalar>(x.transpose(), dv);
    result.w_o = plain_product<Scalar>(out.transpose(), grad_out);
    return result;
  }
};

template <typename Scalar>
bool same_bits(const heed::rows<Scalar>& a, const heed::rows<Scalar>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), sizeof(Scalar) * static_cast<std::size_t>(a.size())) == 0;
}

}  // namespace

TEMPLATE_TEST_CASE("project_backward is as exact as the plain products, on every instruction set",
                   "", float, double, Eigen::half, Eigen::bfloat16) {
  using wide = testing::wider_t<TestType>;
  struct shape {
    size_type n, d_model, d_out;
  };
  for (const shape& s : {shape{0, 3, 2}, shape{2, 0, 3}, shape{3, 4, 0}, shape{1, 1, 1},
                         shape{4, 3, 5}, shape{15, 16, 17}, shape{49, 65, 47}, shape{7, 300, 9},
                         shape{5000, 33, 3}}) {  // 5000: rows of the transposed x are long
    const heed::rows<TestType> x = random_rows<TestType>(s.n, s.d_model, 1),
                               w = random_rows<TestType>(s.d_model, s.d_out, 2),
                               g = random_rows<TestType>(s.n, s.d_out, 3);
    const auto x_wide = x.template cast<wide>().eval(), w_wide = w.template cast<wide>().eval(),
               g_wide = g.template cast<wide>().eval();
    const auto same_x = plain_product<TestType>(g, w.transpose()),
               same_w = plain_product<TestType>(x.transpose(), g);
    const auto exact_x = plain_product<wide>(g_wide, w_wide.transpose()),
               exact_w = plain_product<wide>(x_wide.transpose(), g_wide);
    const Eigen::Matrix<TestType, Eigen::Dynamic, Eigen::Dynamic> columns = x;
    for (const heed::isa target : testing::isas()) {
      CAPTURE(testing::name_of(target), s.n, s.d_model, s.d_out);
      heed::attention_options options;
      options.execution.target = target;
      const auto got = heed::project_backward(x, w, g, options);
      testing::check_as_exact_as(got.x, same_x, exact_x);
      testing::check_as_exact_as(got.weight, same_w, exact_w);
      const auto other = heed::project_backward(columns, w, g, options);
      testing::check_as_exact_as(other.weight, same_w, exact_w);
      options.execution.threads = 3;
      const auto threads = heed::project_backward(x, w, g, options);
      CHECK(same_bits(threads.x, got.x));
      CHECK(same_bits(threads.weight, got.weight));
    }
  }
}

TEST_CASE("project_qkv_backward is the sum of three gradients of project") {
  const layer<double> l(11, 6, 5, 4, {1, 1, 1});
  const heed::rows<double> dq = random_rows<double>(11, 5, 7), dk = random_rows<double>(11, 5, 8),
                           dv = random_rows<double>(11, 4, 9);
  const auto got = heed::project_qkv_backward(l.x, l.w_q, l.w_k, l.w_v, dq, dk, dv);
  const auto q = heed::project_backward(l.x, l.w_q, dq), k = heed::project_backward(l.x, l.w_k, dk),
             v = heed::project_backward(l.x, l.w_v, dv);
  CHECK(got.w_q == q.weight);
  CHECK(got.w_k == k.weight);
  CHECK(got.w_v == v.weight);
  // 14 products of numbers of about 1, in another order
  CHECK(testing::max_error(got.x, (q.x + k.x + v.x).eval()) <= 14 * 8 * 0x1p-53L);
}

TEMPLATE_TEST_CASE("the gradient of a multi-head layer is as exact as that of its steps", "", float,
                   double, Eigen::half, Eigen::bfloat16) {
  for (const heed::packed_heads& heads :
       {heed::packed_heads{1, 1, 1}, heed::packed_heads{4, 2, 3}, heed::packed_heads{3, 1, 2}}) {
    const layer<TestType> l(37, 24, 16, 8, heads);
    const auto same = l.direct();
    const auto exact = l.template cast<testing::wider_t<TestType>>().direct();
    for (const heed::isa target : testing::isas()) {
      CAPTURE(testing::name_of(target), heads.num_heads, heads.num_kv_heads);
      layer<TestType> on = l;
      on.options.execution.target = target;
      const auto got = on.gradient();
      testing::check_as_exact_as(got.x, same.x, exact.x);
      testing::check_as_exact_as(got.w_q, same.w_q, exact.w_q);
      testing::check_as_exact_as(got.w_k, same.w_k, exact.w_k);
      testing::check_as_exact_as(got.w_v, same.w_v, exact.w_v);
      testing::check_as_exact_as(got.w_o, same.w_o, exact.w_o);
      on.options.execution.threads = 2;
      const auto threads = on.gradient();
      CHECK(same_bits(threads.x, got.x));
      CHECK(same_bits(threads.w_q, got.w_q));
      CHECK(same_bits(threads.w_o, got.w_o));
    }
  }
}

TEST_CASE("the gradient of a multi-head layer is that of its output, by differences") {
  const layer<double> l(5, 4, 3, 2, {4, 2, 2});
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  options.softcap = 2;
  heed::rows<double> bias = random_rows<double>(5, 5, 7), grad_bias(5, 5);
  const auto got = heed::multi_head_self_attention_backward(
      l.x, l.w_q, l.w_k, l.w_v, l.w_o, l.heads, l.grad_out, options, heed::bias(bias),
      heed::grad_bias(grad_bias));
  layer<long double> wide = l.cast<long double>();
  heed::rows<long double> wide_bias = bias.cast<long double>();
  const auto loss = [&] {
    return testing::inner(
        heed::multi_head_self_attention(wide.x, wide.w_q, wide.w_k, wide.w_v, wide.w_o, wide.heads,
                                        options, heed::bias(wide_bias)),
        wide.grad_out);
  };
  testing::check_differences(got.x, wide.x, loss);
  testing::check_differences(got.w_q, wide.w_q, loss);
  testing::check_differences(got.w_k, wide.w_k, loss);
  testing::check_differences(got.w_v, wide.w_v, loss);
  testing::check_differences(got.w_o, wide.w_o, loss);
  testing::check_differences(grad_bias, wide_bias, loss);
}

TEST_CASE("the gradients of self_attention, of one sequence and of a batch, by differences") {
  const layer<double> l(4, 5, 3, 2, {1, 1, 3});
  const heed::rows<double> grad_out = random_rows<double>(12, 2, 7);
  const auto check = [&](const auto& got, const auto& forward) {
    layer<long double> wide = l.cast<long double>();
    const auto loss = [&] { return testing::inner(forward(wide), grad_out); };
    testing::check_differences(got.x, wide.x, loss);
    testing::check_differences(got.w_q, wide.w_q, loss);
    testing::check_differences(got.w_k, wide.w_k, loss);
    testing::check_differences(got.w_v, wide.w_v, loss);
  };
  check(heed::self_attention_backward(l.x, l.w_q, l.w_k, l.w_v, grad_out, l.options),
        [](const auto& w) { return heed::self_attention(w.x, w.w_q, w.w_k, w.w_v, w.options); });
  check(heed::self_attention_batch_backward(l.x, 3, l.w_q, l.w_k, l.w_v, grad_out, l.options),
        [](const auto& w) {
          return heed::self_attention_batch(w.x, 3, w.w_q, w.w_k, w.w_v, w.options);
        });
}

TEST_CASE("gradients agree with derivatives that the forward call carries, and carry their own") {
  using dual = Eigen::AutoDiffScalar<Eigen::Vector3d>;
  const layer<double> l(5, 4, 3, 2, {2, 1, 1});
  const auto got = l.gradient();
  layer<dual> with = l.cast<dual>();
  with.x(2, 1).derivatives() = Eigen::Vector3d::Unit(0);
  with.w_k(3, 2).derivatives() = Eigen::Vector3d::Unit(1);
  with.w_o(1, 4).derivatives() = Eigen::Vector3d::Unit(2);
  const auto out = heed::multi_head_self_attention(with.x, with.w_q, with.w_k, with.w_v, with.w_o,
                                                   with.heads, with.options);
  Eigen::Vector3d sum = Eigen::Vector3d::Zero();
  for (size_type i = 0; i < out.rows(); ++i)
    for (size_type c = 0; c < out.cols(); ++c) sum += out(i, c).derivatives() * l.grad_out(i, c);
  // some hundred roundings of numbers of about 1
  CHECK(std::abs(sum(0) - got.x(2, 1)) <= 1e-13);
  CHECK(std::abs(sum(1) - got.w_k(3, 2)) <= 1e-13);
  CHECK(std::abs(sum(2) - got.w_o(1, 4)) <= 1e-13);

  // the second derivative of the loss does not depend on which of two comes first
  const auto second = with.gradient();
  CHECK(std::abs(second.x(2, 1).derivatives()(1) - second.w_k(3, 2).derivatives()(0)) <= 1e-13);
  CHECK(std::abs(second.w_k(3, 2).derivatives()(2) - second.w_o(1, 4).derivatives()(1)) <= 1e-13);
  CHECK(std::abs(second.x(2, 1).derivatives()(1)) > 1e-4);
}

TEST_CASE("the gradients of projections refuse what does not fit, and write nothing") {
  const layer<float> l(6, 4, 3, 2, {1, 1, 1});
  using rows = heed::rows<float>;
  const rows bad = rows::Zero(5, 3), good = rows::Zero(6, 3);
  testing::check_refused([&] { heed::project_backward(l.x, bad, good); },
                         {"heed::project_backward:", "weight: rows 5", "d_model 4"});
  testing::check_refused([&] { heed::project_backward(l.x, l.w_q, bad); },
                         {"heed::project_backward: grad_out: rows 5", "x's rows 6"});
  testing::check_refused([&] { heed::project_backward(l.x, l.w_v, good); },
                         {"grad_out: columns 3", "weight's columns 2"});
  testing::check_refused(
      [&] { heed::project_qkv_backward(l.x, l.w_q, l.w_k, l.w_v, good, bad, good); },
      {"heed::project_qkv_backward: grad_key: rows 5", "6"});
  testing::check_refused(
      [&] { heed::project_qkv_backward(l.x, l.w_q, l.w_k, l.w_v, good, good, good); },
      {"grad_value: columns 3", "w_v's columns 2"});
  testing::check_refused([&] { heed::self_attention_backward(l.x, l.w_q, l.w_k, l.w_v, good); },
                         {"heed::self_attention_backward: grad_out: columns 3", "w_v's columns 2"});
  const rows two = rows::Zero(6, 2), wide = rows::Zero(4, 7);
  testing::check_refused([&] { heed::self_attention_backward(l.x, l.w_q, wide, l.w_v, two); },
                         {"heed::self_attention_backward: key: head_dim 7", "query's head_dim 3"});
  testing::check_refused(
      [&] { heed::self_attention_batch_backward(l.x, 4, l.w_q, l.w_k, l.w_v, two); },
      {"heed::self_attention_batch_backward: query: 6", "batch 4"});
  testing::check_refused(
      [&] {
        heed::multi_head_self_attention_backward(l.x, l.w_q, l.w_k, l.w_v, l.w_o, {2, 1},
                                                 l.grad_out);
      },
      {"heed::multi_head_self_attention_backward: w_q: 3", "num_heads 2"});
  testing::check_refused(
      [&] {
        heed::multi_head_self_attention_backward(l.x, l.w_q, l.w_k, l.w_v, l.w_o, {1, 1}, two);
      },
      {"heed::multi_head_self_attention_backward: grad_out: columns 2", "w_o's columns 5"});
  const testing::mask mask = testing::mask::Constant(5, 5, true);
  testing::check_refused(
      [&] { heed::self_attention_backward(l.x, l.w_q, l.w_k, l.w_v, two, {}, heed::keep(mask)); },
      {"heed::self_attention_backward: keep has n_q 5"});
  heed::attention_options wrong;
  wrong.execution.threads = 0;
  testing::check_refused([&] { heed::project_backward(l.x, l.w_q, good, wrong); },
                         {"heed::project_backward: execution.threads", "0"});

  heed::workspace memory;
  rows grad_x = rows::Constant(6, 4, 7), grad_w = rows::Constant(4, 3, 7), x = l.x;
  const auto into = [&](const rows& from, rows& to_x, auto&& to_w) {
    heed::project_backward_into(from, l.w_q, good, to_x, to_w, {}, memory);
  };
  rows narrow(4, 2);
  testing::check_refused(
      [&] { into(x, grad_x, narrow); },
      {"heed::project_backward_into: grad_weight: columns 2", "weight's columns 3"});
  testing::check_refused([&] { into(x, x, grad_w); },
                         {"heed::project_backward_into: grad_x", "overlaps x ("});
  testing::check_refused([&] { into(x, grad_x, grad_x.topLeftCorner(4, 3)); },
                         {"heed::project_backward_into: grad_x", "overlaps grad_weight ("});
  CHECK((grad_x.array() == 7).all());
  CHECK((grad_w.array() == 7).all());
  CHECK(x == l.x);
  CHECK(memory.capacity() == 0);

  // an empty matrix of a view whose strides are 0: more rows than there is scratch for
  const float zero = 0;
  const Eigen::Map<const rows, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>> endless(
      &zero, size_type{1} << 50, 1, {0, 0});
  testing::check_refused([&] { heed::project_backward(endless, rows::Zero(1, 1), endless); },
                         {"heed::project_backward: scratch for x's rows"});
}
