#pragma once

#include <heed/attention.hpp>
#include <heed/cached_attention.hpp>
#include <heed/detail/check.hpp>
#include <heed/detail/recurrence.hpp>
#include <heed/kv_pages.hpp>  // what latents may be in
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
/// The weights fit together, and latents of so many columns.
template <typename Scalar>
void check_latent_weights(const char* function, const latent_weights<Scalar>& w,
                          size_type latent_cols) {
  if (w.rope_dim < 0 || w.rope_dim > latent_cols)
    fail_with("heed::", function, ": rope_dim must be 0 or more and at most latent's columns ",
              latent_cols, ", but is ", w.rope_dim);
  check_multiple(function, "w_uk", w.w_uk.rows(), "rows", "num_heads", w.num_heads);
  check_multiple(function, "w_uv", w.w_uv.rows(), "rows", "num_heads", w.num_heads);
  check_equal(function, "w_uv: d_c", w.w_uv.cols(), "w_uk's d_c", w.w_uk.cols());
  check_equal(function, "latent: columns", latent_cols, "d_c + rope_dim", w.d_c() + w.rope_dim);
}
/// The same with queries whose heads are side by side.
template <typename Query, typename Latent, typename Scalar>
void check_latent(const char* function, const Query& query, const Latent& latent,
                  const latent_weights<Scalar>& w) {
  static_assert(std::is_same<typename scalar_of<Query>::type, Scalar>::value &&
                    std::is_same<typename scalar_of<Latent>::type, Scalar>::value,
                "query, latent and the weights must have one scalar type: cast the others to it");
  check_latent_weights(function, w, latent.cols());
  check_memory(function, "query", query);
  check_memory(function, "latent", latent);
  constexpr const char* columns = "num_heads * (d_nope + rope_dim)";
  check_equal(function, "query: columns", query.cols(), columns,
              product(function, columns, {w.num_heads, w.d_nope() + w.rope_dim}));
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
template <typename Scalar>
tensor_view<Scalar> first_columns(tensor_view<Scalar> x, size_type count) {
  x.cols = count;
  return x;
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
/// part. The weights of a head serve the whole batch while they are near.
template <typename Scalar>
void absorb_queries(const tensor_view<const Scalar>& query, const latent_weights<Scalar>& w,
                    const tensor_view<Scalar>& absorbed, const attention_options& options,
                    workspace& memory) {
  const size_type heads = w.num_heads, d_c = w.d_c(), d_nope = w.d_nope();
  for (size_type h = 0; h < heads; ++h)
    for (size_type b = 0; b < query.batch; ++b) {
      const auto from = query.head(b, h, 0, query.rows);
      const auto to = absorbed.head(b, h, 0, query.rows);
      project<Scalar, 1>(columns_of(from, 0, d_nope),
                         {{head_weight(w.w_uk, heads, h, false), columns_of(to, 0, d_c)}}, options,
                         memory);
      copy_columns(columns_of(from, d_nope, w.rope_dim), columns_of(to, d_c, w.rope_dim));
    }
}
/// From sums of latents to outputs.
template <typename Scalar>
void expand_sums(const tensor_view<const Scalar>& summed, const latent_weights<Scalar>& w,
                 const tensor_view<Scalar>& out, const attention_options& options,
                 workspace& memory) {
  for (size_type h = 0; h < w.num_heads; ++h)
    for (size_type b = 0; b < out.batch; ++b)
      project<Scalar, 1>(summed.head(b, h, 0, summed.rows),
                         {{head_weight(w.w_uv, w.num_heads, h, true), out.head(b, h, 0, out.rows)}},
                         options, memory);
}

/// The absorbed form, of latents in any storage; `bind` makes the problem one of a cache. In the
/// workspace comes first what the steps take in turn, which leaves it where it is, then the
/// absorbed queries and the sums of latents.
template <typename Scalar, typename Stored, typename Bind, typename... Terms>
void run_latent(const char* function, const tensor_view<const Scalar>& query,
                const stored_tensor<Stored>& latent, const stored_tensor<Stored>& value,
                const latent_weights<Scalar>& w, const tensor_view<Scalar>& out,
                const tensor_view<accumulator_t<Scalar>>& lse, const attention_options& options,
                workspace& memory, const Bind& bind, const Terms&... terms) {
  check_options<accumulator_t<Scalar>>(function, options);
  check_latent_weights(function, w, latent.cols);
  check_view(function, "query", query);
  check_equal(function, "query: num_heads", query.heads, "the weights'", w.num_heads);
  check_equal(function, "query: head_dim", query.cols, "d_nope + rope_dim",
              w.d_nope() + w.rope_dim);
  check_equal(function, "latent: heads", latent.heads, "one for all:", size_type{1});
  check_equal(function, "value: head_dim", value.cols, "d_c", w.d_c());
  for (const size_type depth : {w.d_nope(), w.d_c()})
    check_projection<Scalar>(function, depth, options, "scratch for a product, in bytes");
  const size_type batch = query.batch, n = query.rows, heads = w.num_heads, width = latent.cols,
                  d_c = w.d_c();
  product(function, "absorbed queries, in bytes",
          {batch, n, heads, width, 2 * size_type{sizeof(Scalar)}});

  Scalar nowhere(0);  // until there is memory
  tensor_view<Scalar> absorbed = bnhd(&nowhere, batch, n, heads, width),
                      summed = bnhd(&nowhere, batch, n, heads, d_c);
  auto p = make_score_problem(function, tensor_view<const Scalar>(absorbed), latent, value, lse,
                              latent_options(options, w), terms...);
  bind(p);
  auto of_value = summed;
  of_value.cols = w.d_v();
  check_out(function, "out", out, absorbed, of_value, "n_q");
  p.query.data = nullptr;
  const auto& largest = p.terms.max_logits;
  const auto are_apart = [&](const named_region& first, const named_region& second,
                             const auto&... later) {
    check_apart_from_inputs(function, p, first, second, "query", query, "w_uk", w.w_uk, "w_uv",
                            w.w_uv, later...);
  };
  are_apart({"out", out}, {"lse", lse}, "max_logits", largest);
  if (largest) are_apart({"max_logits", largest}, no_output());

  p.query = absorbed, p.out = summed;
  size_type steps = 0;
  if constexpr (has_kernels<Scalar, Stored>) steps = bytes_of(p);
  if (batch > 0 && heads > 0) {
    const auto to_absorb = columns_of(query.head(0, 0, 0, n), 0, w.d_nope());
    steps =
        (std::max)({steps,
                    bytes_of<Scalar, 1>(to_absorb,
                                        {{head_weight(w.w_uk, heads, 0, false),
                                          columns_of(absorbed.head(0, 0, 0, n), 0, d_c)}},
                                        options),
                    bytes_of<Scalar, 1>(
                        tensor_view<const Scalar>(summed).head(0, 0, 0, n),
                        {{head_weight(w.w_uv, heads, 0, true), out.head(0, 0, 0, n)}}, options)});
  }
  const size_type numbers = batch * n * heads * (width + d_c),
                  own = numbers * size_type{sizeof(Scalar)}, first = padded_bytes(steps);
  char* const base = static_cast<char*>(memory.reserve(first + own));
  const zeros<Scalar> room(base + first, numbers);
  absorbed.data = room.data(), summed.data = absorbed.data + batch * n * heads * width;
  p.query = absorbed, p.out = summed;
  absorb_queries<Scalar>(query, w, absorbed, options, memory);
  forward(p, memory);
  expand_sums<Scalar>(summed, w, out, options, memory);
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
  const detail::input<Scalar, Query> q(query);
  const detail::input<Scalar, Latent> cache(latent);
  rows<Scalar> out(query.rows(), w.num_heads * w.d_v());
  workspace memory;
  detail::run_latent<Scalar, Scalar>(
      "latent_attention", split_heads(q.view, w.num_heads), cache.view,
      detail::first_columns(cache.view, w.d_c()), w, split_heads(writable_view(out), w.num_heads),
      {}, options, memory, [](auto&) {}, terms...);
  return out;
}

/// The same for a batch, through strided views: query [B, H, n_q, d_nope + d_r], latent [B, 1,
/// n_kv, d_c + d_r] -> out [B, H, n_q, d_v], lse [B, H, n_q, 1] or {}. Throws std::invalid_argument
/// where sizes do not fit, and as multi_head_attention_into does, before anything is written.
/// Allocates nothing once `memory` has grown.
///
/// @code
/// using rows = heed::rows<float>;
/// const heed::latent_weights<float> w{rows::Random(4 * 16, 32), rows::Random(4 * 16, 32), 4, 8};
/// std::vector<float> query(2 * 4 * 24, 0.1f), latent(2 * 10 * 40, 0.5f), out(2 * 4 * 16);
/// heed::workspace memory;
/// heed::latent_attention_into(heed::bhnd(query.data(), 2, 4, 1, 24),
///                             heed::bhnd(latent.data(), 2, 1, 10, 40), w,
///                             heed::bhnd(out.data(), 2, 4, 1, 16), {},
///                             heed::attention_options(), memory);
/// @endcode
template <typename Query, typename Latent, typename Scalar, typename Lse = detail::absent,
          typename... Terms>
void latent_attention_into(const tensor_view<Query>& query, const tensor_view<Latent>& latent,
                           const latent_weights<Scalar>& w, const tensor_view<Scalar>& out,
                           const Lse& lse, const attention_options& options, workspace& memory,
                           const Terms&... terms) {
  static_assert(detail::scalars_fit<Scalar, Query, Latent>::value);
  constexpr const char* name = "latent_attention_into";
  detail::check_view(name, "latent", latent);
  const tensor_view<const Scalar> cache = latent;
  detail::run_latent<Scalar, Scalar>(
      name, query, cache, detail::first_columns(cache, w.d_c()), w, out,
      detail::lse_of<Scalar>(lse), options, memory, [](auto&) {}, terms...);
}

/// The same against a cache whose keys are the latents, [.., 1, .., d_c + d_r], and whose values
/// are their first d_c columns: kv_pages makes such of two views of the same pages. The queries are
/// the newest tokens, as in cached_attention_into.
///
/// @code
/// using rows = heed::rows<float>;
/// const heed::latent_weights<float> w{rows::Random(4 * 16, 32), rows::Random(4 * 16, 32), 4, 8};
/// std::vector<float> pool(6 * 16 * 40, 0.5f), query(2 * 4 * 24, 0.1f), out(2 * 4 * 16);
/// const auto latents = heed::bhnd(pool.data(), 6, 1, 16, 40);  // 6 pages of 16 tokens
/// auto values = latents;
/// values.cols = 32;
/// const std::vector<std::int32_t> numbers{4, 0, -1, 2, 5, 1}, lengths{20, 48};
/// heed::workspace memory;
/// heed::cached_latent_attention_into(
///     heed::bhnd(query.data(), 2, 4, 1, 24),
///     heed::kv_pages(latents, values, heed::page_table(numbers.data(), 2, 3), lengths), w,
///     heed::bhnd(out.data(), 2, 4, 1, 16), {}, heed::attention_options(), memory);
/// @endcode
template <typename Query, typename Cache, typename Scalar, typename Lse = detail::absent,
          typename... Terms>
void cached_latent_attention_into(const tensor_view<Query>& query, const Cache& cache,
                                  const latent_weights<Scalar>& w, const tensor_view<Scalar>& out,
                                  const Lse& lse, const attention_options& options,
                                  workspace& memory, const Terms&... terms) {
  static_assert(detail::scalars_fit<Scalar, Query>::value);
  constexpr const char* name = "cached_latent_attention_into";
  detail::run_latent<Scalar>(
      name, tensor_view<const Scalar>(query), cache.keys(), cache.values(), w, out,
      detail::lse_of<Scalar>(lse), options, memory,
      [&](auto& p) { detail::bind_cache(name, cache, p); }, terms...);
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
