#pragma once

#include <heed/detail/backward_inputs.hpp>
#include <heed/detail/backward_problem.hpp>

#include <cmath>
#include <vector>

HEED_NAMESPACE_BEGIN

namespace detail {

/// Writes sums in the type of the result; where there are none, zeros.
template <typename Scalar, typename Acc>
void write_rows(const std::vector<Acc>& sums, const matrix_view<Scalar>& to) {
  for (size_type r = 0; r < to.rows; ++r)
    for (size_type c = 0; c < to.cols; ++c) {
      const std::size_t at = static_cast<std::size_t>(r * to.cols + c);
      to(r, c) = Scalar(at < sums.size() ? sums[at] : Acc(0));
    }
}

template <typename Scalar>
void write_zeros(const tensor_view<Scalar>& to) {
  for (size_type b = 0; b < to.batch; ++b)
    for (size_type h = 0; h < to.heads; ++h)
      write_rows(std::vector<Scalar>(), broadcast_head(to, b, h));
}

/// The gradient as the formulas read, pair after pair:
///   W = P after dropout, D_i = sum_c dO_ic O_ic - dlse_i, dW_ij = sum_c dO_ic V_jc
///   dV_jc += W_ij dO_ic, dS_ij = W_ij dW_ij - P_ij D_i
///   dQ_ic += dS_ij slope scale K_jc, dK_jc += dS_ij slope scale Q_ic
/// where P_ij = exp(s_ij - lse_i), and slope is how fast s_ij grows with its scaled product.
template <typename Scalar, typename Out>
void reference_backward(const backward_problem<Scalar, Out>& p) {
  using Acc = accumulator_t<Scalar>;
  using std::exp;
  const problem<Scalar>& forward = p.forward;
  const auto& terms = p.terms;
  const size_type d_k = forward.query.cols, d_v = forward.value.cols;
  const auto sums_of = [](size_type count, size_type d) {
    return std::vector<Acc>(static_cast<std::size_t>(count * d), Acc(0));
  };
  const auto clear = [&](const auto& term) {
    for (size_type h = 0; term && h < term->count; ++h) term->values[h] = Acc(0);
  };
  clear(terms.grad_sinks);
  clear(terms.grad_logit_scales);
  p.clear_other_queries();
  p.clear_other_rows(p.grad_key);
  p.clear_other_rows(p.grad_value);
  if (terms.grad_bias) write_zeros(terms.grad_bias->view);
  if (terms.grad_alibi) write_zeros(terms.grad_alibi->view);

  for (size_type b = 0; b < forward.batch(); ++b)
    for (size_type g = 0; g < forward.key.heads; ++g) {
      const size_type n_q = forward.n_q(b), n_kv = forward.n_kv(b);
      std::vector<Acc> dk = sums_of(n_kv, d_k), dv = sums_of(n_kv, d_v);
      for (size_type h = g * forward.group(); h < (g + 1) * forward.group(); ++h) {
        const auto head = forward.head(b, h);
        const auto out = p.query_rows(p.out, b, h);
        const auto grad_out = p.query_rows(p.grad_out, b, h);
        const auto lse = p.query_rows(p.lse, b, h);
        std::vector<Acc> dq = sums_of(n_q, d_k);
        for (size_type i = 0; i < n_q; ++i) {
          if (is_negative_infinity(lse(i, 0))) continue;  // a row that sees no key
          Acc d(0);
          for (size_type c = 0; c < d_v; ++c) d += Acc(Acc(grad_out(i, c)) * Acc(out(i, c)));
          d -= p.grad_lse(b, h, i);
          if (terms.grad_sinks && head.score.has_sink)
            terms.grad_sinks->values[h] -= Acc(Acc(exp(Acc(head.score.sink - lse(i, 0)))) * d);

          for (size_type j = 0; j < n_kv; ++j) {
            if (!visible(head.score, i, j)) continue;
            Acc dot(0), dw(0);
            for (size_type c = 0; c < d_k; ++c)
              dot += Acc(Acc(head.query(i, c)) * head.key.template at<Acc>(j, c));
            const Acc s = score_of(head.score, dot, i, j);
            if (masked_by_function(head.score, s)) continue;
            for (size_type c = 0; c < d_v; ++c)
              dw += Acc(Acc(grad_out(i, c)) * head.value.template at<Acc>(j, c));
            const Acc weight(exp(Acc(s - lse(i, 0)))),
                dropped = value_weight(head.score, weight, i, j);
            const Acc ds(Acc(dropped * dw) - Acc(weight * d));
            const score_slopes<Acc> slopes = slopes_of(head.score, dot, i, j);
            const Acc to_bias(ds * slopes.of_bias), to_product(ds * slopes.of_product),
                to_dot(to_product * head.score.scale);

            const auto at = [](size_type row, size_type width, size_type c) {
              return static_cast<std::size_t>(row * width + c);
            };
            for (size_type c = 0; c < d_v; ++c)
              dv[at(j, d_v, c)] += Acc(dropped * Acc(grad_out(i, c)));
            for (size_type c = 0; c < d_k; ++c) {
              dq[at(i, d_k, c)] += Acc(to_dot * head.key.template at<Acc>(j, c));
              dk[at(j, d_k, c)] += Acc(to_dot * Acc(head.query(i, c)));
            }
            if (terms.grad_bias)
              forward.from_first_key(terms.grad_bias->view, b, h)(i, j) += to_bias;
            if (terms.grad_alibi)
              term_head(terms.grad_alibi->view, b, h)(0, 0) -=
                  Acc(to_bias * distance(head.score, i, j));
            if (terms.grad_logit_scales)
              terms.grad_logit_scales->values[h] +=
                  Acc(to_product * Acc(dot * Acc(forward.scale())));
          }
        }
        write_rows(dq, p.query_rows(p.grad_query, b, h));
      }
      write_rows(dk, p.key_rows(p.grad_key, b, g));
      write_rows(dv, p.key_rows(p.grad_value, b, g));
    }
  forward.rethrow();
}

}  // namespace detail

/// The gradients of a loss with respect to query, key and value, computed directly in O(n_q n_kv d)
/// time for any scalar type with the arithmetic, exp and tanh: the oracle of attention_backward,
/// whose arguments it takes.
///
/// @code
/// using rows = heed::rows<double>;
/// const rows query = rows::Random(6, 8), key = rows::Random(10, 8), value = rows::Random(10, 4),
///            grad_out = rows::Ones(6, 4);
/// const auto forward = heed::reference_attention_with_lse(query, key, value);
/// const auto want =
///     heed::reference_attention_backward(query, key, value, forward.out, forward.lse, grad_out);
/// const auto got =
///     heed::attention_backward(query, key, value, forward.out, forward.lse, grad_out);
/// assert((got.key - want.key).norm() < 1e-13);
/// @endcode
template <typename Scalar = deduced, int Dk = Eigen::Dynamic, int Dv = Dk, typename Query,
          typename Key, typename Value, typename Out, typename Lse, typename GradOut,
          typename... Terms>
auto reference_attention_backward(const Query& query, const Key& key, const Value& value,
                                  const Out& out, const Lse& lse, const GradOut& grad_out,
                                  const attention_options& options = {}, const Terms&... terms) {
  constexpr const char* name = "reference_attention_backward";
  const detail::backward_inputs<Scalar, Dk, Dv, Query, Key, Value, Out, Lse, GradOut> in(
      name, query, key, value, out, lse, grad_out);
  typename decltype(in)::result result = in.make_result();
  detail::reference_backward(detail::make_backward_problem(
      name, in.query, in.key, in.value, in.out, in.lse, in.grad_out, writable_view(result.query),
      writable_view(result.key), writable_view(result.value), options, terms...));
  return result;
}

/// The same for batches and heads, as multi_head_attention_backward_into.
template <typename Query, typename Key, typename Value, typename Out, typename Lse,
          typename GradOut, typename Scalar, typename... Terms>
void reference_multi_head_attention_backward_into(
    const tensor_view<Query>& query, const tensor_view<Key>& key, const tensor_view<Value>& value,
    const tensor_view<Out>& out, const tensor_view<Lse>& lse, const tensor_view<GradOut>& grad_out,
    const tensor_view<Scalar>& grad_query, const tensor_view<Scalar>& grad_key,
    const tensor_view<Scalar>& grad_value, const attention_options& options,
    const Terms&... terms) {
  detail::reference_backward(detail::make_backward_problem<Scalar>(
      "reference_multi_head_attention_backward_into", query, key, value, out, lse, grad_out,
      grad_query, grad_key, grad_value, options, terms...));
}

/// The same for ragged batches, as ragged_attention_backward_into.
template <typename Query, typename Key, typename Value, typename Out, typename Lse,
          typename GradOut, typename Scalar, typename... Terms>
void reference_ragged_attention_backward_into(
    const tensor_view<Query>& query, const tensor_view<Key>& key, const tensor_view<Value>& value,
    const tensor_view<Out>& out, const tensor_view<Lse>& lse, const tensor_view<GradOut>& grad_out,
    const tensor_view<Scalar>& grad_query, const tensor_view<Scalar>& grad_key,
    const tensor_view<Scalar>& grad_value, const index_list& query_starts,
    const index_list& key_starts, const attention_options& options, const Terms&... terms) {
  detail::reference_backward(detail::make_ragged_backward_problem<Scalar>(
      "reference_ragged_attention_backward_into", query_starts, key_starts, query, key, value, out,
      lse, grad_out, grad_query, grad_key, grad_value, options, terms...));
}

HEED_NAMESPACE_END
