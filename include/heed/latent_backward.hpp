#pragma once

#include <heed/backward.hpp>
#include <heed/latent.hpp>
#include <heed/projection.hpp>

#include <type_traits>

HEED_NAMESPACE_BEGIN

/// The gradients of latent attention, in either form, with respect to its inputs.
template <typename Scalar>
struct latent_gradients {
  rows<Scalar> query;   ///< n_q x (H * (d_nope + rope_dim))
  rows<Scalar> latent;  ///< n_kv x (d_c + rope_dim)
  rows<Scalar> w_uk;    ///< [H * d_nope, d_c]
  rows<Scalar> w_uv;    ///< [H * d_v, d_c]
};

namespace detail {
/// What both forms begin with: checks, views and room.
template <typename Query, typename Latent, typename Scalar, typename GradOut>
struct latent_backward_inputs {
  static_assert(grad_fits<Scalar, GradOut>::value);
  latent_backward_inputs(const char* name, const Query& q, const Latent& c,
                         const latent_weights<Scalar>& w, const GradOut& g,
                         const attention_options& options)
      : query(q), latent(c), grad_out(g) {
    check_latent(name, q, c, w);
    check_options<accumulator_t<Scalar>>(name, options);
    check_memory(name, "grad_out", g);
    check_axis(name, "grad_out", "rows", g.rows(), "query", q.rows());
    check_equal(name, "grad_out: columns", g.cols(), "num_heads * d_v", w.w_uv.rows());
    for (const size_type depth : {q.rows(), c.rows(), w.w_uk.rows(), w.w_uv.rows(), w.d_c()})
      check_projection<Scalar>(name, depth, options, "scratch for a product, in bytes");
  }
  /// Room for the gradients.
  latent_gradients<Scalar> make_result(const latent_weights<Scalar>& w) const {
    return {rows<Scalar>(query.view.rows, query.view.cols),
            rows<Scalar>(latent.view.rows, latent.view.cols),
            rows<Scalar>(w.w_uk.rows(), w.w_uk.cols()), rows<Scalar>(w.w_uv.rows(), w.w_uv.cols())};
  }
  input<Scalar, Query> query;
  input<Scalar, Latent> latent;
  input<Scalar, GradOut> grad_out;
};

/// Rows of head h where heads stand one below the other.
template <typename Scalar>
matrix_view<Scalar> head_rows(rows<Scalar>& weights, size_type heads, size_type h) {
  const size_type d = weights.rows() / heads;
  return {weights.data() + h * d * weights.cols(), d, weights.cols(), weights.cols(), 1};
}

template <typename Inputs, typename Scalar, typename... Terms>
latent_gradients<Scalar> absorbed_backward(const char* name, const Inputs& in,
                                           const latent_weights<Scalar>& w,
                                           const attention_options& options,
                                           const Terms&... terms) {
  using Acc = accumulator_t<Scalar>;
  const size_type n = in.query.view.rows, n_kv = in.latent.view.rows, heads = w.num_heads,
                  d_c = w.d_c(), d_nope = w.d_nope(), d_r = w.rope_dim;
  const auto of_head = [&](const auto& packed, size_type h) {
    return packed_head(packed, heads, h);
  };
  rows<Scalar> absorbed(n, heads * (d_c + d_r)), summed(n, heads * d_c),
      grad_absorbed(n, heads * (d_c + d_r)), grad_summed(n, heads * d_c), grad_key(n_kv, d_c + d_r),
      grad_value(n_kv, d_c);
  rows<Acc> lse(n, heads);
  workspace memory;
  absorb_queries<Scalar>(split_heads(in.query.view, heads), w,
                         split_heads(writable_view(absorbed), heads), options, memory);
  for (size_type h = 0; h < heads; ++h)
    project<Scalar, 1>(
        of_head(in.grad_out.view, h),
        {{head_weight(w.w_uv, heads, h, false), of_head(writable_view(grad_summed), h)}}, options,
        memory);
  tensor_view<const Scalar> value = in.latent.view;
  value.cols = d_c;
  auto p = make_backward_problem<Scalar>(
      name, split_heads(view(absorbed), heads), in.latent.view, value,
      split_heads(writable_view(summed), heads), split_heads(writable_view(lse), heads),
      split_heads(view(grad_summed), heads), split_heads(writable_view(grad_absorbed), heads),
      writable_view(grad_key), writable_view(grad_value), latent_options(options, w), terms...);
  p.forward.out = split_heads(writable_view(summed), heads);
  p.forward.lse = split_heads(writable_view(lse), heads);
  forward(p.forward, memory);
  backward(p, memory);

  latent_gradients<Scalar> result = in.make_result(w);
  for (size_type h = 0; h < heads; ++h) {
    const auto back = of_head(view(grad_absorbed), h), back_plain = columns_of(back, 0, d_c);
    const auto to = of_head(writable_view(result.query), h);
    project<Scalar, 1>(back_plain,
                       {{head_weight(w.w_uk, heads, h, true), columns_of(to, 0, d_nope)}}, options,
                       memory);
    copy_columns(columns_of(back, d_c, d_r), columns_of(to, d_nope, d_r));
    project<Scalar, 1>(transposed(columns_of(of_head(in.query.view, h), 0, d_nope)),
                       {{back_plain, head_rows(result.w_uk, heads, h)}}, options, memory);
    project<Scalar, 1>(transposed(of_head(in.grad_out.view, h)),
                       {{of_head(view(summed), h), head_rows(result.w_uv, heads, h)}}, options,
                       memory);
  }
  result.latent = grad_key;
  for (size_type j = 0; j < n_kv; ++j)
    for (size_type c = 0; c < d_c; ++c)
      result.latent(j, c) = Scalar(Acc(Acc(grad_key(j, c)) + Acc(grad_value(j, c))));
  return result;
}

template <typename Inputs, typename Scalar, typename... Terms>
latent_gradients<Scalar> expanded_backward(const char* name, const Inputs& in,
                                           const latent_weights<Scalar>& w,
                                           const attention_options& options,
                                           const Terms&... terms) {
  using Acc = accumulator_t<Scalar>;
  const size_type n = in.query.view.rows, n_kv = in.latent.view.rows, heads = w.num_heads,
                  d_c = w.d_c(), d_nope = w.d_nope(), d_r = w.rope_dim, plain = heads * d_nope,
                  all = plain + heads * w.d_v();
  latent_gradients<Scalar> result = in.make_result(w);
  rows<Scalar> keys(n_kv, heads * (d_nope + d_r)), values(n_kv, heads * w.d_v()),
      out(n, heads * w.d_v()), grad_keys(n_kv, heads * (d_nope + d_r)), grads(n_kv, all),
      weights(all, d_c);
  rows<Acc> lse(n, heads);
  workspace memory;
  expand_latent(in.latent.view, w, writable_view(keys), writable_view(values), options, memory);
  auto p = make_backward_problem<Scalar>(
      name, split_heads(in.query.view, heads), split_heads(view(keys), heads),
      split_heads(view(values), heads), split_heads(writable_view(out), heads),
      split_heads(writable_view(lse), heads), split_heads(in.grad_out.view, heads),
      split_heads(writable_view(result.query), heads), split_heads(writable_view(grad_keys), heads),
      split_heads(writable_view(grads.rightCols(all - plain)), heads), latent_options(options, w),
      terms...);
  p.forward.out = split_heads(writable_view(out), heads);
  p.forward.lse = split_heads(writable_view(lse), heads);
  forward(p.forward, memory);
  backward(p, memory);

  // Plain keys and values of all heads side by side, and their weights one below the other: the
  // latent's gradient is one product.
  const auto plain_keys = split_heads(writable_view(grads.leftCols(plain)), heads);
  for (size_type h = 0; h < heads; ++h)
    copy_columns(columns_of(packed_head(view(grad_keys), heads, h), 0, d_nope),
                 plain_keys.head(0, h, 0, n_kv));
  weights.topRows(plain) = w.w_uk;
  weights.bottomRows(all - plain) = w.w_uv;
  const auto latent = columns_of(whole(in.latent.view), 0, d_c);
  const auto grad_latent = whole(writable_view(result.latent));
  project<Scalar, 1>(whole(view(grads)), {{whole(view(weights)), columns_of(grad_latent, 0, d_c)}},
                     options, memory);
  project<Scalar, 1>(transposed(whole(view(grads.leftCols(plain)))),
                     {{latent, whole(writable_view(result.w_uk))}}, options, memory);
  project<Scalar, 1>(transposed(whole(view(grads.rightCols(all - plain)))),
                     {{latent, whole(writable_view(result.w_uv))}}, options, memory);
  for (size_type j = 0; j < n_kv; ++j)
    for (size_type c = 0; c < d_r; ++c) {
      Acc sum(0);
      for (size_type h = 0; h < heads; ++h)
        sum += Acc(grad_keys(j, h * (d_nope + d_r) + d_nope + c));
      result.latent(j, d_c + c) = Scalar(sum);
    }
  return result;
}
}  // namespace detail

/// The gradients of latent_attention with respect to query, latent and the weights, from that with
/// respect to its output. It computes the forward call once more, absorbed: keys and values of
/// heads are never made, and the gradient of the latent is that of keys and that of values, which
/// are their first d_c columns.
///
/// query, latent and w as in the forward call, grad_out n_q x (H * d_v) -> {query, latent, w_uk,
/// w_uv}, each of its input's size. Options and terms are those of the forward call; gradient terms
/// may follow. half and bfloat16 are summed up in float. Any scalar type. For many queries
/// expanded_latent_attention_backward takes fewer operations. Throws std::invalid_argument where
/// sizes do not fit.
///
/// @code
/// using rows = heed::rows<float>;
/// heed::latent_weights<float> w{rows::Random(4 * 16, 32), rows::Random(4 * 16, 32), 4,
///                               8};  // 4 heads of 16; d_c = 32, rope_dim 8
/// const rows query = rows::Random(3, 4 * (16 + 8)), latent = rows::Random(10, 32 + 8);
/// const rows grad_out = rows::Ones(3, 64);  // the loss is the sum of the output
/// const auto gradient = heed::latent_attention_backward(query, latent, w, grad_out);
/// assert(gradient.latent.cols() == 40 && gradient.w_uk.rows() == 64);
/// @endcode
template <typename Query, typename Latent, typename Scalar, typename GradOut, typename... Terms>
latent_gradients<Scalar> latent_attention_backward(const Query& query, const Latent& latent,
                                                   const latent_weights<Scalar>& w,
                                                   const GradOut& grad_out,
                                                   const attention_options& options = {},
                                                   const Terms&... terms) {
  constexpr const char* name = "latent_attention_backward";
  const detail::latent_backward_inputs<Query, Latent, Scalar, GradOut> in(name, query, latent, w,
                                                                          grad_out, options);
  return detail::absorbed_backward(name, in, w, options, terms...);
}

/// The same with every head's keys and values expanded: fewer operations when there are many
/// queries, as in training.
///
/// @code
/// using rows = heed::rows<float>;
/// heed::latent_weights<float> w{rows::Random(4 * 16, 32), rows::Random(4 * 16, 32), 4,
///                               8};  // 4 heads of 16; d_c = 32, rope_dim 8
/// const rows query = rows::Random(10, 4 * (16 + 8)), latent = rows::Random(10, 32 + 8),
///            grad_out = rows::Ones(10, 64);
/// const auto a = heed::expanded_latent_attention_backward(query, latent, w, grad_out);
/// const auto b = heed::latent_attention_backward(query, latent, w, grad_out);
/// assert((a.latent - b.latent).norm() < 1e-3f * b.latent.norm());
/// @endcode
template <typename Query, typename Latent, typename Scalar, typename GradOut, typename... Terms>
latent_gradients<Scalar> expanded_latent_attention_backward(
    const Query& query, const Latent& latent, const latent_weights<Scalar>& w,
    const GradOut& grad_out, const attention_options& options = {}, const Terms&... terms) {
  constexpr const char* name = "expanded_latent_attention_backward";
  const detail::latent_backward_inputs<Query, Latent, Scalar, GradOut> in(name, query, latent, w,
                                                                          grad_out, options);
  return detail::expanded_backward(name, in, w, options, terms...);
}

HEED_NAMESPACE_END
