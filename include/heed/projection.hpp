#pragma once

#include <heed/attention.hpp>
#include <heed/detail/check.hpp>
#include <heed/detail/gemm.hpp>
#include <heed/detail/inputs.hpp>
#include <heed/multi_head.hpp>
#include <heed/options.hpp>
#include <heed/workspace.hpp>

#include <type_traits>

HEED_NAMESPACE_BEGIN

/// The three projections of a sequence: query = X W_Q, key = X W_K, value = X W_V.
template <typename Scalar, int Dq = Eigen::Dynamic, int Dk = Eigen::Dynamic,
          int Dv = Eigen::Dynamic>
struct qkv {
  /// Room for n tokens.
  qkv(size_type n, size_type d_q, size_type d_k, size_type d_v)
      : query(n, d_q), key(n, d_k), value(n, d_v) {}
  rows<Scalar, Dq> query;  ///< n x d_q
  rows<Scalar, Dk> key;    ///< n x d_k
  rows<Scalar, Dv> value;  ///< n x d_v
};

namespace detail {
/// x and one weight must have one scalar type.
template <typename X, typename Weight>
struct projection_fits : std::true_type {
  static_assert(is_eigen<X> && is_eigen<Weight>,
                "x and the weights must be Eigen matrices, Maps, blocks or expressions");
  static_assert(std::is_same<typename scalar_of<X>::type, typename scalar_of<Weight>::type>::value,
                "x and the weights must have one scalar type: cast the others to it");
};

template <typename Scalar>
matrix_view<Scalar> whole(const tensor_view<Scalar>& view) {
  return view.head(0, 0, 0, view.rows);
}

/// The options, and the bytes that a plan sets aside for rows of `depth` numbers: strides of 0
/// allow any, but they must be a number.
template <typename Scalar>
void check_projection(const char* function, size_type depth, const attention_options& options,
                      const char* what = "scratch for x's d_model, in bytes") {
  constexpr size_type a_column = size_type{1} << 16;  // bytes at most, of a worker
  check_options<accumulator_t<Scalar>>(function, options);
  product(function, what, {depth, a_column, workers_of(options.execution)});
}

/// x and one weight, checked.
template <typename X, typename Weight>
struct projection_inputs {
  static_assert(projection_fits<X, Weight>::value);
  using scalar = typename X::Scalar;
  projection_inputs(const char* name, const X& given_x, const Weight& given_weight,
                    const attention_options& options)
      : x(given_x), weight(given_weight) {
    check_projection<scalar>(name, given_x.cols(), options);
    check_equal(name, "weight: rows", given_weight.rows(), "x's d_model", given_x.cols());
    check_view(name, "x", x.view);
    check_view(name, "weight", weight.view);
  }
  input<scalar, X> x;
  input<scalar, Weight> weight;
};

// The projections under the name of the function that was called.
template <typename X, typename Weight, typename Out>
void project_one(const char* name, const X& x, const Weight& weight, Out&& out,
                 const attention_options& options, workspace& memory) {
  using Scalar = typename X::Scalar;
  static_assert(std::is_same<Scalar, typename std::decay_t<Out>::Scalar>::value,
                "out must have the scalar type of x");
  const projection_inputs<X, Weight> in(name, x, weight, options);
  const tensor_view<const Scalar>&x_view = in.x.view, &w_view = in.weight.view;
  const tensor_view<Scalar> out_view = writable_view(out);
  check_equal(name, "out: rows", out.rows(), "x's rows", x.rows());
  check_equal(name, "out: columns", out.cols(), "weight's columns", weight.cols());
  check_view(name, "out", out_view);
  check_apart(name, {"out", out_view}, "x", x_view, "weight", w_view);
  project<Scalar, 1>(whole(x_view), {{whole(w_view), whole(out_view)}}, options, memory);
}

template <typename X, typename Weight>
auto projected(const char* name, const X& x, const Weight& weight,
               const attention_options& options) {
  static_assert(projection_fits<X, Weight>::value);
  check_equal(name, "weight: rows", weight.rows(), "x's d_model", x.cols());
  rows<typename X::Scalar, Weight::ColsAtCompileTime> out(x.rows(), weight.cols());
  workspace memory;
  project_one(name, x, weight, out, options, memory);
  return out;
}

/// x and the three weights, checked.
template <typename X, typename Wq, typename Wk, typename Wv>
struct qkv_inputs {
  static_assert(projection_fits<X, Wq>::value && projection_fits<X, Wk>::value &&
                projection_fits<X, Wv>::value);
  using scalar = typename X::Scalar;
  qkv_inputs(const char* name, const X& given_x, const Wq& given_q, const Wk& given_k,
             const Wv& given_v, const attention_options& options)
      : x(given_x), w_q(given_q), w_k(given_k), w_v(given_v) {
    check_projection<scalar>(name, given_x.cols(), options);
    check_equal(name, "w_q: rows", given_q.rows(), "x's d_model", given_x.cols());
    check_equal(name, "w_k: rows", given_k.rows(), "x's d_model", given_x.cols());
    check_equal(name, "w_v: rows", given_v.rows(), "x's d_model", given_x.cols());
    check_view(name, "x", x.view);
    check_view(name, "w_q", w_q.view);
    check_view(name, "w_k", w_k.view);
    check_view(name, "w_v", w_v.view);
  }
  auto project(const attention_options& options, workspace& memory) const {
    qkv<scalar, Wq::ColsAtCompileTime, Wk::ColsAtCompileTime, Wv::ColsAtCompileTime> out(
        x.view.rows, w_q.view.cols, w_k.view.cols, w_v.view.cols);
    detail::project<scalar, 3>(whole(x.view),
                               {{whole(w_q.view), whole(writable_view(out.query))},
                                {whole(w_k.view), whole(writable_view(out.key))},
                                {whole(w_v.view), whole(writable_view(out.value))}},
                               options, memory);
    return out;
  }
  input<scalar, X> x;
  input<scalar, Wq> w_q;
  input<scalar, Wk> w_k;
  input<scalar, Wv> w_v;
};

template <typename X, typename Wq, typename Wk, typename Wv>
auto projected_qkv(const char* name, const X& x, const Wq& w_q, const Wk& w_k, const Wv& w_v,
                   const attention_options& options) {
  workspace memory;
  return qkv_inputs<X, Wq, Wk, Wv>(name, x, w_q, w_k, w_v, options).project(options, memory);
}

/// The columns of a multi-head layer's weights, and w_o's rows.
inline void check_layer(const char* name, size_type q_cols, size_type k_cols, size_type v_cols,
                        size_type o_rows, const packed_heads& heads) {
  check_multiple(name, "w_q", q_cols, "columns", "num_heads", heads.num_heads);
  check_multiple(name, "w_k", k_cols, "columns", "num_kv_heads", heads.num_kv_heads);
  check_multiple(name, "w_v", v_cols, "columns", "num_kv_heads", heads.num_kv_heads);
  check_equal(name, "w_o: rows", o_rows, "num_heads * d_v",
              heads.num_heads * (v_cols / heads.num_kv_heads));
}
}  // namespace detail

/// X W, a linear layer without bias, into the caller's memory: x n x d_model, weight d_model x
/// d_out -> out n x d_out.
///
/// Of the options only `execution` matters; the result is bitwise the same for every number of
/// threads. half and bfloat16 are summed up in float and rounded once. out must have its size
/// already. Throws std::invalid_argument for sizes that do not fit together and an out that
/// overlaps an input, before anything is written. Allocates nothing once `memory` has grown and
/// when the inputs are in memory.
template <typename X, typename Weight, typename Out>
void project_into(const X& x, const Weight& weight, Out&& out, const attention_options& options,
                  workspace& memory) {
  detail::project_one("project_into", x, weight, out, options, memory);
}

/// The bytes of the workspace that this call of project_into takes: out does not matter.
template <typename X, typename Weight>
size_type project_workspace_bytes(const X& x, const Weight& weight,
                                  const attention_options& options = {}) {
  const detail::projection_inputs<X, Weight> in("project_workspace_bytes", x, weight, options);
  return detail::bytes_of<typename X::Scalar, 1>(detail::whole(in.x.view),
                                                 {{detail::whole(in.weight.view), {}}}, options);
}

/// X W, a linear layer without bias: x n x d_model, weight d_model x d_out -> n x d_out. See
/// project_into. Throws std::invalid_argument where x's columns are not weight's rows.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 32),
///                         weight = heed::rows<float>::Random(32, 16);
/// const heed::rows<float> out = heed::project(x, weight);  // 10 x 16
/// @endcode
template <typename X, typename Weight>
auto project(const X& x, const Weight& weight, const attention_options& options = {}) {
  return detail::projected("project", x, weight, options);
}

/// Q = X W_Q, K = X W_K, V = X W_V, without bias: x n x d_model, w_q d_model x d_q, w_k d_model x
/// d_k, w_v d_model x d_v. x is read once for all three. Throws std::invalid_argument where the
/// sizes do not fit together. See project_into.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 32),
///                         w = heed::rows<float>::Random(32, 16);
/// const auto layer = heed::project_qkv(x, w, w, w);
/// assert(layer.query.rows() == 10 && layer.value.cols() == 16);
/// @endcode
template <typename X, typename Wq, typename Wk, typename Wv>
auto project_qkv(const X& x, const Wq& w_q, const Wk& w_k, const Wv& w_v,
                 const attention_options& options = {}) {
  return detail::projected_qkv("project_qkv", x, w_q, w_k, w_v, options);
}

/// Self-attention of one sequence: attention(X W_Q, X W_K, X W_V).
///
/// x n x d_model, w_q and w_k d_model x d_k, w_v d_model x d_v -> n x d_v. Throws
/// std::invalid_argument where the sizes do not fit together.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 32),
///                         w = heed::rows<float>::Random(32, 16);
/// heed::attention_options options;
/// options.causal = heed::causal::top_left;
/// const heed::rows<float> out = heed::self_attention(x, w, w, w, options);  // 10 x 16
/// @endcode
template <typename X, typename Wq, typename Wk, typename Wv, typename... Terms>
auto self_attention(const X& x, const Wq& w_q, const Wk& w_k, const Wv& w_v,
                    const attention_options& options = {}, const Terms&... terms) {
  constexpr const char* name = "self_attention";
  const auto in = detail::projected_qkv(name, x, w_q, w_k, w_v, options);
  return detail::attend<deduced, Eigen::Dynamic, Eigen::Dynamic>(name, in.query, in.key, in.value,
                                                                 options, terms...);
}

/// Self-attention of `batch` sequences of one length, one below the other: x [batch * n, d_model]
/// -> [batch * n, d_v].
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(3 * 10, 32),
///                         w = heed::rows<float>::Random(32, 16);
/// const heed::rows<float> out =
///     heed::self_attention_batch(x, 3, w, w, w);  // 30 x 16: three sequences of 10
/// @endcode
template <typename X, typename Wq, typename Wk, typename Wv, typename... Terms>
auto self_attention_batch(const X& x, size_type batch, const Wq& w_q, const Wk& w_k, const Wv& w_v,
                          const attention_options& options = {}, const Terms&... terms) {
  constexpr const char* name = "self_attention_batch";
  const auto in = detail::projected_qkv(name, x, w_q, w_k, w_v, options);
  return detail::packed_attention(name, in.query, in.key, in.value, {1, 1, batch}, options,
                                  terms...);
}

/// The whole multi-head layer (Vaswani et al. 2017, section 3.2.2) of `batch` sequences of one
/// length, one below the other: the three projections, the heads, and W_O.
///
/// x [batch * n, d_model], w_q d_model x (num_heads * d_k), w_k d_model x (num_kv_heads * d_k), w_v
/// d_model x (num_kv_heads * d_v), w_o (num_heads * d_v) x d_out -> [batch * n, d_out]. Head h is
/// columns [h * d, (h + 1) * d) of a projection. A row that sees no key is 0. Throws
/// std::invalid_argument where the sizes do not fit together.
///
/// @code
/// using rows = heed::rows<float>;
/// const rows x = rows::Random(10, 32), w_q = rows::Random(32, 4 * 8),
///            w_kv = rows::Random(32, 2 * 8), w_o = rows::Random(4 * 8, 32);
/// const rows out =
///     heed::multi_head_self_attention(x, w_q, w_kv, w_kv, w_o, {4, 2});  // 4 heads on 2; 10 x 32
/// @endcode
template <typename X, typename Wq, typename Wk, typename Wv, typename Wo, typename... Terms>
auto multi_head_self_attention(const X& x, const Wq& w_q, const Wk& w_k, const Wv& w_v,
                               const Wo& w_o, const packed_heads& heads,
                               const attention_options& options = {}, const Terms&... terms) {
  constexpr const char* name = "multi_head_self_attention";
  static_assert(detail::projection_fits<X, Wo>::value);
  detail::check_layer(name, w_q.cols(), w_k.cols(), w_v.cols(), w_o.rows(), heads);
  const auto in = detail::projected_qkv(name, x, w_q, w_k, w_v, options);
  return detail::projected(
      name, detail::packed_attention(name, in.query, in.key, in.value, heads, options, terms...),
      w_o, options);
}

HEED_NAMESPACE_END
