#pragma once

#include <heed/backward.hpp>
#include <heed/detail/gemm.hpp>
#include <heed/detail/inputs.hpp>
#include <heed/detail/sizes.hpp>
#include <heed/multi_head.hpp>
#include <heed/projection.hpp>

#include <algorithm>
#include <type_traits>

HEED_NAMESPACE_BEGIN

/// The gradients of project with respect to its inputs, by their names.
template <typename Scalar>
struct projection_gradients {
  rows<Scalar> x;       ///< n x d_model
  rows<Scalar> weight;  ///< d_model x d_out
};

/// The gradients of project_qkv, or of self_attention, with respect to its inputs.
template <typename Scalar>
struct qkv_gradients {
  rows<Scalar> x;    ///< n x d_model
  rows<Scalar> w_q;  ///< d_model x d_q
  rows<Scalar> w_k;  ///< d_model x d_k
  rows<Scalar> w_v;  ///< d_model x d_v
};

/// The gradients of multi_head_self_attention with respect to its inputs.
template <typename Scalar>
struct multi_head_self_attention_gradients : qkv_gradients<Scalar> {
  rows<Scalar> w_o;  ///< (num_heads * d_v) x d_out
};

namespace detail {
/// x, one weight and the gradient of their product, checked.
template <typename X, typename Weight, typename GradOut>
struct projection_backward_inputs : projection_inputs<X, Weight> {
  using scalar = typename X::Scalar;
  static_assert(grad_fits<scalar, GradOut>::value);
  projection_backward_inputs(const char* name, const X& given_x, const Weight& given_weight,
                             const GradOut& grad_out, const attention_options& options)
      : projection_inputs<X, Weight>(name, given_x, given_weight, options), grad(grad_out) {
    check_grad<scalar>(name, "grad_out", grad_out, given_x.rows(), "weight", given_weight.cols());
    check_projection<scalar>(name, given_x.rows(), options, "scratch for x's rows, in bytes");
    check_projection<scalar>(name, given_weight.cols(), options,
                             "scratch for weight's columns, in bytes");
  }
  /// The bytes of the larger of both products.
  size_type bytes(const attention_options& options) const {
    const auto grad_out = whole(grad.view);
    return (std::max)(
        bytes_of<scalar, 1>(grad_out, {{transposed(whole(this->weight.view)), {}}}, options),
        bytes_of<scalar, 1>(transposed(whole(this->x.view)), {{grad_out, {}}}, options));
  }
  void run(const tensor_view<scalar>& grad_x, const tensor_view<scalar>& grad_weight,
           const attention_options& options, workspace& memory) const {
    const auto grad_out = whole(grad.view);
    memory.reserve(bytes(options));
    project<scalar, 1>(grad_out, {{transposed(whole(this->weight.view)), whole(grad_x)}}, options,
                       memory);
    project<scalar, 1>(transposed(whole(this->x.view)), {{grad_out, whole(grad_weight)}}, options,
                       memory);
  }
  input<scalar, GradOut> grad;
};
}  // namespace detail

/// The gradients of project: with Y = X W, dX = dY W^T and dW = X^T dY, into the caller's memory.
///
/// x n x d_model, weight d_model x d_out and grad_out n x d_out -> grad_x n x d_model, grad_weight
/// d_model x d_out. Of the options, `execution` matters; the result is bitwise the same for every
/// number of threads. half and bfloat16 are summed up in float and rounded once. Throws
/// std::invalid_argument for sizes that do not fit together and an output that overlaps an input or
/// the other, before anything is written. Allocates nothing once `memory` has grown and when the
/// inputs are in memory.
///
/// @code
/// using rows = heed::rows<float>;
/// const rows x = rows::Random(10, 32), weight = rows::Random(32, 16),
///            grad_out = rows::Random(10, 16);
/// rows grad_x(10, 32), grad_weight(32, 16);
/// heed::workspace memory;
/// heed::project_backward_into(x, weight, grad_out, grad_x, grad_weight, {}, memory);
/// @endcode
template <typename X, typename Weight, typename GradOut, typename GradX, typename GradWeight>
void project_backward_into(const X& x, const Weight& weight, const GradOut& grad_out,
                           GradX&& grad_x, GradWeight&& grad_weight,
                           const attention_options& options, workspace& memory) {
  constexpr const char* name = "project_backward_into";
  using Scalar = typename X::Scalar;
  static_assert(std::is_same<Scalar, typename std::decay_t<GradX>::Scalar>::value &&
                    std::is_same<Scalar, typename std::decay_t<GradWeight>::Scalar>::value,
                "grad_x and grad_weight must have the scalar type of x");
  const detail::projection_backward_inputs<X, Weight, GradOut> in(name, x, weight, grad_out,
                                                                  options);
  const tensor_view<Scalar> to_x = writable_view(grad_x), to_weight = writable_view(grad_weight);
  detail::check_same_sizes(name, "grad_x", to_x, "x", in.x.view);
  detail::check_same_sizes(name, "grad_weight", to_weight, "weight", in.weight.view);
  detail::check_apart(name, {"grad_x", to_x}, {"grad_weight", to_weight}, "x", in.x.view, "weight",
                      in.weight.view, "grad_out", in.grad.view);
  in.run(to_x, to_weight, options, memory);
}

/// The bytes of the workspace that this call of project_backward_into takes: its outputs do not
/// matter.
template <typename X, typename Weight, typename GradOut>
size_type project_backward_workspace_bytes(const X& x, const Weight& weight,
                                           const GradOut& grad_out,
                                           const attention_options& options = {}) {
  return detail::projection_backward_inputs<X, Weight, GradOut>("project_backward_workspace_bytes",
                                                                x, weight, grad_out, options)
      .bytes(options);
}

/// The gradients of project with respect to x and weight: see project_backward_into. Any scalar
/// type.
///
/// @code
/// using rows = heed::rows<float>;
/// const rows x = rows::Random(10, 32), weight = rows::Random(32, 16);
/// const rows grad_out = rows::Ones(10, 16);  // the loss is the sum of project(x, weight)
/// const auto gradient = heed::project_backward(x, weight, grad_out);
/// assert(gradient.x.cols() == 32 && gradient.weight.cols() == 16);
/// @endcode
template <typename X, typename Weight, typename GradOut>
auto project_backward(const X& x, const Weight& weight, const GradOut& grad_out,
                      const attention_options& options = {}) {
  using Scalar = typename X::Scalar;
  const detail::projection_backward_inputs<X, Weight, GradOut> in("project_backward", x, weight,
                                                                  grad_out, options);
  projection_gradients<Scalar> result{rows<Scalar>(x.rows(), x.cols()),
                                      rows<Scalar>(weight.rows(), weight.cols())};
  workspace memory;
  in.run(writable_view(result.x), writable_view(result.weight), options, memory);
  return result;
}

namespace detail {
/// The gradients of project_qkv, all sizes checked, from those of query, key and value side by
/// side: x's is one product, whose sums are of all three.
template <typename Scalar>
qkv_gradients<Scalar> qkv_backward(const matrix_view<const Scalar>& x,
                                   const matrix_view<const Scalar>& w_q,
                                   const matrix_view<const Scalar>& w_k,
                                   const matrix_view<const Scalar>& w_v, const rows<Scalar>& grads,
                                   const attention_options& options, workspace& memory) {
  const size_type d_q = w_q.cols, d_k = w_k.cols, d_v = w_v.cols;
  rows<Scalar> weights(x.cols, grads.cols());
  weights.leftCols(d_q) = as_eigen(w_q);
  weights.middleCols(d_q, d_k) = as_eigen(w_k);
  weights.rightCols(d_v) = as_eigen(w_v);
  qkv_gradients<Scalar> result{rows<Scalar>(x.rows, x.cols), rows<Scalar>(x.cols, d_q),
                               rows<Scalar>(x.cols, d_k), rows<Scalar>(x.cols, d_v)};
  const auto columns = [&](size_type first, size_type count) {
    return whole(view(grads.middleCols(first, count)));
  };
  project<Scalar, 1>(whole(view(grads)),
                     {{transposed(whole(view(weights))), whole(writable_view(result.x))}}, options,
                     memory);
  project<Scalar, 3>(transposed(x),
                     {{columns(0, d_q), whole(writable_view(result.w_q))},
                      {columns(d_q, d_k), whole(writable_view(result.w_k))},
                      {columns(d_q + d_k, d_v), whole(writable_view(result.w_v))}},
                     options, memory);
  return result;
}

/// The rows of grad_out, and all that its products with x and weights take.
template <typename Scalar>
void check_qkv_depths(const char* name, size_type n, size_type d_q, size_type d_k, size_type d_v,
                      const attention_options& options) {
  check_projection<Scalar>(name, n, options, "scratch for x's rows, in bytes");
  for (const size_type d : {d_q, d_k, d_v})
    check_projection<Scalar>(name, d, options, "scratch for a weight's columns, in bytes");
}

/// Self-attention again, and back: what its inputs have, and the gradients of the heads' outputs
/// [batch * n, num_heads * d_v]. finish(out) has the outputs for what follows them.
template <typename X, typename Wq, typename Wk, typename Wv, typename GradOut, typename Finish,
          typename... Terms>
auto self_attention_backward(const char* name, const X& x, const Wq& w_q, const Wk& w_k,
                             const Wv& w_v, const packed_heads& heads, const GradOut& grad_out,
                             const attention_options& options, const Finish& finish,
                             const Terms&... terms) {
  using Scalar = typename X::Scalar;
  using Acc = accumulator_t<Scalar>;
  const qkv_inputs<X, Wq, Wk, Wv> in(name, x, w_q, w_k, w_v, options);
  check_qkv_depths<Scalar>(name, x.rows(), w_q.cols(), w_k.cols(), w_v.cols(), options);
  workspace memory;
  const auto layer = in.project(options, memory);
  using Layer = std::decay_t<decltype(layer)>;
  const packed_inputs<decltype(Layer::query), decltype(Layer::key), decltype(Layer::value)> split(
      name, layer.query, layer.key, layer.value, heads);
  const input<Scalar, GradOut> grad(grad_out);

  const size_type n = x.rows(), d_q = w_q.cols(), d_k = w_k.cols(), d_v = w_v.cols();
  rows<Scalar> out(n, heads.num_heads * split.value.cols), grads(n, d_q + d_k + d_v);
  rows<Acc> lse(n, heads.num_heads);
  const auto heads_of = [&](auto&& matrix, size_type count) {
    return split_heads(writable_view(matrix), count, heads.batch);
  };
  auto p = make_backward_problem<Scalar>(
      name, split.query, split.key, split.value, heads_of(out, heads.num_heads),
      heads_of(lse, heads.num_heads), split_heads(grad.view, heads.num_heads, heads.batch),
      heads_of(grads.leftCols(d_q), heads.num_heads),
      heads_of(grads.middleCols(d_q, d_k), heads.num_kv_heads),
      heads_of(grads.rightCols(d_v), heads.num_kv_heads), options, terms...);
  p.forward.out = heads_of(out, heads.num_heads);
  p.forward.lse = heads_of(lse, heads.num_heads);
  forward(p.forward, memory);
  finish(out, memory);
  backward(p, memory);
  return qkv_backward(whole(in.x.view), whole(in.w_q.view), whole(in.w_k.view), whole(in.w_v.view),
                      grads, options, memory);
}
}  // namespace detail

/// The gradients of project_qkv with respect to x and the weights, from those with respect to
/// query, key and value: what follows attention_backward on the way back through a layer that has
/// kept its projections, out and lse.
///
/// x n x d_model, w_q d_model x d_q, w_k d_model x d_k, w_v d_model x d_v; grad_query n x d_q,
/// grad_key n x d_k, grad_value n x d_v -> {x, w_q, w_k, w_v}, each of its input's size. Of the
/// options, `execution` matters; bitwise the same for every number of threads. half and bfloat16
/// are summed up in float and rounded once. Any scalar type. Throws std::invalid_argument where the
/// sizes do not fit together.
///
/// @code
/// using rows = heed::rows<float>;  // a layer with rotary positions, and back
/// const rows x = rows::Random(10, 32), w = rows::Random(32, 16), grad_out = rows::Ones(10, 16);
/// heed::rope_options rope;
/// auto layer = heed::project_qkv(x, w, w, w);
/// heed::apply_rope(heed::writable_view(layer.query), rope);
/// heed::apply_rope(heed::writable_view(layer.key), rope);
/// const auto forward = heed::attention_with_lse(layer.query, layer.key, layer.value);
/// auto back = heed::attention_backward(layer.query, layer.key, layer.value, forward.out,
///                                      forward.lse, grad_out);
/// rope.direction = heed::rope_direction::backward;
/// heed::apply_rope(heed::writable_view(back.query), rope);
/// heed::apply_rope(heed::writable_view(back.key), rope);
/// const auto gradient = heed::project_qkv_backward(x, w, w, w, back.query, back.key, back.value);
/// assert(gradient.x.cols() == 32 && gradient.w_v.cols() == 16);
/// @endcode
template <typename X, typename Wq, typename Wk, typename Wv, typename GradQuery, typename GradKey,
          typename GradValue>
auto project_qkv_backward(const X& x, const Wq& w_q, const Wk& w_k, const Wv& w_v,
                          const GradQuery& grad_query, const GradKey& grad_key,
                          const GradValue& grad_value, const attention_options& options = {}) {
  constexpr const char* name = "project_qkv_backward";
  using Scalar = typename X::Scalar;
  const detail::qkv_inputs<X, Wq, Wk, Wv> in(name, x, w_q, w_k, w_v, options);
  const size_type n = x.rows(), d_q = w_q.cols(), d_k = w_k.cols(), d_v = w_v.cols();
  detail::check_qkv_depths<Scalar>(name, n, d_q, d_k, d_v, options);
  detail::check_grad<Scalar>(name, "grad_query", grad_query, n, "w_q", d_q);
  detail::check_grad<Scalar>(name, "grad_key", grad_key, n, "w_k", d_k);
  detail::check_grad<Scalar>(name, "grad_value", grad_value, n, "w_v", d_v);
  rows<Scalar> grads(n, d_q + d_k + d_v);
  grads.leftCols(d_q) = grad_query;
  grads.middleCols(d_q, d_k) = grad_key;
  grads.rightCols(d_v) = grad_value;
  workspace memory;
  return detail::qkv_backward(detail::whole(in.x.view), detail::whole(in.w_q.view),
                              detail::whole(in.w_k.view), detail::whole(in.w_v.view), grads,
                              options, memory);
}

/// The gradients of self_attention with respect to x and the weights, from that with respect to its
/// output. It computes the projections and the attention once more; a caller who has kept them
/// calls attention_backward and project_qkv_backward instead.
///
/// x n x d_model, w_q and w_k d_model x d_k, w_v d_model x d_v, grad_out n x d_v -> {x, w_q, w_k,
/// w_v}. Options and terms are those of the forward call; gradient terms (grad_bias, ...) may
/// follow. O(n) memory; any scalar type. Throws std::invalid_argument where the sizes do not fit
/// together.
///
/// @code
/// using rows = heed::rows<float>;
/// const rows x = rows::Random(10, 32), w_q = rows::Random(32, 16), w_k = rows::Random(32, 16),
///            w_v = rows::Random(32, 16);
/// heed::attention_options options;
/// options.causal = heed::causal::top_left;
/// const rows grad_out = rows::Ones(10, 16);  // the loss is the sum of the output
/// const auto gradient = heed::self_attention_backward(x, w_q, w_k, w_v, grad_out, options);
/// assert(gradient.x.cols() == 32 && gradient.w_q.cols() == 16);
/// @endcode
template <typename X, typename Wq, typename Wk, typename Wv, typename GradOut, typename... Terms>
auto self_attention_backward(const X& x, const Wq& w_q, const Wk& w_k, const Wv& w_v,
                             const GradOut& grad_out, const attention_options& options = {},
                             const Terms&... terms) {
  constexpr const char* name = "self_attention_backward";
  detail::check_grad<typename X::Scalar>(name, "grad_out", grad_out, x.rows(), "w_v", w_v.cols());
  return detail::self_attention_backward(
      name, x, w_q, w_k, w_v, {1, 1, 1}, grad_out, options, [](const auto&, workspace&) {},
      terms...);
}

/// The same for self_attention_batch: x [batch * n, d_model], grad_out [batch * n, d_v]; the
/// gradients of the weights are sums over the sequences.
///
/// @code
/// using rows = heed::rows<float>;
/// const rows x = rows::Random(3 * 10, 32), w = rows::Random(32, 16),
///            grad_out = rows::Ones(3 * 10, 16);
/// const auto gradient = heed::self_attention_batch_backward(x, 3, w, w, w, grad_out);
/// assert(gradient.x.rows() == 30 && gradient.w_v.rows() == 32);
/// @endcode
template <typename X, typename Wq, typename Wk, typename Wv, typename GradOut, typename... Terms>
auto self_attention_batch_backward(const X& x, size_type batch, const Wq& w_q, const Wk& w_k,
                                   const Wv& w_v, const GradOut& grad_out,
                                   const attention_options& options = {}, const Terms&... terms) {
  constexpr const char* name = "self_attention_batch_backward";
  detail::check_grad<typename X::Scalar>(name, "grad_out", grad_out, x.rows(), "w_v", w_v.cols());
  return detail::self_attention_backward(
      name, x, w_q, w_k, w_v, {1, 1, batch}, grad_out, options, [](const auto&, workspace&) {},
      terms...);
}

/// The gradients of multi_head_self_attention with respect to x and the weights, from that with
/// respect to its output. It computes the forward call once more.
///
/// x [batch * n, d_model] and the weights as in the forward call, grad_out [batch * n, d_out] ->
/// {x, w_q, w_k, w_v, w_o}. Options and terms are those of the forward call; gradient terms may
/// follow. O(n) memory; any scalar type. Throws std::invalid_argument where the sizes do not fit
/// together.
///
/// @code
/// using rows = heed::rows<float>;
/// const rows x = rows::Random(10, 32), w_q = rows::Random(32, 4 * 8),
///            w_kv = rows::Random(32, 2 * 8), w_o = rows::Random(4 * 8, 32);
/// const rows grad_out = rows::Ones(10, 32);  // the loss is the sum of the output
/// const auto gradient =
///     heed::multi_head_self_attention_backward(x, w_q, w_kv, w_kv, w_o, {4, 2}, grad_out);
/// assert(gradient.w_k.cols() == 16 && gradient.w_o.rows() == 32);
/// @endcode
template <typename X, typename Wq, typename Wk, typename Wv, typename Wo, typename GradOut,
          typename... Terms>
auto multi_head_self_attention_backward(const X& x, const Wq& w_q, const Wk& w_k, const Wv& w_v,
                                        const Wo& w_o, const packed_heads& heads,
                                        const GradOut& grad_out,
                                        const attention_options& options = {},
                                        const Terms&... terms) {
  constexpr const char* name = "multi_head_self_attention_backward";
  using Scalar = typename X::Scalar;
  static_assert(detail::projection_fits<X, Wo>::value);
  detail::check_layer(name, w_q.cols(), w_k.cols(), w_v.cols(), w_o.rows(), heads);
  detail::check_grad<Scalar>(name, "grad_out", grad_out, x.rows(), "w_o", w_o.cols());
  detail::check_projection<Scalar>(name, w_o.cols(), options,
                                   "scratch for w_o's columns, in bytes");
  const detail::input<Scalar, Wo> weight(w_o);
  const detail::input<Scalar, GradOut> grad(grad_out);
  detail::check_view(name, "w_o", weight.view);
  const auto d_out = detail::whole(grad.view);
  rows<Scalar> grad_heads(x.rows(), w_o.rows());
  multi_head_self_attention_gradients<Scalar> result;
  result.w_o.resize(w_o.rows(), w_o.cols());
  workspace memory;
  detail::project<Scalar, 1>(
      d_out,
      {{detail::transposed(detail::whole(weight.view)), detail::whole(writable_view(grad_heads))}},
      options, memory);
  static_cast<qkv_gradients<Scalar>&>(result) = detail::self_attention_backward(
      name, x, w_q, w_k, w_v, heads, grad_heads, options,
      [&](const rows<Scalar>& out, workspace& scratch) {
        detail::project<Scalar, 1>(detail::transposed(detail::whole(view(out))),
                                   {{d_out, detail::whole(writable_view(result.w_o))}}, options,
                                   scratch);
      },
      terms...);
  return result;
}

HEED_NAMESPACE_END
