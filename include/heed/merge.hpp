#pragma once

#include <heed/detail/check.hpp>
#include <heed/detail/inputs.hpp>
#include <heed/detail/number.hpp>
#include <heed/detail/overlap.hpp>
#include <heed/detail/sizes.hpp>
#include <heed/tensor.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <vector>

HEED_NAMESPACE_BEGIN
namespace detail {

/// Adds a part to (out, lse), both over disjoint sets of keys: with m = max(lse_a, lse_b) and w =
/// exp(lse - m), out = sum (w / sum w) out and lse = m + ln(sum w). A part that saw no key (lse =
/// -infinity) does not count, whatever its output holds.
template <typename Scalar, typename Acc, typename Part>
void merge_part(const matrix_view<Scalar>& out, const matrix_view<Acc>& lse,
                const matrix_view<const Part>& part_out, const matrix_view<const Acc>& part_lse) {
  using std::exp;
  using std::log;
  for (size_type i = 0; i < out.rows; ++i) {
    const Acc a = lse(i, 0), b = part_lse(i, 0);
    if (is_negative_infinity(a) || is_negative_infinity(b)) {
      const bool none = is_negative_infinity(b);
      for (size_type c = 0; is_negative_infinity(a) && c < out.cols; ++c)
        out(i, c) = none ? Scalar(Acc(0)) : Scalar(Acc(part_out(i, c)));
      if (!none) lse(i, 0) = b;
      continue;
    }
    const Acc max = a < b ? b : a, weight_a = exp(Acc(a - max)), weight_b = exp(Acc(b - max)),
              sum = weight_a + weight_b;
    const Acc share_a = weight_a / sum, share_b = weight_b / sum;
    for (size_type c = 0; c < out.cols; ++c)
      out(i, c) = Scalar(Acc(Acc(share_a * Acc(out(i, c))) + Acc(share_b * Acc(part_out(i, c)))));
    lse(i, 0) = max + Acc(log(sum));
  }
}

/// The first part, to which the others are added: a row that saw no key is 0.
template <typename Result>
Result first_part(const Result& part) {
  check_equal("merge", "first part: lse", part.lse.size(), "its n_q", part.out.rows());
  Result merged = part;
  for (size_type i = 0; i < merged.lse.size(); ++i)
    if (is_negative_infinity(merged.lse(i))) merged.out.row(i).setZero();
  return merged;
}

template <typename Result>
void add_part(Result& merged, const Result& part) {
  check_equal("merge", "part: n_q", part.out.rows(), "the first part's n_q", merged.out.rows());
  check_equal("merge", "part: head_dim", part.out.cols(), "the first part's head_dim",
              merged.out.cols());
  check_equal("merge", "part: lse", part.lse.size(), "the first part's n_q", merged.out.rows());
  const auto all = [](const auto& view) { return view.head(0, 0, 0, view.rows); };
  merge_part(all(writable_view(merged.out)), all(writable_view(merged.lse)), all(view(part.out)),
             all(view(part.lse)));
}

/// The gradients of `count` parts from those of the merged result. With the shares p = exp(lse_part
/// - lse): d_out_part = p d_out, d_lse_part = p (d_lse + d_out . (out_part - out)).
template <typename Scalar, int Dv>
void merge_backward(const attention_result<Scalar, Dv>* const* parts, std::size_t count,
                    const attention_result<Scalar, Dv>& grad,
                    attention_result<Scalar, Dv>* grad_parts) {
  using Acc = accumulator_t<Scalar>;
  using std::exp;
  constexpr const char* name = "merge_backward";
  if (count == 0) fail("heed::merge_backward: there must be at least one part, but there are 0");
  const size_type n_q = grad.out.rows(), d_v = grad.out.cols();
  check_equal(name, "grad: lse", grad.lse.size(), "its n_q", n_q);
  for (std::size_t n = 0; n < count; ++n) {
    check_equal(name, "part: n_q", parts[n]->out.rows(), "grad's n_q", n_q);
    check_equal(name, "part: head_dim", parts[n]->out.cols(), "grad's head_dim", d_v);
    check_equal(name, "part: lse", parts[n]->lse.size(), "grad's n_q", n_q);
  }
  std::vector<Acc> shares(count, Acc(0)), dots(count, Acc(0));
  for (size_type i = 0; i < n_q; ++i) {
    const auto saw_keys = [&](std::size_t n) { return !is_negative_infinity(parts[n]->lse(i)); };
    Acc largest(0), sum(0), mean(0);
    std::size_t seen = 0;
    for (std::size_t n = 0; n < count; ++n)
      if (saw_keys(n) && (seen++ == 0 || largest < parts[n]->lse(i))) largest = parts[n]->lse(i);
    for (std::size_t n = 0; n < count; ++n) {
      shares[n] = dots[n] = Acc(0);
      if (!saw_keys(n)) continue;
      shares[n] = seen == 1 ? Acc(1) : Acc(exp(Acc(parts[n]->lse(i) - largest)));
      sum += shares[n];
      for (size_type c = 0; c < d_v; ++c)
        dots[n] += Acc(Acc(grad.out(i, c)) * Acc(parts[n]->out(i, c)));
    }
    for (std::size_t n = 0; n < count; ++n)
      if (saw_keys(n)) mean += Acc(Acc(shares[n] /= sum) * dots[n]);
    for (std::size_t n = 0; n < count; ++n) {
      const bool saw = saw_keys(n);
      for (size_type c = 0; c < d_v; ++c)
        grad_parts[n].out(i, c) = Scalar(saw ? Acc(shares[n] * Acc(grad.out(i, c))) : Acc(0));
      grad_parts[n].lse(i) = saw ? Acc(shares[n] * Acc(grad.lse(i) + Acc(dots[n] - mean))) : Acc(0);
    }
  }
}

}  // namespace detail

/// The attention of the same queries over all the keys of two disjoint parts, from each part's
/// output and natural-log sum of exponentials (the recurrence of Dao et al. 2022, section 3.1, on
/// finished parts).
///
/// out n_q x Dv and lse n_q of each part. A part that saw no key changes nothing; where both saw
/// none the row is 0 and its lse -infinity. Where two parts saw keys and one's lse is +infinity or
/// NaN, the row and its lse are NaN. Count a sink in one part only. Throws std::invalid_argument
/// where the parts have different sizes.
///
/// @code
/// using rows = heed::rows<float>;
/// const rows query = rows::Random(6, 64), key = rows::Random(10, 64),
///            value = rows::Random(10, 32);
/// const auto a = heed::attention_with_lse(query, key.topRows(4), value.topRows(4));
/// const auto b = heed::attention_with_lse(query, key.bottomRows(6), value.bottomRows(6));
/// assert((heed::merge(a, b).out - heed::attention(query, key, value)).norm() < 1e-5f);
/// @endcode
template <typename Scalar, int Dv>
attention_result<Scalar, Dv> merge(const attention_result<Scalar, Dv>& a,
                                   const attention_result<Scalar, Dv>& b) {
  attention_result<Scalar, Dv> merged = detail::first_part(a);
  detail::add_part(merged, b);
  return merged;
}

/// The same for any number of parts, at least one: merge(first, last) over a range of
/// attention_result.
template <typename Iterator, typename Result = typename std::iterator_traits<Iterator>::value_type>
Result merge(Iterator first, Iterator last) {
  if (first == last) detail::fail("heed::merge: there must be at least one part, but there are 0");
  Result merged = detail::first_part(*first);
  for (++first; first != last; ++first) detail::add_part(merged, *first);
  return merged;
}

/// Merges a part into the caller's out and lse, which hold the parts before it: of batches and
/// heads, in place, without memory of its own.
///
/// part_out and out [B, H, n_q, Dv], part_lse and lse [B, H, n_q, 1]. A row of either whose lse is
/// -infinity does not count, whatever it holds: begin with an lse of -infinity everywhere, or with
/// the first part. For half and bfloat16 parts, out may be float, and so keeps what a row of many
/// parts adds up to. The rest as merge. Throws std::invalid_argument where sizes differ, or out or
/// lse overlaps itself, the other or the part, before anything is written.
///
/// @code
/// std::vector<float> x(2 * 4 * 10 * 64, 0.5f), out(x.size()), part(x.size());
/// std::vector<float> lse(2 * 4 * 10), part_lse(lse.size());
/// const auto heads = heed::bhnd(x.data(), 2, 4, 10, 64);
/// const auto to = heed::bhnd(out.data(), 2, 4, 10, 64),
///            of_part = heed::bhnd(part.data(), 2, 4, 10, 64);
/// const auto to_lse = heed::bhnd(lse.data(), 2, 4, 10, 1),
///            of_part_lse = heed::bhnd(part_lse.data(), 2, 4, 10, 1);
/// heed::workspace memory;
/// heed::multi_head_attention_into(heads, heads, heads, to, to_lse, {}, memory);
/// heed::multi_head_attention_into(heads, heads, heads, of_part, of_part_lse, {}, memory);
/// heed::merge_into(of_part, of_part_lse, to, to_lse);  // as of all keys, twice
/// @endcode
template <typename Part, typename PartLse, typename Scalar, typename Lse>
void merge_into(const tensor_view<Part>& part_out, const tensor_view<PartLse>& part_lse,
                const tensor_view<Scalar>& out, const tensor_view<Lse>& lse) {
  using Element = std::remove_const_t<Part>;
  using Acc = accumulator_t<Element>;
  static_assert(std::is_same<Scalar, Element>::value || std::is_same<Scalar, Acc>::value,
                "out must have the scalar type of the part's out, or that of its lse");
  static_assert(
      std::is_same<Lse, Acc>::value && std::is_same<std::remove_const_t<PartLse>, Acc>::value,
      "lse must have the scalar type of the scores: float for half and bfloat16");
  constexpr const char* name = "merge_into";
  detail::check_view(name, "out", out);
  detail::check_same_sizes(name, "part_out", part_out, "out", out);
  detail::check_row_numbers(name, "part_lse", part_lse, out, "n_q");
  detail::check_row_numbers(name, "lse", lse, out, "n_q");
  detail::check_apart(name, {"out", out}, {"lse", lse}, "part_out", part_out, "part_lse", part_lse);
  for (size_type b = 0; b < out.batch; ++b)
    for (size_type h = 0; h < out.heads; ++h)
      detail::merge_part(out.head(b, h, 0, out.rows), lse.head(b, h, 0, out.rows),
                         tensor_view<const Element>(part_out).head(b, h, 0, out.rows),
                         tensor_view<const Acc>(part_lse).head(b, h, 0, out.rows));
}

/// The gradients with respect to out and lse of both parts of merge(a, b), from those with respect
/// to the merged out and lse: grad, where an lse that the loss does not look at has zeros.
///
/// A part's lse gradient is what the term grad_lse takes to attention_backward. A part that saw no
/// key has gradients of 0 and its output is not read; a row in which two parts saw keys and one's
/// lse is +infinity or NaN has NaN. Throws std::invalid_argument where sizes differ.
///
/// @code
/// using rows = heed::rows<float>;
/// const rows query = rows::Random(6, 64), key = rows::Random(10, 64),
///            value = rows::Random(10, 32);
/// const auto a = heed::attention_with_lse(query, key.topRows(4), value.topRows(4));
/// const auto b = heed::attention_with_lse(query, key.bottomRows(6), value.bottomRows(6));
/// heed::attention_result<float> grad(6, 32);
/// grad.out.setOnes();  // the loss is the sum of the merged out
/// grad.lse.setZero();
/// const auto parts = heed::merge_backward(a, b, grad);
/// const auto of_a =
///     heed::attention_backward(query, key.topRows(4), value.topRows(4), a.out, a.lse,
///                              parts[0].out, {}, heed::grad_lse(parts[0].lse));
/// assert(of_a.key.rows() == 4);
/// @endcode
template <typename Scalar, int Dv>
std::array<attention_result<Scalar, Dv>, 2> merge_backward(
    const attention_result<Scalar, Dv>& a, const attention_result<Scalar, Dv>& b,
    const attention_result<Scalar, Dv>& grad) {
  using Result = attention_result<Scalar, Dv>;
  const Result* const parts[] = {&a, &b};
  std::array<Result, 2> gradients{Result(a.out.rows(), a.out.cols()),
                                  Result(b.out.rows(), b.out.cols())};
  detail::merge_backward(parts, 2, grad, gradients.data());
  return gradients;
}

/// The same for any number of parts: a gradient for each of [first, last), in order.
template <typename Iterator, typename Result = typename std::iterator_traits<Iterator>::value_type>
std::vector<Result> merge_backward(Iterator first, Iterator last, const Result& grad) {
  std::vector<const Result*> parts;
  std::vector<Result> gradients;
  for (; first != last; ++first) {
    parts.push_back(&*first);
    gradients.emplace_back((*first).out.rows(), (*first).out.cols());
  }
  detail::merge_backward(parts.data(), parts.size(), grad, gradients.data());
  return gradients;
}

HEED_NAMESPACE_END
