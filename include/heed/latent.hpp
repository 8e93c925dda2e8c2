#pragma once

#include <heed/attention.hpp>
#include <heed/detail/check.hpp>
#include <heed/multi_head.hpp>
#include <heed/projection.hpp>
#include <heed/tensor.hpp>

#include <algorithm>
#include <cmath>
#include <type_traits>

HEED_NAMESPACE_BEGIN

// Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1): the cache holds for
// each token one latent vector c of d_c numbers and one rotated key k_r of d_r numbers that all
// heads share, side by side. Head h has keys [c W_UK_h, k_r] and values c W_UV_h. The absorbed form
// never makes them: q . (c W_UK_h) = (q W_UK_h^T) . c, and sum p (c W_UV_h) = (sum p c) W_UV_h. It
// is multi-query attention of head_dim d_c + d_r over the cache itself, with values that are the
// first d_c columns of the keys.

/// The weights of the up-projections of all heads, one below the other: w_uk [H * d_nope, d_c]
/// (W_UK_h transposed) and w_uv [H * d_v, d_c].
template <typename Scalar>
struct latent_weights {
  rows<Scalar> w_uk;        ///< [H * d_nope, d_c]: latent to keys
  rows<Scalar> w_uv;        ///< [H * d_v, d_c]: latent to values
  size_type num_heads = 0;  ///< H
  size_type rope_dim = 0;   ///< d_r: the width of the rotated key that all heads share

  /// The width of the latent vector.
  size_type d_c() const { return w_uk.cols(); }
  /// The width of a head's plain key. Throws std::invalid_argument where num_heads does not divide
  /// the rows of w_uk.
  size_type d_nope() const {
    detail::check_multiple("latent_weights", "w_uk", w_uk.rows(), "rows", "num_heads", num_heads);
    return w_uk.rows() / num_heads;
  }
  /// The width of a head's value. Throws std::invalid_argument where num_heads does not divide the
  /// rows of w_uv.
  size_type d_v() const {
    detail::check_multiple("latent_weights", "w_uv", w_uv.rows(), "rows", "num_heads", num_heads);
    return w_uv.rows() / num_heads;
  }
};

namespace detail {
template <typename Query, typename Latent, typename Scalar>
void check_latent(const char* function, const Query& query, const Latent& latent,
                  const latent_weights<Scalar>& w) {
  static_assert(std::is_same<typename scalar_of<Query>::type, Scalar>::value &&
                    std::is_same<typename scalar_of<Latent>::type, Scalar>::value,
                "query, latent and the weights must have one scalar type: cast the others to it");
  if (w.rope_dim < 0 || w.rope_dim > latent.cols())
    fail_with("heed::", function, ": rope_dim must be 0 or more and at most latent's columns ",
              latent.cols(), ", but is ", w.rope_dim);
  check_multiple(function, "w_uk", w.w_uk.rows(), "rows", "num_heads", w.num_heads);
  check_multiple(function, "w_uv", w.w_uv.rows(), "rows", "num_heads", w.num_heads);
  check_equal(function, "w_uv: d_c", w.w_uv.cols(), "w_uk's d_c", w.w_uk.cols());
  check_memory(function, "query", query);
  check_memory(function, "latent", latent);
  constexpr const char* columns = "num_heads * (d_nope + rope_dim)";
  check_equal(function, "query: columns", query.cols(), columns,
              product(function, columns, {w.num_heads, w.d_nope() + w.rope_dim}));
  check_equal(function, "latent: columns", latent.cols(), "d_c + rope_dim", w.d_c() + w.rope_dim);
}

/// An absent scale is that of the heads' own width d_nope + rope_dim, in either form.
template <typename Scalar>
attention_options latent_options(attention_options options, const latent_weights<Scalar>& w) {
  if (!options.scale)
    options.scale =
        1 / std::sqrt(static_cast<double>((std::max)(w.d_nope() + w.rope_dim, size_type{1})));
  return options;
}

/// Columns [first, first + count).
template <typename Scalar>
matrix_view<Scalar> columns_of(matrix_view<Scalar> m, size_type first, size_type count) {
  m.data += first * m.col_stride;
  m.cols = count;
  return m;
}
/// Head h of weights that stand one below the other, as they are or transposed.
template <typename Scalar>
matrix_view<const Scalar> head_weight(const rows<Scalar>& weights, size_type num_heads, size_type h,
                                      bool transposed) {
  const size_type d = weights.rows() / num_heads, cols = weights.cols();
  const Scalar* const data = weights.data() + h * d * cols;
  return transposed ? matrix_view<const Scalar>{data, cols, d, 1, cols}
                    : matrix_view<const Scalar>{data, d, cols, cols, 1};
}
template <typename From, typename Scalar>
void copy_columns(const matrix_view<From>& from, const matrix_view<Scalar>& to) {
  for (size_type i = 0; i < to.rows; ++i)
    for (size_type c = 0; c < to.cols; ++c) to(i, c) = from(i, c);
}
/// Head h of a matrix whose heads are side by side in its columns.
template <typename Scalar>
matrix_view<Scalar> packed_head(const tensor_view<Scalar>& packed, size_type heads, size_type h) {
  return split_heads(packed, heads).head(0, h, 0, packed.rows);
}

/// What a head's query is multiplied with the cache by: q W_UK_h of its plain part, and its rotated
/// part.
template <typename Scalar>
void absorb_queries(const tensor_view<const Scalar>& query, const latent_weights<Scalar>& w,
                    const tensor_view<Scalar>& absorbed, const attention_options& options,
                    workspace& memory) {
  const size_type heads = w.num_heads, d_c = w.d_c(), d_nope = w.d_nope();
  for (size_type h = 0; h < heads; ++h) {
    const auto from = packed_head(query, heads, h);
    const auto to = packed_head(absorbed, heads, h);
    project<Scalar, 1>(columns_of(from, 0, d_nope),
                       {{head_weight(w.w_uk, heads, h, false), columns_of(to, 0, d_c)}}, options,
                       memory);
    copy_columns(columns_of(from, d_nope, w.rope_dim), columns_of(to, d_c, w.rope_dim));
  }
}

/// Every head's keys [c W_UK_h, k_r] and values c W_UV_h.
template <typename Scalar>
void expand_latent(const tensor_view<const Scalar>& latent, const latent_weights<Scalar>& w,
                   const tensor_view<Scalar>& keys, const tensor_view<Scalar>& values,
                   const attention_options& options, workspace& memory) {
  const size_type heads = w.num_heads, d_c = w.d_c(), d_nope = w.d_nope();
  const auto cached = whole(latent);
  for (size_type h = 0; h < heads; ++h) {
    const auto key = packed_head(keys, heads, h);
    project<Scalar, 2>(columns_of(cached, 0, d_c),
                       {{head_weight(w.w_uk, heads, h, true), columns_of(key, 0, d_nope)},
                        {head_weight(w.w_uv, heads, h, true), packed_head(values, heads, h)}},
                       options, memory);
    copy_columns(columns_of(cached, d_c, w.rope_dim), columns_of(key, d_nope, w.rope_dim));
  }
}
}  // namespace detail

/// Latent attention in its absorbed form, for decoding: the cache is read once for all heads and
/// nothing of it is expanded.
///
/// query n_q x (H * (d_nope + rope_dim)), each head its plain part and then its rotated part;
/// latent n_kv x (d_c + rope_dim), the latent and then the rotated key -> n_q x (H * d_v). An
/// absent scale is 1 / sqrt(d_nope + rope_dim). half and bfloat16 are summed up in float. Throws
/// std::invalid_argument where sizes do not fit.
///
/// @code
/// using rows = heed::rows<float>;
/// heed::latent_weights<float> w{rows::Random(4 * 16, 32), rows::Random(4 * 16, 32), 4,
///                               8};  // 4 heads of 16; d_c = 32, rope_dim 8
/// const rows query = rows::Random(3, 4 * (16 + 8)), latent = rows::Random(10, 32 + 8);
/// const rows out = heed::latent_attention(query, latent, w);  // 3 x 64
/// @endcode
template <typename Query, typename Latent, typename Scalar, typename... Terms>
rows<Scalar> latent_attention(const Query& query, const Latent& latent,
                              const latent_weights<Scalar>& w,
                              const attention_options& options = {}, const Terms&... terms) {
  detail::check_latent("latent_attention", query, latent, w);
  detail::check_options<accumulator_t<Scalar>>("latent_attention", options);
  const size_type n = query.rows(), heads = w.num_heads, d_c = w.d_c();
  const detail::input<Scalar, Query> q(query);
  const detail::input<Scalar, Latent> cache(latent);
  rows<Scalar> absorbed(n, heads * (d_c + w.rope_dim)), summed(n, heads * d_c),
      out(n, heads * w.d_v());
  workspace memory;
  detail::absorb_queries(q.view, w, writable_view(absorbed), options, memory);
  tensor_view<const Scalar> value = cache.view;
  value.cols = d_c;
  detail::forward(
      detail::make_problem<Scalar>("latent_attention", split_heads(view(absorbed), heads),
                                   cache.view, value, split_heads(writable_view(summed), heads), {},
                                   detail::latent_options(options, w), terms...),
      memory);
  for (size_type h = 0; h < heads; ++h)
    detail::project<Scalar, 1>(detail::packed_head(view(summed), heads, h),
                               {{detail::head_weight(w.w_uv, heads, h, true),
                                 detail::packed_head(writable_view(out), heads, h)}},
                               options, memory);
  return out;
}

/// Latent attention with every head's keys and values expanded: fewer operations when there are
/// many queries, as in a prompt. Arguments and result as those of latent_attention.
///
/// @code
/// using rows = heed::rows<float>;
/// heed::latent_weights<float> w{rows::Random(4 * 16, 32), rows::Random(4 * 16, 32), 4,
///                               8};  // 4 heads of 16; d_c = 32, rope_dim 8
/// const rows query = rows::Random(3, 4 * (16 + 8)), latent = rows::Random(10, 32 + 8);
/// assert((heed::expanded_latent_attention(query, latent, w) -
///         heed::latent_attention(query, latent, w))
///            .norm() < 1e-3f);
/// @endcode
template <typename Query, typename Latent, typename Scalar, typename... Terms>
rows<Scalar> expanded_latent_attention(const Query& query, const Latent& latent,
                                       const latent_weights<Scalar>& w,
                                       const attention_options& options = {},
                                       const Terms&... terms) {
  detail::check_latent("expanded_latent_attention", query, latent, w);
  detail::check_options<accumulator_t<Scalar>>("expanded_latent_attention", options);
  const size_type heads = w.num_heads, d_v = w.d_v(), n = latent.rows();
  const detail::input<Scalar, Query> q(query);
  const detail::input<Scalar, Latent> cache(latent);
  rows<Scalar> keys(n, heads * (w.d_nope() + w.rope_dim)), values(n, heads * d_v),
      out(query.rows(), heads * d_v);
  workspace memory;
  detail::expand_latent(cache.view, w, writable_view(keys), writable_view(values), options, memory);
  detail::forward(
      detail::make_problem<Scalar>("expanded_latent_attention", split_heads(q.view, heads),
                                   split_heads(view(keys), heads), split_heads(view(values), heads),
                                   split_heads(writable_view(out), heads), {},
                                   detail::latent_options(options, w), terms...),
      memory);
  return out;
}

HEED_NAMESPACE_END
