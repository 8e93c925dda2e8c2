#pragma once

#include <heed/detail/check.hpp>
#include <heed/detail/inputs.hpp>
#include <heed/detail/number.hpp>

#include <cmath>
#include <iterator>

HEED_NAMESPACE_BEGIN
namespace detail {

/// Adds a part to (out, lse), both over disjoint sets of keys: with m = max(lse_a, lse_b) and w =
/// exp(lse - m), out = sum (w / sum w) out and lse = m + ln(sum w). A part that saw no key (lse =
/// -infinity) does not count, whatever its output holds.
template <typename Out, typename Lse, typename PartOut, typename PartLse>
void merge_part(Out& out, Lse& lse, const PartOut& part_out, const PartLse& part_lse) {
  using Scalar = typename Out::Scalar;
  using Acc = typename Lse::Scalar;
  using std::exp;
  using std::log;
  for (size_type i = 0; i < out.rows(); ++i) {
    const Acc a = lse(i), b = part_lse(i);
    if (is_negative_infinity(b)) continue;
    if (is_negative_infinity(a)) {
      out.row(i) = part_out.row(i);
      lse(i) = b;
      continue;
    }
    const Acc max = a < b ? b : a, weight_a = exp(Acc(a - max)), weight_b = exp(Acc(b - max)),
              sum = weight_a + weight_b;
    const Acc share_a = weight_a / sum, share_b = weight_b / sum;
    for (size_type c = 0; c < out.cols(); ++c)
      out(i, c) = Scalar(Acc(Acc(share_a * Acc(out(i, c))) + Acc(share_b * Acc(part_out(i, c)))));
    lse(i) = max + Acc(log(sum));
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
  merge_part(merged.out, merged.lse, part.out, part.lse);
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

HEED_NAMESPACE_END
