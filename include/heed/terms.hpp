#pragma once

#include <heed/block_mask.hpp>
#include <heed/detail/params.hpp>
#include <heed/dropout.hpp>
#include <heed/tensor.hpp>

#include <Eigen/Core>
#include <type_traits>

HEED_NAMESPACE_BEGIN

// What may follow the options of a call, in any order, each at most once:
//   attention(query, key, value, options, keep(mask), alibi(slopes))
// A term looks at the caller's memory; it does not own it. A term made from an empty view or vector is as good as absent.
// Masks compose by AND, with each other and with causal and window.

namespace detail {

/// A term that is one number a query head.
template <typename Scalar, typename Tag>
struct head_term {
  const Scalar* values = nullptr;
  index count = 0;
};
struct alibi_tag;
struct sinks_tag;
struct logit_scales_tag;

struct keep_term {
  tensor_view<const bool> view;
};
struct keep_bits_term {
  tensor_view<const std::uint8_t> view;
  index n_kv = 0;
};
template <typename Scalar>
struct bias_term {
  tensor_view<const Scalar> view;
};
struct key_lengths_term {
  index_list lengths;
};
struct blocks_term {
  const block_mask* mask = nullptr;
};
template <typename Function>
struct score_function_term {
  const Function* function;
};
template <typename Function>
struct mask_function_term {
  const Function* function;
};

template <typename Function, typename Acc>
void run_score_function(const void* context, size b, size h, const score_block<Acc>& block) {
  const Function& function = *static_cast<const Function*>(context);
  for (size j = block.j_begin; j < block.j_end; ++j)
    for (size i = block.i_begin; i < block.i_end; ++i) {
      Acc& score = block.data[(i - block.i_begin) * block.query_step + (j - block.j_begin) * block.key_step];
      score = function(score, b, h, i, j);
    }
}

/// Gives every pair that `shows(b, h, i, j)` denies a score of -infinity.
template <typename Acc, typename Shows>
void hide(const score_block<Acc>& block, const Shows& shows) {
  for (size j = block.j_begin; j < block.j_end; ++j)
    for (size i = block.i_begin; i < block.i_end; ++i)
      if (!shows(i, j))
        block.data[(i - block.i_begin) * block.query_step + (j - block.j_begin) * block.key_step] = Acc(-std::numeric_limits<Acc>::infinity());
}
template <typename Function, typename Acc>
void run_mask_function(const void* context, size b, size h, const score_block<Acc>& block) {
  const Function& function = *static_cast<const Function*>(context);
  hide(block, [&](size i, size j) { return function(b, h, i, j); });
}

/// All terms of one call, typed for its accumulator.
template <typename Acc>
struct terms {
  tensor_view<const bool> keep;
  keep_bits_term keep_bits;
  tensor_view<const Acc> bias;
  head_term<Acc, alibi_tag> alibi;
  head_term<Acc, sinks_tag> sinks;
  head_term<Acc, logit_scales_tag> logit_scales;
  index_list key_lengths;
  const block_mask* blocks = nullptr;
  dropout_term dropout;
  block_hook<Acc> score_function, mask_function;

  void add(const keep_term& term) { keep = term.view; }
  void add(const keep_bits_term& term) { keep_bits = term; }
  void add(const bias_term<Acc>& term) { bias = term.view; }
  void add(const head_term<Acc, alibi_tag>& term) { alibi = term; }
  void add(const head_term<Acc, sinks_tag>& term) { sinks = term; }
  void add(const head_term<Acc, logit_scales_tag>& term) { logit_scales = term; }
  void add(const key_lengths_term& term) { key_lengths = term.lengths; }
  void add(const blocks_term& term) { blocks = term.mask; }
  void add(const dropout_term& term) { dropout = term; }
  template <typename Function>
  void add(const score_function_term<Function>& term) {
    static_assert(std::is_invocable_r<Acc, const Function&, Acc, index, index, index, index>::value,
                  "a score function is called as function(score, b, h, i, j) and returns the new score");
    score_function = {&run_score_function<Function, Acc>, term.function};
  }
  template <typename Function>
  void add(const mask_function_term<Function>& term) {
    static_assert(std::is_invocable_r<bool, const Function&, index, index, index, index>::value,
                  "a mask function is called as function(b, h, i, j) and returns true where query i may see key j");
    mask_function = {&run_mask_function<Function, Acc>, term.function};
  }
  template <typename Other>
  void add(const Other&) {
    static_assert(sizeof(Other) == 0,
                  "not a term of attention, or one of another scalar type: keep takes bool; bias, alibi, sinks and logit_scales take the type "
                  "of the scores (float for float, half and bfloat16; double for double)");
  }

  /// The masks that are asked pair by pair: the bits of keep_bits, then the mask function.
  void run_masks(size b, size h, const score_block<Acc>& block) const {
    if (keep_bits.view.data) {
      const tensor_view<const std::uint8_t>& bytes = keep_bits.view;
      hide(block, [&](size i, size j) {
        const std::uint8_t byte = bytes(bytes.batch == 1 ? 0 : b, bytes.heads == 1 ? 0 : h, bytes.rows == 1 ? 0 : i, j / 8);
        return (byte >> (j % 8) & 1) != 0;
      });
    }
    if (mask_function.run) mask_function.run(mask_function.context, b, h, block);
  }
  bool has_masks() const { return keep_bits.view.data || mask_function.run; }
  static void run_masks_hook(const void* context, size b, size h, const score_block<Acc>& block) {
    static_cast<const terms*>(context)->run_masks(b, h, block);
  }
};

template <typename... Terms>
constexpr bool all_different = true;
template <typename First, typename... Rest>
constexpr bool all_different<First, Rest...> = !(std::is_same<First, Rest>::value || ...) && all_different<Rest...>;

template <typename Tag, typename Vector>
head_term<typename Vector::Scalar, Tag> make_head_term(const Vector& values) {
  static_assert(is_eigen<Vector> && has_memory<Vector> && bool(Vector::IsVectorAtCompileTime), "this term takes an Eigen vector");
  static_assert(int(Vector::InnerStrideAtCompileTime) == 1, "this term takes a vector whose elements lie side by side");
  return {values.data(), values.size()};
}
}  // namespace detail

/// A boolean mask, true = attend. Its sizes [batch, heads, n_q, n_kv] are each 1 (the same for all) or the call's own.
inline detail::keep_term keep(const tensor_view<const bool>& mask) { return {mask}; }

/// A boolean mask n_q x n_kv (or 1 x n_kv, n_q x 1) for every batch entry and head, true = attend.
template <typename Derived>
detail::keep_term keep(const Eigen::DenseBase<Derived>& mask) {
  static_assert(std::is_same<typename Derived::Scalar, bool>::value, "keep takes a matrix of bool; a float mask is a bias");
  return {view(mask)};
}

/// A boolean mask of one bit a pair, 1 = attend: bytes [batch, heads, n_q, (n_kv + 7) / 8], bit j % 8 (the lowest first) of byte j / 8 is key j.
/// batch, heads and n_q are each 1 (the same for all) or the call's own.
inline detail::keep_bits_term keep_bits(const tensor_view<const std::uint8_t>& bytes, index n_kv) { return {bytes, n_kv}; }

/// Numbers added to the scores after scale and softcap; -infinity masks. Sizes broadcast as those of keep. The scalar is that of the scores.
template <typename Scalar>
detail::bias_term<std::remove_const_t<Scalar>> bias(const tensor_view<Scalar>& values) {
  return {values};
}

/// A bias n_q x n_kv (or 1 x n_kv, n_q x 1) for every batch entry and head.
template <typename Derived>
detail::bias_term<typename Derived::Scalar> bias(const Eigen::DenseBase<Derived>& values) {
  return {view(values)};
}

/// Attention with linear biases: adds -slope * |i + n_kv - n_q - j|, one slope a query head (Press, Smith and Lewis 2022).
template <typename Vector>
detail::head_term<typename Vector::Scalar, detail::alibi_tag> alibi(const Vector& slopes) {
  return detail::make_head_term<detail::alibi_tag>(slopes);
}

/// One logit a query head that joins the softmax's denominator and has no value (Xiao et al. 2024). A logit of -infinity is no sink.
template <typename Vector>
detail::head_term<typename Vector::Scalar, detail::sinks_tag> sinks(const Vector& logits) {
  return detail::make_head_term<detail::sinks_tag>(logits);
}

/// One factor a query head on the scale of the call.
template <typename Vector>
detail::head_term<typename Vector::Scalar, detail::logit_scales_tag> logit_scales(const Vector& factors) {
  return detail::make_head_term<detail::logit_scales_tag>(factors);
}

/// The number of valid keys of each batch entry, 0 to n_kv; what lies behind them is never read. Bottom-right alignment counts from them.
inline detail::key_lengths_term key_lengths(const index_list& lengths) { return {lengths}; }

/// A block-sparse mask; hidden blocks cost nothing. The mask must outlive the call.
inline detail::blocks_term blocks(const block_mask& mask) { return {&mask}; }

/// The user's own score: function(score, b, h, i, j) -> score is applied after scale, softcap, bias and ALiBi (FlexAttention's score_mod).
/// A score of -infinity masks the pair. It must depend on its arguments alone, and outlive the call.
template <typename Function>
detail::score_function_term<Function> score_function(const Function& function) {
  return {&function};
}

/// The user's own mask: function(b, h, i, j) -> true where query i may see key j (FlexAttention's mask_mod). It is asked for every pair of the
/// tiles that other masks leave; give block_mask::of(function, ...) as blocks as well, and tiles that it hides are skipped whole.
template <typename Function>
detail::mask_function_term<Function> mask_function(const Function& function) {
  return {&function};
}

HEED_NAMESPACE_END
