#pragma once

#include <heed/block_mask.hpp>
#include <heed/detail/terms.hpp>
#include <heed/dropout.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>
#include <heed/when.hpp>

#include <Eigen/Core>
#include <cstdint>
#include <type_traits>
#include <vector>

HEED_NAMESPACE_BEGIN

// The terms that may follow the options of a call, in any order, each at most once:
//   attention(query, key, value, options, keep(mask), alibi(slopes))
// A term views the caller's memory; it does not own it. Its sizes must be those of the call, also
// if it is empty; when(given, term) leaves a term out at run time. Masks compose by AND, with each
// other and with causal and window.

namespace detail {
template <typename Tag, typename Vector>
head_term<typename Vector::Scalar, Tag> make_head_term(const Vector& values) {
  static_assert(is_eigen<Vector> && has_memory<Vector> && bool(Vector::IsVectorAtCompileTime),
                "this term takes an Eigen vector");
  static_assert(int(Vector::InnerStrideAtCompileTime) == 1,
                "this term takes a vector whose elements are side by side in memory");
  return {values.data(), values.size()};
}

/// A vector of a number per query head, or a matrix batch x heads, as [batch, heads, 1, 1].
template <typename Matrix, typename Scalar>
tensor_view<Scalar> heads_view(const tensor_view<Scalar>& matrix) {
  if (int(Matrix::ColsAtCompileTime) == 1)
    return {matrix.data, 1, matrix.rows, 1, 1, 0, matrix.row_stride, 0, 0};
  return {matrix.data, matrix.rows, matrix.cols, 1, 1, matrix.row_stride, matrix.col_stride, 0, 0};
}
/// Looks at the type of such numbers.
template <typename Matrix>
struct fits_heads : std::true_type {
  static_assert(is_eigen<Matrix> && has_memory<Matrix>,
                "this term takes an Eigen vector of a number per query head, or a matrix batch x "
                "heads");
};
}  // namespace detail

/// A tensor whose batch entries serve a larger batch in turn.
template <typename Scalar>
struct repeated_view {
  tensor_view<Scalar> view;  ///< the tensor
  size_type times;           ///< how many times its batch makes the call's
};

/// For keep and bias: entry b of a call of times * values.batch entries takes entry b %
/// values.batch. With windows as the batch, window w of image n being entry n * num_windows + w,
/// repeated(values, num_images) is one mask or bias per window, the same for every image (Liu et
/// al. 2021).
///
/// @code
/// // 6 windows of 4 tokens: 3 images of 2 windows, and a bias for each of the 2
/// std::vector<float> x(6 * 4 * 8, 1.0f), out(x), values(2 * 4 * 4, 0.5f);
/// const auto windows = heed::bhnd(x.data(), 6, 1, 4, 8);
/// heed::workspace memory;
/// heed::multi_head_attention_into(windows, windows, windows, heed::bhnd(out.data(), 6, 1, 4, 8),
///                                 {}, heed::attention_options(), memory,
///                                 heed::bias(heed::repeated(heed::bhnd(values.data(), 2, 1, 4, 4),
///                                                           3)));
/// @endcode
template <typename Scalar>
repeated_view<const Scalar> repeated(const tensor_view<Scalar>& values, size_type times) {
  return {values, times};
}

/// A boolean mask, true = attend: of bools, or of bytes (std::uint8_t, char), where any byte but 0
/// is true. Its sizes [batch, heads, n_q, n_kv] are each 1 (the same for all) or the call's own.
/// Bools are faster.
template <typename Scalar>
auto keep(const tensor_view<Scalar>& mask) {
  using Element = std::remove_const_t<Scalar>;
  static_assert(
      std::is_integral<Element>::value && sizeof(Element) == 1,
      "keep takes bools, or bytes that are not 0 where a query attends; a float mask is a bias");
  if constexpr (std::is_same<Element, bool>::value) {
    return detail::keep_term{mask};
  } else {  // a bool that is neither 0 nor 1 must not be read
    return detail::keep_bytes_term{{reinterpret_cast<const std::uint8_t*>(mask.data), mask.batch,
                                    mask.heads, mask.rows, mask.cols, mask.batch_stride,
                                    mask.head_stride, mask.row_stride, mask.col_stride}};
  }
}

/// The same mask, repeated along the batch.
template <typename Scalar>
auto keep(const repeated_view<Scalar>& mask) {
  auto term = keep(mask.view);
  term.times = mask.times;
  return term;
}

/// A boolean mask n_q x n_kv (or 1 x n_kv, n_q x 1) for every batch entry and head, true (or a byte
/// that is not 0) = attend.
///
/// @code
/// const heed::rows<float> query = heed::rows<float>::Random(6, 64),
///                         key = heed::rows<float>::Random(10, 64);
/// heed::rows<bool> mask = heed::rows<bool>::Constant(6, 10, true);
/// mask.col(3).setConstant(false);  // no query sees key 3
/// const heed::rows<float> out = heed::attention(query, key, key, {}, heed::keep(mask));
/// @endcode
template <typename Derived>
auto keep(const Eigen::DenseBase<Derived>& mask) {
  return keep(view(mask));
}

/// A boolean mask of one bit per pair, 1 = attend: bytes [batch, heads, n_q, (n_kv + 7) / 8], bit j
/// % 8 (the lowest first) of byte j / 8 is key j. batch, heads and n_q are each 1 (the same for
/// all) or the call's own.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// std::vector<std::uint8_t> bytes(10 * 2, 0xff);  // 10 keys take 2 bytes
/// bytes[0] = 0x01;                                // of the first 8 keys, query 0 sees key 0 alone
/// const auto out =
///     heed::attention(x, x, x, {}, heed::keep_bits(heed::bhnd(bytes.data(), 1, 1, 10, 2), 10));
/// @endcode
inline detail::keep_bits_term keep_bits(const tensor_view<const std::uint8_t>& bytes,
                                        size_type n_kv) {
  return {bytes, n_kv};
}

/// Numbers added to the scores after scale and softcap; -infinity masks. Sizes broadcast as those
/// of keep. The scalar is that of the scores; beside float scores also Eigen::half or
/// Eigen::bfloat16, which are read as they are.
template <typename Scalar>
detail::bias_term<std::remove_const_t<Scalar>> bias(const tensor_view<Scalar>& values) {
  return {values};
}

/// The same bias, repeated along the batch.
template <typename Scalar>
detail::bias_term<std::remove_const_t<Scalar>> bias(const repeated_view<Scalar>& values) {
  return {values.view, values.times};
}

/// A bias n_q x n_kv (or 1 x n_kv, n_q x 1) for every batch entry and head.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// const heed::rows<float> values = heed::rows<float>::Random(10, 10);
/// const auto out = heed::attention(x, x, x, {}, heed::bias(values));
/// @endcode
template <typename Derived>
detail::bias_term<typename Derived::Scalar> bias(const Eigen::DenseBase<Derived>& values) {
  return bias(view(values));
}

/// A mask for each sequence of a batch whose sequences have sizes of their own: entry b of `masks`
/// is [1, heads, n_q, n_kv] of sequence b, each 1 or the sequence's; true = attend.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(5, 64);
/// heed::rows<bool> first = heed::rows<bool>::Constant(2, 2, true), second(3, 3);
/// second.setConstant(true);
/// first(0, 1) = false;
/// const std::vector<heed::tensor_view<const bool>> masks{heed::view(first), heed::view(second)};
/// const std::vector<int> starts{0, 2, 5};
/// heed::rows<float> out(5, 64);
/// heed::workspace memory;
/// heed::ragged_attention_into(heed::view(x), heed::view(x), heed::view(x),
///                             heed::writable_view(out), {}, starts, starts, {}, memory,
///                             heed::keep_each(masks));
/// @endcode
inline detail::each_term<const bool, detail::keep_term> keep_each(
    const std::vector<tensor_view<const bool>>& masks) {
  return {masks.data(), static_cast<size_type>(masks.size())};
}

/// The same for numbers that are added to the scores, as `bias` adds them.
template <typename Scalar>
detail::each_term<const Scalar, detail::bias_term<Scalar>> bias_each(
    const std::vector<tensor_view<const Scalar>>& biases) {
  return {biases.data(), static_cast<size_type>(biases.size())};
}

/// A mask for each sequence in bits, 1 = attend: those of sequence b begin at byte starts[b], and
/// bit i * n_kv + j of them (the lowest of a byte first) is query i and key j (FlashInfer's
/// custom_mask and its indptr, where each sequence begins with a byte).
inline detail::packed_bits_term packed_keep_bits(const std::vector<std::uint8_t>& bytes,
                                                 const index_list& starts) {
  return {bytes.data(), static_cast<size_type>(bytes.size()), starts};
}

/// Attention with linear biases: adds -slope * |i + n_kv - n_q - j|, one slope per query head
/// (Press, Smith and Lewis 2022): a vector of heads, or a matrix batch x heads, whose row b is that
/// of batch entry (sequence) b.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// const auto slopes = heed::alibi_slopes<float>(1);  // for one head
/// const auto out = heed::attention(x, x, x, {}, heed::alibi(slopes));
/// @endcode
template <typename Slopes>
auto alibi(const Slopes& slopes) {
  static_assert(detail::fits_heads<Slopes>::value);
  return detail::alibi_term<typename Slopes::Scalar>{detail::heads_view<Slopes>(view(slopes))};
}

/// Relative positions in the keys (Shaw, Uszkoreit and Vaswani 2018): a score is scale q_i . (k_j +
/// r), where r is row left + (j - i) of a table, and the first or the last row for keys further
/// away than `left` before or `right` after the query. As for ALiBi, the last query stands at the
/// last key: j - i means j - i - (n_kv - n_q). [1, heads, left + 1 + right, head_dim], 1 head being
/// the same for all; the numbers of a row are side by side in memory. In the type of the scores.
/// Not for calls that take a gradient.
///
/// Where distances further away have no vector (VITS), give a first and a last row of zeros.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// const heed::rows<float> keys = heed::rows<float>::Random(4 + 1 + 4, 64);
/// const heed::rows<float> values = heed::rows<float>::Random(4 + 1 + 4, 64);
/// const auto out = heed::attention(x, x, x, {}, heed::relative_keys(keys, 4, 4),
///                                  heed::relative_values(values, 4, 4));
/// @endcode
template <typename Scalar>
detail::relative_term<std::remove_const_t<Scalar>, detail::relative_keys_tag> relative_keys(
    const tensor_view<Scalar>& table, size_type left, size_type right) {
  return {table, left, right};
}

/// The same table, a matrix, for every head.
template <typename Derived>
auto relative_keys(const Eigen::DenseBase<Derived>& table, size_type left, size_type right) {
  return relative_keys(view(table), left, right);
}

/// Relative positions in the values: an output is the sum of p_ij (v_j + r), with r of a table as
/// relative_keys has it, [1, heads, left + 1 + right, head_dim of the values]. Functions that
/// compute weights alone do not take it.
template <typename Scalar>
detail::relative_term<std::remove_const_t<Scalar>, detail::relative_values_tag> relative_values(
    const tensor_view<Scalar>& table, size_type left, size_type right) {
  return {table, left, right};
}

/// The same table, a matrix, for every head.
template <typename Derived>
auto relative_values(const Eigen::DenseBase<Derived>& table, size_type left, size_type right) {
  return relative_values(view(table), left, right);
}

/// One logit a query head that joins the softmax's denominator and has no value (Xiao et al. 2024).
/// A logit of -infinity is no sink.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// const Eigen::VectorXf logits = Eigen::VectorXf::Constant(1, 2.0f);
/// const auto out = heed::attention(x, x, x, {}, heed::sinks(logits));
/// @endcode
template <typename Vector>
detail::head_term<typename Vector::Scalar, detail::sinks_tag> sinks(const Vector& logits) {
  return detail::make_head_term<detail::sinks_tag>(logits);
}

/// One factor a query head on the scale of the call.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// const Eigen::VectorXf factors = Eigen::VectorXf::Constant(1, 0.5f);
/// const auto out = heed::attention(x, x, x, {}, heed::logit_scales(factors));
/// @endcode
template <typename Vector>
detail::head_term<typename Vector::Scalar, detail::logit_scales_tag> logit_scales(
    const Vector& factors) {
  return detail::make_head_term<detail::logit_scales_tag>(factors);
}

/// The number of valid keys of each batch entry, 0 to n_kv; keys past it are never read. In a
/// ragged batch that of each sequence, at most what key_starts leave it. Bottom-right alignment
/// counts from it. A list of integers of 32 or 64 bits.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// const std::vector<heed::size_type> lengths{7};  // one batch entry, the last 3 keys are padding
/// const auto out = heed::attention(x, x, x, {}, heed::key_lengths(lengths));
/// @endcode
inline detail::key_lengths_term key_lengths(const index_list& lengths) { return {lengths}; }

/// The number of queries of each batch entry, or of each sequence of a ragged batch, 0 to the rows
/// it has: the rows past them are padding. They are not read, their output is 0 with a log-sum-exp
/// of -infinity, and their gradient is 0. Bottom-right alignment counts from it. A list of integers
/// of 32 or 64 bits.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// const std::vector<heed::size_type> lengths{7};  // one batch entry, the last 3 rows are padding
/// const auto out =
///     heed::attention(x, x, x, {}, heed::query_lengths(lengths), heed::key_lengths(lengths));
/// assert(out.bottomRows(3).isZero());
/// @endcode
inline detail::query_lengths_term query_lengths(const index_list& lengths) { return {lengths}; }

/// The row of keys at which each batch entry begins, 0 to its length: padding on the left. Rows
/// before it are never read, and the sequence is as if they were not there: alignment, windows,
/// functions and dropout count keys from the first. keep, keep_bits and bias have a column for each
/// row in memory all the same (those with an entry for each sequence do not); blocks are refused.
/// In a ragged batch rows count from the start of their sequence, in a cache from the first token
/// that was ever appended. A list of integers of 32 or 64 bits.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// const std::vector<heed::size_type> first{3};  // one batch entry, the first 3 keys are padding
/// const auto out = heed::attention(x, x, x, {}, heed::first_keys(first));
/// @endcode
inline detail::first_keys_term first_keys(const index_list& rows) { return {rows}; }

/// Where the largest score of each query head goes, in natural units and as the softmax has it, of
/// the keys that its queries see; -infinity where they see none: a vector of heads, over the whole
/// batch, or a matrix batch x heads. What a training step needs to keep scores from growing
/// (QK-clip, Kimi Team 2025). From the same pass. Not together with sinks, nor in a backward call;
/// with a NaN among the scores, any number.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// heed::row_vector<float> largest(1);
/// const auto out = heed::attention(x, x, x, {}, heed::max_logits(largest));
/// @endcode
template <typename Numbers>
auto max_logits(Numbers&& numbers) {
  using Matrix = std::decay_t<Numbers>;
  static_assert(detail::fits_heads<Matrix>::value);
  return detail::max_logits_term<typename Matrix::Scalar>{
      detail::heads_view<Matrix>(writable_view(numbers))};
}

/// A block-sparse mask; hidden blocks cost nothing. The mask must outlive the call. Together with a
/// mask function, which need not be the one that the blocks were made of, a pair is visible where
/// both show it; the function is evaluated in every visible block.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// heed::block_mask mask(1, 1, 10, 10, 5, 5);  // one batch entry, one head; 2 x 2 blocks
/// mask.show(0, 0, 0, 0);
/// mask.show(0, 0, 1, 1);
/// const auto out = heed::attention(x, x, x, {}, heed::blocks(mask));
/// @endcode
inline detail::blocks_term blocks(const block_mask& mask) { return {&mask}; }

/// Each query attends to the keys of a list alone, which an indexer has chosen (DeepSeek sparse
/// attention, DeepSeek-AI 2025): [batch, heads, n_q, k], of integers of 32 or 64 bits, -1 where a
/// list is shorter. batch and n_q are each 1 (the same for all) or the call's own; heads is 1, the
/// key/value heads or the query heads. The keys are gathered, all others are not looked at: the
/// time grows with n_q * k. 0 is the first key that the call has of the sequence, n_kv - 1 the
/// last, and any other number is refused. A key that is listed twice counts once, and so the result
/// is that of a mask, under all other terms, for which a key keeps its number. Query heads that
/// share a key/value head and a list share its gathered rows. Beside tables of relative positions
/// or a weight function the lists are that mask, at the price of all pairs. Not for gradients,
/// which take keep(mask).
///
/// @code
/// // 4 query heads on 1 key/value head: each of 3 queries sees 2 of 10 keys
/// std::vector<float> query(4 * 3 * 8, 0.1f), key(10 * 8, 0.5f), out(query.size());
/// const std::vector<std::int32_t> lists{0, 3, 9, 4, 7, -1};
/// heed::workspace memory;
/// heed::multi_head_attention_into(heed::bhnd(query.data(), 1, 4, 3, 8),
///                                 heed::bhnd(key.data(), 1, 1, 10, 8),
///                                 heed::bhnd(key.data(), 1, 1, 10, 8),
///                                 heed::bhnd(out.data(), 1, 4, 3, 8), {},
///                                 heed::attention_options(), memory,
///                                 heed::selected_keys(heed::bhnd(lists.data(), 1, 1, 3, 2)));
/// @endcode
template <typename Integer>
detail::selected_keys_term selected_keys(const tensor_view<Integer>& lists) {
  static_assert(detail::is_index<std::remove_const_t<Integer>>,
                "selected_keys takes integers of 32 or 64 bits (std::int32_t, heed::size_type)");
  constexpr size_type width{sizeof(Integer)};
  return {{reinterpret_cast<const unsigned char*>(lists.data), lists.batch, lists.heads, lists.rows,
           lists.cols, width * lists.batch_stride, width * lists.head_stride,
           width * lists.row_stride, width * lists.col_stride},
          width};
}

/// The same of a matrix k x n_q for every batch entry and head: column i, whose numbers are side by
/// side in an Eigen matrix, is the list of query i.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// Eigen::MatrixXi lists(3, 10);
/// for (int i = 0; i < 10; ++i) lists.col(i) << 0, i / 2, i;
/// const auto out = heed::attention(x, x, x, {}, heed::selected_keys(lists));
/// @endcode
template <typename Derived>
detail::selected_keys_term selected_keys(const Eigen::DenseBase<Derived>& lists) {
  const auto by_key = view(lists);
  auto by_query = by_key;
  by_query.rows = by_key.cols, by_query.row_stride = by_key.col_stride;
  by_query.cols = by_key.rows, by_query.col_stride = by_key.row_stride;
  return selected_keys(by_query);
}

// In the functions below b is the batch entry (the sequence, in a ragged batch), h the query head,
// i the query and j the key. i and j count rows within the call (within the sequence, in a ragged
// batch). In a call on a cache they count tokens of the sequence from its first, including those
// that a rolling cache has dropped, so that a prompt in chunks gives the result of one call; see
// cached_attention_into. Only pairs that causal, window and lengths leave visible reach them: i - j
// may index a table of the window. A function may throw: when all threads have returned the call
// throws the first exception. Inputs and caches are then as they were, outputs are unspecified, and
// the workspace can be used again. Threads call the functions at the same time.

/// The user's score: function(score, b, h, i, j) -> score is applied after scale, softcap, bias and
/// ALiBi (FlexAttention's score_mod). A score of -infinity masks the pair. It must depend on its
/// arguments alone, and outlive the call. It may also be called for pairs that other masks than
/// causal, window and lengths hide.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// using heed::size_type;
/// const auto fade = [](float score, size_type, size_type, size_type i, size_type j) {
///   return score - 0.1f * float(i - j);
/// };
/// heed::attention_options options;
/// options.causal = heed::causal::bottom_right;
/// const auto out = heed::attention(x, x, x, options, heed::score_function(fade));
/// @endcode
template <typename Function>
detail::score_function_term<Function> score_function(const Function& function) {
  return {&function};
}

/// The same for calls that take a gradient, which need to know how the new score changes with the
/// old one: derivative(score, b, h, i, j) is d function / d score at the score that the function
/// gets. It must outlive the call too. The forward call ignores it.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// using heed::size_type;
/// const auto square = [](float score, size_type, size_type, size_type, size_type) {
///   return score * score;
/// };
/// const auto twice = [](float score, size_type, size_type, size_type, size_type) {
///   return 2 * score;
/// };
/// const auto out = heed::attention(x, x, x, {}, heed::score_function(square, twice));
/// @endcode
template <typename Function, typename Derivative>
detail::score_function_term<Function, Derivative> score_function(const Function& function,
                                                                 const Derivative& derivative) {
  return {&function, &derivative};
}

/// The user's change of weights: function(weight, b, h, i, j) -> the weight under which value j is
/// summed (prob_mod of ONNX's FlexAttention), which need not be positive; rows are not divided by
/// their sums again. It comes before dropout, and the log-sum-exp is that of the softmax. A hidden
/// pair keeps its weight of 0 and a row that sees no key its 0: the function is not called. It must
/// depend on its arguments alone, and outlive the call, which goes through the keys twice: first
/// for the sum of each row. Results over parts of the keys cannot be merged. Not for calls that
/// take a gradient.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// using heed::size_type;
/// const auto less_than_mean = [](float weight, size_type, size_type, size_type, size_type) {
///   return weight - 0.1f;
/// };
/// const auto out = heed::attention(x, x, x, {}, heed::weight_function(less_than_mean));
/// @endcode
template <typename Function>
detail::weight_function_term<Function> weight_function(const Function& function) {
  return {&function};
}

/// The user's mask: function(b, h, i, j) -> true where query i may see key j (FlexAttention's
/// mask_mod). It must depend on its arguments alone, and outlive the call. It may also be called
/// for pairs that keep, keep_bits, bias or blocks hide.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// using heed::size_type;
/// const auto same_document = [](size_type, size_type, size_type i, size_type j) {
///   return i / 4 == j / 4;
/// };
/// const auto out = heed::attention(x, x, x, {}, heed::mask_function(same_document));
/// @endcode
template <typename Function>
detail::mask_function_term<Function> mask_function(const Function& function) {
  return {&function, nullptr};
}

/// The same with the block mask of block_mask::of(function, ...): hidden blocks cost nothing, and
/// in wholly visible blocks the function is not evaluated. The blocks must be those of this very
/// function (or made by show, which makes no block wholly visible), and outlive the call; a call
/// has one block mask, so blocks(...) may not be given as well. Not for calls on a cache, whose
/// functions count tokens and whose blocks count rows.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// using heed::size_type;
/// const auto same_document = [](size_type, size_type, size_type i, size_type j) {
///   return i / 4 == j / 4;
/// };
/// const auto found = heed::block_mask::of(same_document, 1, 1, 10, 10, 4, 4);
/// const auto out = heed::attention(x, x, x, {}, heed::mask_function(same_document, found));
/// @endcode
template <typename Function>
detail::mask_function_term<Function> mask_function(const Function& function,
                                                   const block_mask& blocks) {
  return {&function, &blocks};
}

HEED_NAMESPACE_END
