#pragma once

#include <heed/block_mask.hpp>
#include <heed/detail/given.hpp>
#include <heed/detail/params.hpp>
#include <heed/detail/score_block.hpp>
#include <heed/dropout.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>

// The terms of a call as the library keeps them, and what their functions and masks do with a block
// of scores.

HEED_NAMESPACE_BEGIN
namespace detail {

/// A term that is one number per query head.
template <typename Scalar, typename Tag>
struct head_term {
  const Scalar* values = nullptr;
  size_type count = 0;
};
template <typename Scalar, typename Tag>
memory_region region_of(const head_term<Scalar, Tag>& term) {
  return {term.values, sizeof(Scalar), {1, 1, 1, term.count}, {0, 0, 0, 1}};
}
struct sinks_tag;
struct logit_scales_tag;

/// A table of relative positions, [1, heads, left + 1 + right, head_dim]; one head is for all.
template <typename Scalar, typename Tag>
struct relative_term {
  tensor_view<const Scalar> view;
  size_type left = 0, right = 0;

  relative_rows<Scalar> head(size_type h) const {
    const matrix_view<const Scalar> table = broadcast_head(view, 0, h);
    return {table.data, table.row_stride, table.cols, left, right};
  }
};
struct relative_keys_tag;
struct relative_values_tag;

/// The slopes of ALiBi, [batch, heads, 1, 1]; a batch of 1 is the same for all.
template <typename Scalar>
struct alibi_term {
  tensor_view<const Scalar> view;
};

// A term of `view.batch` batch entries that repeats serves a call of `times` as many.
struct keep_term {
  tensor_view<const bool> view;
  size_type times = 1;
};
struct keep_bytes_term {
  tensor_view<const std::uint8_t> view;
  size_type times = 1;
};
struct keep_bits_term {
  tensor_view<const std::uint8_t> view;
  size_type n_kv = 0;
};
template <typename Scalar>
struct bias_term {
  tensor_view<const Scalar> view;
  size_type times = 1;
};
/// A view for each sequence, [1, heads, n_q, n_kv] of its own, each 1 or the sequence's.
template <typename Scalar, typename Purpose>
struct each_term {
  const tensor_view<Scalar>* views = nullptr;
  size_type count = 0;

  matrix_view<Scalar> head(size_type b, size_type h) const {
    return broadcast_head(views[b], 0, h);
  }
};
/// A bias for each sequence.
template <typename Scalar>
using bias_each_term = each_term<const Scalar, bias_term<Scalar>>;
/// Whether such numbers can be added to scores: those of their type and, to floats, of 16 bits.
template <typename Number, typename Acc>
constexpr bool adds_to = std::is_same<accumulator_t<Number>, Acc>::value;
/// A term of such numbers, of whichever type.
template <typename Acc, template <typename> class Term>
struct bias_of_any {
  std::optional<Term<Acc>> scores;
  std::optional<Term<Eigen::half>> half;
  std::optional<Term<Eigen::bfloat16>> bfloat16;

  explicit operator bool() const { return scores || half || bfloat16; }
  /// The place of a term of that type.
  auto& of(const Term<Acc>&) { return scores; }
  auto& of(const Term<Eigen::half>&) { return half; }
  auto& of(const Term<Eigen::bfloat16>&) { return bfloat16; }
  /// Calls call(term) with the one that there is.
  template <typename Visit>
  void visit(const Visit& call) const {
    if (scores) call(*scores);
    if (half) call(*half);
    if (bfloat16) call(*bfloat16);
  }
};
/// How kernels are told.
template <typename Scalar>
constexpr bias_numbers bias_numbers_of =
    std::is_same<Scalar, Eigen::half>::value       ? bias_numbers::half
    : std::is_same<Scalar, Eigen::bfloat16>::value ? bias_numbers::bfloat16
                                                   : bias_numbers::scores;
/// What a call writes is apart from the one that there is.
template <typename Acc, template <typename> class Term>
void check_other(const char* function, const named_region& first, const named_region& second,
                 const char* whose, const bias_of_any<Acc, Term>& bias) {
  bias.visit([&](const auto& term) { check_other(function, first, second, whose, term); });
}
/// What a call writes is apart from all of the views.
template <typename Scalar, typename Purpose>
void check_other(const char* function, const named_region& first, const named_region& second,
                 const char* whose, const each_term<Scalar, Purpose>& term) {
  for (size_type b = 0; b < term.count; ++b)
    check_other(function, first, second, whose, term.views[b]);
}
/// Bits of all sequences, one after the other: those of a sequence begin at a byte.
struct packed_bits_term {
  const std::uint8_t* bytes = nullptr;
  size_type count = 0;
  index_list starts;
};
inline memory_region region_of(const packed_bits_term& term) {
  return {term.bytes, 1, {1, 1, 1, term.count}, {0, 0, 0, 1}};
}
/// The keys that a query may see: integers of `width` bytes, `step` bytes apart; -1 is none.
struct key_list {
  const unsigned char* data = nullptr;
  size count = 0, step = 0, width = 0;

  size operator[](size n) const { return integers{data + n * step, width}[0]; }
};
/// Those of the queries of one head.
struct key_lists {
  matrix_view<const unsigned char> view;  // as in selected_keys_term
  size width = 0;

  key_list of(size i) const {
    return {view.data + i * view.row_stride, view.cols, view.col_stride, width};
  }
};
/// Those of a call: the first bytes of integers [batch, heads, n_q, k]; strides count bytes.
struct selected_keys_term {
  tensor_view<const unsigned char> view;
  size_type width = 0;
};
inline memory_region region_of(const selected_keys_term& term) {
  const auto& v = term.view;
  return {v.data,
          static_cast<std::size_t>(term.width),
          {v.batch, v.heads, v.rows, v.cols},
          {v.batch_stride / term.width, v.head_stride / term.width, v.row_stride / term.width,
           v.col_stride / term.width}};
}
/// Where the sequences of a ragged batch begin; without packs_keys, keys are those of a cache.
struct starts_term {
  index_list queries, keys;
  bool packs_keys = true;
};
struct key_lengths_term {
  index_list lengths;
};
struct query_lengths_term {
  index_list lengths;
};
struct first_keys_term {
  index_list rows;
};
/// Where the largest score of each head goes: [batch, heads, 1, 1]; a batch of 1 is for all.
template <typename Scalar>
struct max_logits_term {
  tensor_view<Scalar> view;
};
struct blocks_term {
  const block_mask* mask = nullptr;
};
template <typename Function, typename Derivative = void>
struct score_function_term {
  const Function* function;
  const Derivative* derivative = nullptr;  // void: the call takes no gradient
};
template <typename Function>
struct weight_function_term {
  const Function* function;
};
template <typename Function>
struct mask_function_term {
  const Function* function;
  const block_mask* blocks = nullptr;  // of the function: what it says of whole blocks
};

// The context of a hook is the term, not the function: a pointer to a plain function is no pointer
// to void.
template <typename Term, typename Acc>
void run_score_function(const void* context, size b, size h, const visible_block<Acc>& block) {
  const auto& function = *static_cast<const Term*>(context)->function;
  update_block(block,
               [&](const Acc& score, size i, size j) { return Acc(function(score, b, h, i, j)); });
}
template <typename Term, typename Acc>
void run_score_derivative(const void* context, size b, size h, const visible_block<Acc>& block) {
  const auto& derivative = *static_cast<const Term*>(context)->derivative;
  update_block(
      block, [&](const Acc& score, size i, size j) { return Acc(derivative(score, b, h, i, j)); });
}

/// A pair that is hidden has a weight of -1, which becomes 0; no softmax makes one.
template <typename Function, typename Acc>
void run_weight_function(const void* context, size b, size h, const visible_block<Acc>& block) {
  const Function& function = *static_cast<const weight_function_term<Function>*>(context)->function;
  visible_block<Acc> all = block;
  all.band = {};
  update_block(all, [&](const Acc& weight, size i, size j) {
    return weight < Acc(0) ? Acc(0) : Acc(function(weight, b, h, i, j));
  });
}

/// Gives every pair that `shows(i, j)` denies a score of -infinity.
template <typename Acc, typename Shows>
void hide(const visible_block<Acc>& block, const Shows& shows) {
  const Acc hidden(-std::numeric_limits<Acc>::infinity());
  update_block(block,
               [&](const Acc& score, size i, size j) { return shows(i, j) ? score : hidden; });
}
template <typename Function, typename Acc>
void run_mask_function(const void* context, size b, size h, const visible_block<Acc>& block) {
  const Function& function = *static_cast<const mask_function_term<Function>*>(context)->function;
  hide(block, [&](size i, size j) { return bool(function(b, h, i, j)); });
}
/// The part of head (b, h) in a term of [batch, heads, ...], each 1 or the call's own; the batch
/// may also repeat.
template <typename Scalar>
matrix_view<Scalar> term_head(const tensor_view<Scalar>& view, size b, size h) {
  return broadcast_head(view, b % view.batch, h);
}
template <typename Acc>
void run_keep_bits(const void* context, size b, size h, const visible_block<Acc>& block) {
  const matrix_view<const std::uint8_t> bytes =
      term_head(static_cast<const keep_bits_term*>(context)->view, b, h);
  hide(block, [&](size i, size j) { return (bytes(i, j / 8) >> (j % 8) & 1) != 0; });
}
template <typename Acc>
void run_keep_bytes(const void* context, size b, size h, const visible_block<Acc>& block) {
  const matrix_view<const std::uint8_t> bytes =
      term_head(static_cast<const keep_bytes_term*>(context)->view, b, h);
  hide(block, [&](size i, size j) { return bytes(i, j) != 0; });
}

template <typename Acc>
void run_packed_bits(const packed_bits_term& term, size b, size n_kv,
                     const visible_block<Acc>& block) {
  const std::uint8_t* const bytes = term.bytes + term.starts[b];
  hide(block, [&](size i, size j) {
    const size bit = i * n_kv + j;
    return (bytes[bit / 8] >> (bit % 8) & 1) != 0;
  });
}

template <typename Acc>
void hide_unselected(const key_lists& lists, const visible_block<Acc>& block) {
  for (size i = block.i_begin; i < block.i_end; ++i)
    for (size j0 = block.j_begin; j0 < block.j_end; j0 += 64) {  // as many as an integer has bits
      const key_list list = lists.of(i);
      std::uint64_t listed = 0;
      for (size n = 0; n < list.count; ++n)
        if (const size at = list[n] - j0; at >= 0 && at < 64) listed |= std::uint64_t{1} << at;
      visible_block<Acc> part = block;
      part.data += (i - block.i_begin) * block.query_step + (j0 - block.j_begin) * block.key_step;
      part.i_begin = i, part.i_end = i + 1;
      part.j_begin = j0, part.j_end = (std::min)(j0 + 64, block.j_end);
      hide(part, [&](size, size j) { return (listed >> (j - j0) & 1) != 0; });
    }
}

/// All terms of one call, typed for its accumulator.
template <typename Acc>
struct terms {
  std::optional<keep_term> keep;
  std::optional<keep_bytes_term> keep_bytes;
  std::optional<keep_bits_term> keep_bits;
  bias_of_any<Acc, bias_term> bias;
  std::optional<each_term<const bool, keep_term>> keep_each;
  bias_of_any<Acc, bias_each_term> bias_each;
  std::optional<packed_bits_term> packed_bits;
  void (*packed_mask)(const packed_bits_term&, size b, size n_kv,
                      const visible_block<Acc>&) = nullptr;
  std::optional<relative_term<Acc, relative_keys_tag>> relative_keys;
  std::optional<relative_term<Acc, relative_values_tag>> relative_values;
  std::optional<selected_keys_term> selected;
  void (*selected_mask)(const key_lists&, const visible_block<Acc>&) = nullptr;
  std::optional<alibi_term<Acc>> alibi;
  std::optional<head_term<Acc, sinks_tag>> sinks;
  std::optional<head_term<Acc, logit_scales_tag>> logit_scales;
  std::optional<index_list> query_lengths, key_lengths, first_keys;
  std::optional<max_logits_term<Acc>> max_logits;
  std::optional<starts_term> starts;
  const block_mask* blocks = nullptr;           // of the call
  const block_mask* function_blocks = nullptr;  // of its mask function
  dropout_term dropout;
  // The hooks of the terms that work on whole blocks. Of a term that no call has, nothing is
  // compiled.
  pair_hook<Acc> score_function, score_derivative, mask_function, bits_mask, bytes_mask,
      weight_function, weight_dropout;

  void add(const keep_term& term) { keep = term; }
  void add(const keep_bytes_term& term) {
    keep_bytes = term;
    bytes_mask = {&run_keep_bytes<Acc>, &term};
  }
  void add(const keep_bits_term& term) {
    keep_bits = term;
    bits_mask = {&run_keep_bits<Acc>, &term};
  }
  template <typename Number, std::enable_if_t<adds_to<Number, Acc>, int> = 0>
  void add(const bias_term<Number>& term) {
    bias.of(term) = term;
  }
  template <typename Number, std::enable_if_t<adds_to<Number, Acc>, int> = 0>
  void add(const bias_each_term<Number>& term) {
    bias_each.of(term) = term;
  }
  void add(const each_term<const bool, keep_term>& term) { keep_each = term; }
  void add(const packed_bits_term& term) {
    packed_bits = term;
    packed_mask = &run_packed_bits<Acc>;
  }
  void add(const relative_term<Acc, relative_keys_tag>& term) { relative_keys = term; }
  void add(const relative_term<Acc, relative_values_tag>& term) { relative_values = term; }
  void add(const selected_keys_term& term) {
    selected = term;
    selected_mask = &hide_unselected<Acc>;
  }
  void add(const alibi_term<Acc>& term) { alibi = term; }
  void add(const head_term<Acc, sinks_tag>& term) { sinks = term; }
  void add(const head_term<Acc, logit_scales_tag>& term) { logit_scales = term; }
  void add(const starts_term& term) { starts = term; }
  void add(const query_lengths_term& term) { query_lengths = term.lengths; }
  void add(const key_lengths_term& term) { key_lengths = term.lengths; }
  void add(const first_keys_term& term) { first_keys = term.rows; }
  void add(const max_logits_term<Acc>& term) { max_logits = term; }
  void add(const blocks_term& term) { blocks = term.mask; }
  void add(const dropout_term& term) {
    dropout = term;
    if (term.probability > 0) weight_dropout = {&run_dropout<Acc>, &term};
  }
  template <typename Function, typename Derivative>
  void add(const score_function_term<Function, Derivative>& term) {
    using given = score_function_term<Function, Derivative>;
    static_assert(
        std::is_invocable_r<Acc, const Function&, Acc, size_type, size_type, size_type,
                            size_type>::value,
        "a score function is called as function(score, b, h, i, j) and returns the new score");
    score_function = {&run_score_function<given, Acc>, &term};
    if constexpr (!std::is_void<Derivative>::value) {
      static_assert(std::is_invocable_r<Acc, const Derivative&, Acc, size_type, size_type,
                                        size_type, size_type>::value,
                    "the derivative of a score function is called as derivative(score, b, h, i, "
                    "j) and returns how fast the new score grows with the score");
      score_derivative = {&run_score_derivative<given, Acc>, &term};
    }
  }
  template <typename Function>
  void add(const weight_function_term<Function>& term) {
    static_assert(std::is_invocable_r<Acc, const Function&, Acc, size_type, size_type, size_type,
                                      size_type>::value,
                  "a weight function is called as function(weight, b, h, i, j) and returns the new "
                  "weight");
    weight_function = {&run_weight_function<Function, Acc>, &term};
  }
  template <typename Function>
  void add(const mask_function_term<Function>& term) {
    static_assert(std::is_invocable_r<bool, const Function&, size_type, size_type, size_type,
                                      size_type>::value,
                  "a mask function is called as function(b, h, i, j) and returns true where query "
                  "i may see key j");
    mask_function = {&run_mask_function<Function, Acc>, &term};
    function_blocks = term.blocks;
  }
  template <typename Other>
  void add(const Other&) {
    static_assert(sizeof(Other) == 0,
                  "not a term of attention, or one of another scalar type: keep takes bool; bias, "
                  "alibi, sinks and logit_scales take the type "
                  "of the scores (float for float, half and bfloat16; double for double), a bias "
                  "of float scores also half and bfloat16");
  }

  /// Whether a term looks at keys by their places in a block of them.
  bool looks_at_places() const { return relative_keys || relative_values || weight_function.run; }
  /// Whether a term is one that the forward kernel alone knows.
  bool takes_blocks() const { return sparse() || looks_at_places(); }
  /// Whether the keys of lists are gathered; else the lists are a mask.
  bool gathers_keys() const { return selected && !looks_at_places(); }
  /// Whether a term has a size for each query and key of a padded batch.
  bool counts_pairs() const { return keep || keep_bytes || keep_bits || bias || sparse(); }
  /// The one block mask of the call; null: none.
  const block_mask* sparse() const { return function_blocks ? function_blocks : blocks; }
};

// Two functions for one purpose are two types, but one term; so are two masks.
template <>
struct purpose_of<keep_bytes_term> {
  using type = keep_term;
};
template <typename Scalar>
struct purpose_of<bias_term<Scalar>> {
  using type = bias_term<void>;
};
template <typename Scalar, typename Purpose>
struct purpose_of<each_term<Scalar, Purpose>> : purpose_of<Purpose> {};
template <typename Function, typename Derivative>
struct purpose_of<score_function_term<Function, Derivative>> {
  using type = score_function_term<void>;
};
template <typename Function>
struct purpose_of<weight_function_term<Function>> {
  using type = weight_function_term<void>;
};
template <typename Function>
struct purpose_of<mask_function_term<Function>> {
  using type = mask_function_term<void>;
};

}  // namespace detail
HEED_NAMESPACE_END
