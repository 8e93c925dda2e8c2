#pragma once

// Features of a call, alone and in pairs, with inputs for them: what the tests that try every
// feature with every other share.

#include <heed/heed.hpp>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "example.hpp"

namespace testing {
namespace matrix {

using heed::bhnd;
using heed::tensor_view;

constexpr heed::size_type batch = 2, heads = 4;
constexpr double infinity = std::numeric_limits<double>::infinity();

enum class feature : unsigned {
  plain,
  scale,
  softcap,
  causal_top_left,
  causal_bottom_right,
  window,
  window_left,
  keep,
  keep_keys,
  keep_bits,
  bias,
  bias_infinite,
  alibi,
  alibi_of_entries,
  relative_keys,
  relative_values,
  sinks,
  logit_scales,
  key_lengths,
  first_keys,
  blocks,
  selected_keys,
  score_function,
  mask_function,
  mask_function_in_blocks,
  weight_function,
  dropout,
  grouped_heads,
  value_dim,
  strides,
  nan_inputs,
  count
};
inline const char* const names[] = {"plain",
                                    "scale",
                                    "softcap",
                                    "causal top_left",
                                    "causal bottom_right",
                                    "window",
                                    "window to the left",
                                    "keep",
                                    "keep of keys",
                                    "keep_bits",
                                    "bias",
                                    "bias with -infinity",
                                    "alibi",
                                    "alibi of each entry",
                                    "relative_keys",
                                    "relative_values",
                                    "sinks",
                                    "logit_scales",
                                    "key_lengths",
                                    "first_keys",
                                    "blocks",
                                    "selected_keys",
                                    "score_function",
                                    "mask_function",
                                    "mask_function in blocks",
                                    "weight_function",
                                    "dropout",
                                    "grouped heads",
                                    "d_v",
                                    "strides",
                                    "NaN"};

/// The features of one run.
struct combination {
  feature a, b;

  bool has(feature f) const { return a == f || b == f; }
  template <typename... Features>
  bool has_any(Features... all) const {
    return (has(all) || ...);
  }
  std::string name() const { return std::string(names[unsigned(a)]) + " + " + names[unsigned(b)]; }
  /// Two that are the same argument in two ways cannot be given together.
  bool possible() const {
    const auto both = [&](feature f, feature g) { return has(f) && has(g); };
    return !both(feature::causal_top_left, feature::causal_bottom_right) &&
           !both(feature::window, feature::window_left) &&
           !both(feature::keep, feature::keep_keys) &&
           !both(feature::alibi, feature::alibi_of_entries) &&
           !both(feature::first_keys, feature::blocks) &&
           !both(feature::first_keys, feature::mask_function_in_blocks) &&
           !both(feature::bias, feature::bias_infinite) &&
           !both(feature::blocks, feature::mask_function_in_blocks) &&
           !both(feature::mask_function, feature::mask_function_in_blocks);
  }
  /// Whether a backward call takes it.
  bool has_gradient() const {
    return !has_any(feature::relative_keys, feature::relative_values, feature::weight_function);
  }
  heed::size_type kv_heads() const { return has(feature::grouped_heads) ? heads / 2 : heads; }
  heed::size_type d_k() const { return 20; }
  heed::size_type d_v() const { return has(feature::value_dim) ? 9 : 20; }
};

/// Each feature alone (that is, with plain), or every two of them.
enum class combined { alone, in_pairs };
template <typename Visit>
void for_each_combination(combined how, const Visit& visit) {
  for (unsigned a = 0; a < (how == combined::alone ? 1 : unsigned(feature::count)); ++a)
    for (unsigned b = a + 1; b < unsigned(feature::count); ++b) {
      const combination features{feature(a),
                                 feature(b)};  // plain with a feature is that feature alone
      if (features.possible()) visit(features);
    }
}

struct sizes {
  heed::size_type n_q, n_kv;
};
/// A prompt; more queries than keys; one token; two tokens after a long text; and, of what a
/// feature alone is seen with, two chunks of a longer prompt.
constexpr sizes all_sizes[] = {{50, 140}, {60, 37}, {1, 140}, {2, 520}, {29, 119}, {21, 140}};
constexpr std::size_t sizes_of_pairs = 4;

/// Hides a block here, shows another, and cuts a third.
const auto shown = [](heed::size_type b, heed::size_type h, heed::size_type i, heed::size_type j) {
  const heed::size_type block = (i / 16 + j / 32 + h + b) % 3;
  return block == 1 || (block == 2 && (i + 2 * j) % 3 != 0);
};
/// Another score: exact in every type, and -infinity for some; and how fast it grows, which means
/// nothing where there is none.
const auto changed_score = [](auto score, heed::size_type b, heed::size_type h, heed::size_type i,
                              heed::size_type j) {
  using Acc = decltype(score);
  return (i + 3 * j + h) % 17 == 5
             ? Acc(-infinity)
             : Acc(score + Acc(0.125) * Acc((5 * i + 3 * j + 2 * h + b) % 11));
};
const auto changed_slope = [](auto score, heed::size_type, heed::size_type h, heed::size_type i,
                              heed::size_type j) {
  using Acc = decltype(score);
  return (i + 3 * j + h) % 17 == 5 ? std::numeric_limits<Acc>::quiet_NaN() : Acc(1);
};
/// Another weight, negative for some; of a hidden pair it would be seen.
const auto changed_weight = [](auto weight, heed::size_type b, heed::size_type h, heed::size_type i,
                               heed::size_type j) {
  using Acc = decltype(weight);
  return Acc(weight * Acc(0.25) * Acc((5 * i + 3 * j + 2 * h + b) % 7) - Acc(0x1p-10));
};

/// Distances that tables of relative positions tell apart.
constexpr heed::size_type rows_before = 9, rows_after = 5;

/// The numbers of the terms, in the type of the scores.
template <typename Acc>
struct term_numbers {
  heed::rows<Acc> bias, slopes, relative_keys, relative_values;
  heed::row_vector<Acc> sinks, factors;

  template <typename Other>
  term_numbers<Other> cast() const {
    return {bias.template cast<Other>(),          slopes.template cast<Other>(),
            relative_keys.template cast<Other>(), relative_values.template cast<Other>(),
            sinks.template cast<Other>(),         factors.template cast<Other>()};
  }
};

/// Where keys and values are stored, which decides how some terms are given.
enum class path { tensors, ragged, cache };

/// One combination at one size: options and terms.
struct setup {
  combination features;
  sizes shape;
  heed::attention_options options;
  term_numbers<float> numbers;
  mask keep;
  heed::rows<std::uint8_t> bits;
  heed::block_mask blocks;
  std::vector<heed::size_type> lengths, first_keys;
  std::vector<std::int32_t> lists;  // [batch, 1, n_q, listed]
  static constexpr heed::size_type listed = 30;

  setup(const combination& c, const sizes& s)
      : features(c), shape(s), blocks(batch, 1, s.n_q, s.n_kv, 16, 32), lengths{s.n_kv, s.n_kv} {
    if (c.has(feature::scale)) options.scale = 0.3;
    if (c.has(feature::softcap)) options.softcap = 1.5;
    if (c.has(feature::causal_top_left)) options.causal = heed::causal::top_left;
    if (c.has(feature::causal_bottom_right)) options.causal = heed::causal::bottom_right;
    if (c.has(feature::window)) options.window_left = 20, options.window_right = 7;
    if (c.has(feature::window_left)) options.window_left = 33;
    if (c.has(feature::bias))
      numbers.bias = random_rows<float>(1, batch * heads * s.n_q * s.n_kv, 21);
    if (c.has(feature::bias_infinite)) {  // one for all heads, column-major
      numbers.bias = random_rows<float>(s.n_kv, s.n_q, 22);
      numbers.bias = random_mask(s.n_kv, s.n_q, 23)
                         .select(numbers.bias, -std::numeric_limits<float>::infinity());
    }
    if (c.has(feature::alibi)) numbers.slopes = heed::alibi_slopes<float>(heads).transpose();
    if (c.has(feature::alibi_of_entries))
      // at most 1 / 4, as the paper has them: larger ones make scores whose rounding is all that is
      // left
      numbers.slopes = random_rows<float>(batch, heads, 28).cwiseAbs() * 0.14f;
    if (c.has(feature::relative_keys))  // of each head
      numbers.relative_keys =
          random_rows<float>(heads * (rows_before + 1 + rows_after), c.d_k(), 29);
    if (c.has(feature::relative_values))  // one for all
      numbers.relative_values = random_rows<float>(rows_before + 1 + rows_after, c.d_v(), 30);
    if (c.has(feature::sinks)) {
      numbers.sinks.resize(heads);
      numbers.sinks << 0.5f, -std::numeric_limits<float>::infinity(), -1, 2;
    }
    if (c.has(feature::logit_scales)) {
      numbers.factors.resize(heads);
      numbers.factors << 0.5f, 1.25f, -1, 0;
    }
    if (c.has(feature::keep)) {
      keep = random_mask(batch * s.n_q, s.n_kv, 24);
      keep.row(s.n_q / 2).setConstant(false);
    }
    if (c.has(feature::keep_keys)) keep = random_mask(heads, s.n_kv, 25);
    if (c.has(feature::keep_bits)) {
      std::mt19937 engine(26);
      bits.resize(heads * s.n_q, (s.n_kv + 7) / 8);
      for (heed::size_type n = 0; n < bits.size(); ++n)
        bits.data()[n] = static_cast<std::uint8_t>(engine() >> 24);
    }
    if (c.has(feature::key_lengths)) lengths[1] = s.n_kv * 2 / 3;
    if (c.has(feature::first_keys)) first_keys = {3, s.n_kv / 4};
    if (c.has(feature::blocks))
      for (heed::size_type b = 0; b < batch; ++b)
        for (heed::size_type q = 0; q < blocks.q_blocks(); ++q)
          for (heed::size_type kv = 0; kv < blocks.kv_blocks(); ++kv)
            if ((b + 2 * q + kv) % 3 != 0) blocks.show(b, 0, q, kv);
    if (c.has(feature::selected_keys)) {  // some twice, and a query in the middle has none
      std::mt19937 engine(29);
      for (heed::size_type b = 0; b < batch; ++b)
        for (heed::size_type i = 0; i < s.n_q; ++i)
          for (heed::size_type n = 0; n < listed; ++n) {
            const auto some = std::size_t(b);
            const heed::size_type keys =
                                      lengths[some] - (first_keys.empty() ? 0 : first_keys[some]),
                                  key = heed::size_type(engine()) % (keys + 3);
            lists.push_back(std::int32_t(key < keys && 2 * i != s.n_q ? key : -1));
          }
    }
    if (c.has(feature::mask_function_in_blocks))
      blocks = heed::block_mask::of(shown, batch, heads, s.n_q, s.n_kv, 16, 32);
  }

  /// call(terms...): of those that the combination has. Tensors have the lengths as a term; caches
  /// and ragged batches bring their own.
  template <typename Acc, typename Call>
  void with_terms(const term_numbers<Acc>& n, path kind, const Call& call) const {
    const bool told = kind == path::tensors && features.has(feature::key_lengths);
    const bool function_in_blocks = features.has(feature::mask_function_in_blocks),
               apart = kind == path::cache;
    const auto go = [&](const auto&... functions) {
      tensor_view<const Acc> bias_view;
      if (features.has(feature::bias))
        bias_view = bhnd(n.bias.data(), batch, heads, shape.n_q, shape.n_kv);
      if (features.has(feature::bias_infinite)) bias_view = heed::view(n.bias.transpose());
      tensor_view<const bool> keep_view;
      if (features.has(feature::keep))
        keep_view = bhnd(keep.data(), batch, heed::size_type(1), shape.n_q, shape.n_kv);
      if (features.has(feature::keep_keys))
        keep_view = bhnd(keep.data(), heed::size_type(1), heads, heed::size_type(1), shape.n_kv);
      tensor_view<const std::uint8_t> bits_view;
      if (features.has(feature::keep_bits))
        bits_view = bhnd(bits.data(), heed::size_type(1), heads, shape.n_q, bits.cols());
      tensor_view<const Acc> of_keys;
      if (features.has(feature::relative_keys))
        of_keys = bhnd(n.relative_keys.data(), heed::size_type(1), heads,
                       rows_before + 1 + rows_after, features.d_k());
      tensor_view<const std::int32_t> lists_view;
      if (features.has(feature::selected_keys))
        lists_view = kind == path::ragged
                         ? bhnd(lists.data(), 1, 1, batch * shape.n_q, listed)
                         : bhnd(lists.data(), batch, heed::size_type(1), shape.n_q, listed);
      const bool in_blocks = features.has(feature::blocks) || (function_in_blocks && apart);
      using heed::when;
      call(when(keep_view.data, heed::keep(keep_view)),
           when(bits_view.data, heed::keep_bits(bits_view, shape.n_kv)),
           when(bias_view.data, heed::bias(bias_view)),
           when(n.slopes.size() > 0, heed::alibi(n.slopes)),
           when(of_keys.data, heed::relative_keys(of_keys, rows_before, rows_after)),
           when(n.relative_values.size() > 0,
                heed::relative_values(n.relative_values, rows_before, rows_after)),
           when(n.sinks.size() > 0, heed::sinks(n.sinks)),
           when(n.factors.size() > 0, heed::logit_scales(n.factors)),
           when(told, heed::key_lengths(lengths)),
           when(!first_keys.empty(), heed::first_keys(first_keys)),
           when(in_blocks, heed::blocks(blocks)),
           when(features.has(feature::weight_function), heed::weight_function(changed_weight)),
           when(lists_view.data, heed::selected_keys(lists_view)),
           heed::dropout(features.has(feature::dropout) ? 0.3 : 0.0, 27), functions...);
    };
    const auto mask = function_in_blocks && !apart ? heed::mask_function(shown, blocks)
                                                   : heed::mask_function(shown);
    const bool masks = features.has(feature::mask_function) || function_in_blocks;
    if (features.has(feature::score_function)) {
      masks ? go(heed::score_function(changed_score, changed_slope), mask)
            : go(heed::score_function(changed_score, changed_slope));
    } else {
      masks ? go(mask) : go();
    }
  }
};

/// The inputs of one setup, [B,H,N,D].
template <typename Scalar>
struct inputs {
  using scalar = Scalar;
  heed::size_type n_q, n_kv, kv_heads, d_k, d_v;
  heed::rows<Scalar> query, key, value;

  explicit inputs(const setup& s)
      : n_q(s.shape.n_q),
        n_kv(s.shape.n_kv),
        kv_heads(s.features.kv_heads()),
        d_k(s.features.d_k()),
        d_v(s.features.d_v()) {
    query = random_rows<Scalar>(1, batch * heads * n_q * d_k, 1);
    key = random_rows<Scalar>(1, batch * kv_heads * n_kv * d_k, 2);
    value = random_rows<Scalar>(1, batch * kv_heads * n_kv * d_v, 3);
    if (!s.features.has(feature::nan_inputs)) return;
    const auto spoil = [](heed::rows<Scalar>& numbers, heed::size_type row, heed::size_type d,
                          double with) {
      numbers.middleCols(row * d, d).setConstant(Scalar(static_cast<float>(with)));
    };
    spoil(key, 5, d_k, std::numeric_limits<double>::quiet_NaN());
    spoil(key, (kv_heads + 1) * n_kv + 33, d_k, infinity);
    spoil(value, kv_heads * n_kv + 12, d_v, std::numeric_limits<double>::quiet_NaN());
  }
  template <typename Other>
  inputs<Other> cast() const {
    return {*this, query.template cast<Other>(), key.template cast<Other>(),
            value.template cast<Other>()};
  }
  template <typename Other>
  inputs(const inputs<Other>& shape, const heed::rows<Scalar>& q, const heed::rows<Scalar>& k,
         const heed::rows<Scalar>& v)
      : n_q(shape.n_q),
        n_kv(shape.n_kv),
        kv_heads(shape.kv_heads),
        d_k(shape.d_k),
        d_v(shape.d_v),
        query(q),
        key(k),
        value(v) {}

  tensor_view<const Scalar> query_view() const {
    return bhnd(query.data(), batch, heads, n_q, d_k);
  }
  tensor_view<const Scalar> key_view() const {
    return bhnd(key.data(), batch, kv_heads, n_kv, d_k);
  }
  tensor_view<const Scalar> value_view() const {
    return bhnd(value.data(), batch, kv_heads, n_kv, d_v);
  }
};

template <typename Scalar>
struct outputs {
  outputs(heed::size_type rows, heed::size_type d_v)
      : n_q(rows),
        dim(d_v),
        out(heed::rows<Scalar>::Constant(1, batch * heads * rows * d_v, Scalar(-7))),
        lse(1, batch * heads * rows) {
    lse.setConstant(heed::accumulator_t<Scalar>(-7));
  }
  explicit outputs(const inputs<Scalar>& in) : outputs(in.n_q, in.d_v) {}
  tensor_view<Scalar> out_view() { return bhnd(out.data(), batch, heads, n_q, dim); }
  tensor_view<heed::accumulator_t<Scalar>> lse_view() {
    return bhnd(lse.data(), batch, heads, n_q, heed::size_type(1));
  }

  heed::size_type n_q, dim;
  heed::rows<Scalar> out;
  heed::rows<heed::accumulator_t<Scalar>> lse;
};

/// Copies a tensor, element by element.
template <typename From, typename To>
void copy(const tensor_view<From>& from, const tensor_view<To>& to) {
  for (heed::size_type b = 0; b < from.batch; ++b)
    for (heed::size_type h = 0; h < from.heads; ++h)
      for (heed::size_type i = 0; i < from.rows; ++i)
        for (heed::size_type c = 0; c < from.cols; ++c) to(b, h, i, c) = To(from(b, h, i, c));
}

/// The same tensor in the order [B,D,N,H], with gaps.
template <typename Scalar>
struct spread {
  explicit spread(const tensor_view<const Scalar>& from)
      : numbers(heed::rows<Scalar>::Constant(1, 2 * from.batch * from.heads * from.rows * from.cols,
                                             Scalar(-7))) {
    view = {numbers.data(),
            from.batch,
            from.heads,
            from.rows,
            from.cols,
            2 * from.heads * from.rows * from.cols,
            2,
            2 * from.heads,
            2 * from.heads * from.rows};
    copy(from, view);
  }
  heed::rows<Scalar> numbers;
  tensor_view<Scalar> view;
};

/// One combination at one size.
template <typename Scalar>
struct sample {
  setup s;
  inputs<Scalar> in;

  sample(const combination& features, const sizes& shape) : s(features, shape), in(s) {}
  std::string name() const {
    return s.features.name() + ", n_q " + std::to_string(in.n_q) + ", n_kv " +
           std::to_string(in.n_kv);
  }
};

/// The sequences one after the other, without the padding past their keys: [1, H, total, d].
template <typename Scalar>
struct packed {
  packed(const tensor_view<const Scalar>& from, const std::vector<heed::size_type>& starts)
      : numbers(1, from.heads * starts.back() * from.cols) {
    view = bhnd(numbers.data(), heed::size_type(1), from.heads, starts.back(), from.cols);
    for (heed::size_type b = 0; b < from.batch; ++b)
      move(from, starts, b, [](const Scalar& outside, Scalar& inside) { inside = outside; });
  }
  /// Puts the sequences back.
  void unpack(const tensor_view<Scalar>& to, const std::vector<heed::size_type>& starts) {
    for (heed::size_type b = 0; b < to.batch; ++b)
      move(to, starts, b, [](Scalar& outside, const Scalar& inside) { outside = inside; });
  }
  template <typename Outside, typename Move>
  void move(const tensor_view<Outside>& outside, const std::vector<heed::size_type>& starts,
            heed::size_type b, const Move& each) const {
    const heed::size_type first = starts[std::size_t(b)], end = starts[std::size_t(b) + 1];
    for (heed::size_type h = 0; h < outside.heads; ++h)
      for (heed::size_type i = first; i < end; ++i)
        for (heed::size_type c = 0; c < outside.cols; ++c)
          each(outside(b, h, i - first, c), view(0, h, i, c));
  }
  heed::rows<Scalar> numbers;
  tensor_view<Scalar> view;
};

}  // namespace matrix
}  // namespace testing
