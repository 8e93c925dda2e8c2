// Every feature alone and with every other, on every path, against the reference in double on the
// same rounded inputs. Where a path does not offer a feature, the call must say so.

#include <heed/heed.hpp>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "support/checksum.hpp"
#include "support/example.hpp"
#include "support/isas.hpp"
#include "support/refusal.hpp"

using heed::bhnd;
using heed::tensor_view;

namespace {

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
  sinks,
  logit_scales,
  key_lengths,
  blocks,
  score_function,
  mask_function,
  mask_function_in_blocks,
  dropout,
  grouped_heads,
  value_dim,
  strides,
  nan_inputs,
  count
};
const char* const names[] = {"plain",
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
                             "sinks",
                             "logit_scales",
                             "key_lengths",
                             "blocks",
                             "score_function",
                             "mask_function",
                             "mask_function in blocks",
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
           !both(feature::bias, feature::bias_infinite) &&
           !both(feature::blocks, feature::mask_function_in_blocks) &&
           !both(feature::mask_function, feature::mask_function_in_blocks);
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
/// A prompt; more queries than keys; two chunks of a longer prompt; one token; two tokens after a
/// long text.
constexpr sizes all_sizes[] = {{50, 140}, {60, 37}, {29, 119}, {21, 140}, {1, 140}, {2, 600}};

/// Hides a block here, shows another, and cuts a third.
const auto shown = [](heed::size_type b, heed::size_type h, heed::size_type i, heed::size_type j) {
  const heed::size_type block = (i / 16 + j / 32 + h + b) % 3;
  return block == 1 || (block == 2 && (i + 2 * j) % 3 != 0);
};
/// Another score: exact in every type, and -infinity for some.
const auto changed_score = [](auto score, heed::size_type b, heed::size_type h, heed::size_type i,
                              heed::size_type j) {
  using Acc = decltype(score);
  return (i + 3 * j + h) % 17 == 5
             ? Acc(-infinity)
             : Acc(score + Acc(0.125) * Acc((5 * i + 3 * j + 2 * h + b) % 11));
};

/// The numbers of the terms, in the type of the scores.
template <typename Acc>
struct term_numbers {
  heed::rows<Acc> bias;
  heed::row_vector<Acc> slopes, sinks, factors;

  template <typename Other>
  term_numbers<Other> cast() const {
    return {bias.template cast<Other>(), slopes.template cast<Other>(),
            sinks.template cast<Other>(), factors.template cast<Other>()};
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
  testing::mask keep;
  heed::rows<std::uint8_t> bits;
  heed::block_mask blocks;
  std::vector<heed::size_type> lengths;

  setup(const combination& c, const sizes& s)
      : features(c), shape(s), blocks(batch, 1, s.n_q, s.n_kv, 16, 32), lengths{s.n_kv, s.n_kv} {
    if (c.has(feature::scale)) options.scale = 0.3;
    if (c.has(feature::softcap)) options.softcap = 1.5;
    if (c.has(feature::causal_top_left)) options.causal = heed::causal::top_left;
    if (c.has(feature::causal_bottom_right)) options.causal = heed::causal::bottom_right;
    if (c.has(feature::window)) options.window_left = 20, options.window_right = 7;
    if (c.has(feature::window_left)) options.window_left = 33;
    if (c.has(feature::bias))
      numbers.bias = testing::random_rows<float>(1, batch * heads * s.n_q * s.n_kv, 21);
    if (c.has(feature::bias_infinite)) {  // one for all heads, column-major
      numbers.bias = testing::random_rows<float>(s.n_kv, s.n_q, 22);
      numbers.bias = testing::random_mask(s.n_kv, s.n_q, 23)
                         .select(numbers.bias, -std::numeric_limits<float>::infinity());
    }
    if (c.has(feature::alibi)) numbers.slopes = heed::alibi_slopes<float>(heads);
    if (c.has(feature::sinks)) {
      numbers.sinks.resize(heads);
      numbers.sinks << 0.5f, -std::numeric_limits<float>::infinity(), -1, 2;
    }
    if (c.has(feature::logit_scales)) {
      numbers.factors.resize(heads);
      numbers.factors << 0.5f, 1.25f, -1, 0;
    }
    if (c.has(feature::keep)) {
      keep = testing::random_mask(batch * s.n_q, s.n_kv, 24);
      keep.row(s.n_q / 2).setConstant(false);
    }
    if (c.has(feature::keep_keys)) keep = testing::random_mask(heads, s.n_kv, 25);
    if (c.has(feature::keep_bits)) {
      std::mt19937 engine(26);
      bits.resize(heads * s.n_q, (s.n_kv + 7) / 8);
      for (heed::size_type n = 0; n < bits.size(); ++n)
        bits.data()[n] = static_cast<std::uint8_t>(engine() >> 24);
    }
    if (c.has(feature::key_lengths)) lengths[1] = s.n_kv * 2 / 3;
    if (c.has(feature::blocks))
      for (heed::size_type b = 0; b < batch; ++b)
        for (heed::size_type q = 0; q < blocks.q_blocks(); ++q)
          for (heed::size_type kv = 0; kv < blocks.kv_blocks(); ++kv)
            if ((b + 2 * q + kv) % 3 != 0) blocks.show(b, 0, q, kv);
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
      const bool in_blocks = features.has(feature::blocks) || (function_in_blocks && apart);
      using heed::when;
      call(when(keep_view.data, heed::keep(keep_view)),
           when(bits_view.data, heed::keep_bits(bits_view, shape.n_kv)),
           when(bias_view.data, heed::bias(bias_view)),
           when(n.slopes.size() > 0, heed::alibi(n.slopes)),
           when(n.sinks.size() > 0, heed::sinks(n.sinks)),
           when(n.factors.size() > 0, heed::logit_scales(n.factors)),
           when(told, heed::key_lengths(lengths)), when(in_blocks, heed::blocks(blocks)),
           heed::dropout(features.has(feature::dropout) ? 0.3 : 0.0, 27), functions...);
    };
    const auto mask = function_in_blocks && !apart ? heed::mask_function(shown, blocks)
                                                   : heed::mask_function(shown);
    const bool masks = features.has(feature::mask_function) || function_in_blocks;
    if (features.has(feature::score_function)) {
      masks ? go(heed::score_function(changed_score), mask)
            : go(heed::score_function(changed_score));
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
    query = testing::random_rows<Scalar>(1, batch * heads * n_q * d_k, 1);
    key = testing::random_rows<Scalar>(1, batch * kv_heads * n_kv * d_k, 2);
    value = testing::random_rows<Scalar>(1, batch * kv_heads * n_kv * d_v, 3);
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

/// What is right for each sample, and how wrong the reference in Scalar is over all of them: in a
/// few rows alone it may be right by luck.
template <typename Scalar>
struct judged {
  std::vector<outputs<testing::wider_t<Scalar>>> exact;
  testing::reference_error error;
};
/// reference(n, sample, inputs, numbers) -> outputs, in the type of the inputs.
template <typename Scalar, typename Reference>
judged<Scalar> judge(const std::vector<sample<Scalar>>& samples, const Reference& reference) {
  using wide = testing::wider_t<Scalar>;
  judged<Scalar> right;
  for (std::size_t n = 0; n < samples.size(); ++n) {
    const sample<Scalar>& one = samples[n];
    right.exact.push_back(
        reference(n, one, one.in.template cast<wide>(), one.s.numbers.template cast<wide>()));
    const outputs<Scalar> same =
        reference(n, one, one.in, one.s.numbers.template cast<heed::accumulator_t<Scalar>>());
    right.error.out =
        (std::max)(right.error.out, testing::max_error(same.out, right.exact.back().out));
    right.error.lse =
        (std::max)(right.error.lse, testing::max_error(same.lse, right.exact.back().lse));
  }
  return right;
}

const auto reference_on_tensors = [](std::size_t, const auto& one, const auto& in,
                                     const auto& numbers) {
  outputs<typename std::decay_t<decltype(in)>::scalar> result(in);
  one.s.with_terms(numbers, path::tensors, [&](const auto&... terms) {
    heed::reference_multi_head_attention_into(in.query_view(), in.key_view(), in.value_view(),
                                              result.out_view(), result.lse_view(), one.s.options,
                                              terms...);
  });
  return result;
};

/// Appends the keys of a setup in pieces that end anywhere, sequence by sequence.
template <typename Scalar, typename Append>
void append_in_pieces(const setup& s, const inputs<Scalar>& in, const Append& append) {
  const heed::size_type cuts[] = {0, s.shape.n_kv / 5, s.shape.n_kv / 2, s.shape.n_kv};
  for (int piece = 0; piece < 3; ++piece)
    for (heed::size_type b = 0; b < batch; ++b) {
      const heed::size_type first = (std::min)(cuts[piece], s.lengths[std::size_t(b)]),
                            end = (std::min)(cuts[piece + 1], s.lengths[std::size_t(b)]);
      const auto rows_of = [&](tensor_view<const Scalar> all) {
        all.data += b * all.batch_stride + first * all.row_stride;
        all.batch = 1;
        all.rows = end - first;
        return all;
      };
      append(b, rows_of(in.key_view()), rows_of(in.value_view()));
    }
}

template <typename Scalar, typename Stored>
heed::kv_cache<Stored> make_cache(const setup& s, const inputs<Scalar>& in) {
  heed::kv_cache<Stored> cache(batch, in.kv_heads, in.d_k, in.d_v, 16);
  append_in_pieces(s, in, [&](heed::size_type b, const auto& key, const auto& value) {
    cache.append(b, key, value);
  });
  return cache;
}
/// A paged cache of the two sequences 0 and 1, whose pages alternate.
template <typename Scalar, typename Stored>
heed::paged_kv_cache<Stored> make_paged_cache(const setup& s, const inputs<Scalar>& in) {
  constexpr heed::size_type page_rows = 24;
  heed::paged_kv_cache<Stored> cache(2 * (s.shape.n_kv / page_rows + 2), page_rows, in.kv_heads,
                                     in.d_k, in.d_v);
  for (heed::size_type b = 0; b < batch; ++b) cache.add_sequence();
  append_in_pieces(s, in, [&](heed::size_type b, const auto& key, const auto& value) {
    cache.append(b, key, value);
  });
  return cache;
}
const std::vector<heed::size_type> both_sequences{0, 1};

template <typename Scalar>
void check_right(const std::string& name, const outputs<Scalar>& got, const judged<Scalar>& right,
                 std::size_t n) {
  testing::checksum(name + ": out", got.out);
  testing::checksum(name + ": lse", got.lse);
  testing::check_error(got.out, right.exact[n].out, right.error.out);
  testing::check_error(got.lse, right.exact[n].lse, right.error.lse, 1);
}

/// Runs a path on every instruction set, and with the best one on three threads, which must change
/// nothing.
template <typename Scalar, typename Run>
void check_path(const char* name, const sample<Scalar>& one, const judged<Scalar>& right,
                std::size_t n, path kind, const Run& run) {
  heed::workspace memory;
  const auto numbers = one.s.numbers.template cast<heed::accumulator_t<Scalar>>();
  const auto run_with = [&](heed::isa target, int threads) {
    outputs<Scalar> got(one.in);
    heed::attention_options options = one.s.options;
    options.execution.target = target;
    options.execution.threads = threads;
    one.s.with_terms(numbers, kind,
                     [&](const auto&... terms) { run(got, options, memory, terms...); });
    return got;
  };
  INFO(name << ": " << one.name());
  for (const heed::isa target : testing::isas()) {
    INFO("on " << testing::name_of(target));
    check_right(name + (": " + one.name() + ": ") + testing::name_of(target), run_with(target, 1),
                right, n);
  }
  INFO("on three threads");
  const outputs<Scalar> alone = run_with(heed::best_isa(), 1),
                        three = run_with(heed::best_isa(), 3);
  CHECK(testing::max_error(three.out, alone.out) == 0);
  CHECK(testing::max_error(three.lse, alone.lse) == 0);
}

template <typename Scalar>
void check_tensors(const sample<Scalar>& one, const judged<Scalar>& right, std::size_t n) {
  const inputs<Scalar>& in = one.in;
  if (!one.s.features.has(feature::strides)) {
    check_path("tensors", one, right, n, path::tensors, [&](outputs<Scalar>& got, auto&&... rest) {
      heed::multi_head_attention_into(in.query_view(), in.key_view(), in.value_view(),
                                      got.out_view(), got.lse_view(), rest...);
    });
    return;
  }
  const spread<Scalar> query(in.query_view()), key(in.key_view()), value(in.value_view());
  check_path("strided tensors", one, right, n, path::tensors,
             [&](outputs<Scalar>& got, auto&&... rest) {
               const spread<Scalar> out(got.out_view());
               heed::multi_head_attention_into(query.view, key.view, value.view, out.view,
                                               got.lse_view(), rest...);
               copy(out.view, got.out_view());
             });
}

/// The tiled form in plain Eigen, which knows neither instruction sets nor threads.
template <typename Scalar>
void check_streaming(const sample<Scalar>& one, const judged<Scalar>& right, std::size_t n) {
  INFO("streaming: " << one.name());
  const inputs<Scalar>& in = one.in;
  outputs<Scalar> got(in);
  one.s.with_terms(one.s.numbers.template cast<heed::accumulator_t<Scalar>>(), path::tensors,
                   [&](const auto&... terms) {
                     heed::detail::streaming(heed::detail::make_problem<Scalar>(
                         "streaming", in.query_view(), in.key_view(), in.value_view(),
                         got.out_view(), got.lse_view(), one.s.options, terms...));
                   });
  check_right("streaming: " + one.name(), got, right, n);
}

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

template <typename Scalar>
void check_ragged(const sample<Scalar>& one, const judged<Scalar>& right, std::size_t n) {
  using Acc = heed::accumulator_t<Scalar>;
  const inputs<Scalar>& in = one.in;
  const std::vector<heed::size_type> query_starts{0, in.n_q, 2 * in.n_q},
      key_starts{0, one.s.lengths[0], one.s.lengths[0] + one.s.lengths[1]};
  const packed<Scalar> query(in.query_view(), query_starts), key(in.key_view(), key_starts),
      value(in.value_view(), key_starts);
  const auto run = [&](outputs<Scalar>& got, const heed::attention_options& options,
                       heed::workspace& memory, const auto&... terms) {
    packed<Scalar> out(got.out_view(), query_starts);
    packed<Acc> lse(got.lse_view(), query_starts);
    heed::ragged_attention_into(query.view, key.view, value.view, out.view, lse.view, query_starts,
                                key_starts, options, memory, terms...);
    out.unpack(got.out_view(), query_starts);
    lse.unpack(got.lse_view(), query_starts);
  };
  if (!one.s.features.has_any(feature::keep, feature::keep_keys, feature::keep_bits, feature::bias,
                              feature::bias_infinite, feature::blocks,
                              feature::mask_function_in_blocks))
    return check_path("ragged", one, right, n, path::ragged, run);
  INFO("ragged: " << one.name());
  outputs<Scalar> got(in);
  heed::workspace memory;
  one.s.with_terms(one.s.numbers.template cast<Acc>(), path::ragged, [&](const auto&... terms) {
    testing::check_refused([&] { run(got, one.s.options, memory, terms...); },
                           {"heed::ragged_attention_into"});
  });
  CHECK((got.out.array() == Scalar(-7)).all());
}

/// Both kinds of cache, which hold the same numbers as Stored. What is right is what the reference
/// makes of what they hold.
template <typename Stored, typename Scalar>
void check_caches(const std::vector<sample<Scalar>>& samples, const judged<Scalar>& on_tensors) {
  std::vector<heed::kv_cache<Stored>> caches;
  for (const sample<Scalar>& one : samples)
    caches.push_back(make_cache<Scalar, Stored>(one.s, one.in));
  const judged<Scalar> right =
      judge(samples, [&](std::size_t n, const auto& one, const auto& in, const auto& numbers) {
        outputs<typename std::decay_t<decltype(in)>::scalar> result(in);
        one.s.with_terms(numbers, path::cache, [&](const auto&... terms) {
          heed::reference_cached_attention_into(in.query_view(), caches[n], result.out_view(),
                                                result.lse_view(), one.s.options, terms...);
        });
        return result;
      });
  for (std::size_t n = 0; n < samples.size(); ++n) {
    const sample<Scalar>& one = samples[n];
    // functions and dropout count otherwise in a cache: tokens of the sequence
    if (std::is_same<Stored, Scalar>::value &&
        !one.s.features.has_any(feature::score_function, feature::mask_function,
                                feature::mask_function_in_blocks, feature::dropout)) {
      INFO("what is right: " << one.name());
      CHECK(testing::max_error(right.exact[n].out, on_tensors.exact[n].out) == 0);
      CHECK(testing::max_error(right.exact[n].lse, on_tensors.exact[n].lse) == 0);
    }
    const auto check = [&](const char* name, const auto& cache) {
      check_path(name, one, right, n, path::cache, [&](outputs<Scalar>& got, auto&&... rest) {
        heed::cached_attention_into(one.in.query_view(), cache, got.out_view(), got.lse_view(),
                                    rest...);
      });
    };
    check("kv_cache", caches[n]);
    const auto pages = make_paged_cache<Scalar, Stored>(one.s, one.in);
    check("paged_kv_cache", pages.batch(both_sequences));
  }
}

/// All sizes of one combination: tensors, the streaming form, ragged batches, and caches of each
/// type.
template <typename Scalar, typename... Stored>
void check_combination(const combination& features) {
  std::vector<sample<Scalar>> samples;
  for (const sizes& shape : all_sizes) samples.emplace_back(features, shape);
  const judged<Scalar> right = judge(samples, reference_on_tensors);
  for (std::size_t n = 0; n < samples.size(); ++n) {
    check_tensors(samples[n], right, n);
    check_streaming(samples[n], right, n);
    check_ragged(samples[n], right, n);
  }
  (check_caches<Stored>(samples, right), ...);
}

}  // namespace

// Every path and the reference start from one problem, so a term that is missing there is missing
// everywhere.
TEST_CASE("each option and term changes what the reference computes") {
  const auto right = [](feature f) {
    const sample<double> one({feature::plain, f}, all_sizes[0]);
    return reference_on_tensors(0, one, one.in, one.s.numbers.cast<double>());
  };
  const outputs<double> plain = right(feature::plain);
  for (unsigned f = unsigned(feature::scale); f < unsigned(feature::grouped_heads); ++f) {
    INFO(names[f]);
    CHECK(testing::max_error(right(feature(f)).out, plain.out) > 0);
  }
}
TEST_CASE("float: features in pairs on every path") {
  for_each_combination(combined::in_pairs, check_combination<float, float, std::int8_t>);
}
TEST_CASE("bfloat16: features in pairs on every path") {
  for_each_combination(combined::in_pairs, check_combination<Eigen::bfloat16, Eigen::bfloat16>);
}
TEST_CASE("half and double: features one by one on every path") {
  for_each_combination(combined::alone, check_combination<Eigen::half, Eigen::half>);
  for_each_combination(combined::alone, check_combination<double, double>);
}
TEST_CASE("caches of 8 and 4 bits: features one by one") {
  for_each_combination(combined::alone,
                       check_combination<float, heed::float8_e4m3, heed::float8_e5m2,
                                         heed::int8_block, heed::int4_block>);
}
TEST_CASE("queries of one type on caches of another: features one by one") {
  for_each_combination(combined::alone, check_combination<float, Eigen::bfloat16, Eigen::half>);
  for_each_combination(combined::alone,
                       check_combination<Eigen::bfloat16, float, Eigen::half, std::int8_t>);
  for_each_combination(combined::alone,
                       check_combination<Eigen::half, float, Eigen::bfloat16, std::int8_t>);
}
