// Every feature alone and with every other, on every path, against the reference in double on the same rounded inputs. Where a path
// does not offer a feature, the call must say so.

#include <heed/heed.hpp>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "support/example.hpp"
#include "support/isas.hpp"
#include "support/refusal.hpp"

using heed::bhnd;
using heed::tensor_view;

namespace {

constexpr heed::index batch = 2, heads = 4;
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
  std::string name() const { return std::string(names[unsigned(a)]) + " + " + names[unsigned(b)]; }
  /// Two that are the same argument in two ways cannot be given together.
  bool possible() const {
    const auto both = [&](feature f, feature g) { return has(f) && has(g); };
    return !both(feature::causal_top_left, feature::causal_bottom_right) && !both(feature::window, feature::window_left) &&
           !both(feature::keep, feature::keep_keys) && !both(feature::bias, feature::bias_infinite) &&
           !both(feature::blocks, feature::mask_function_in_blocks) && !both(feature::mask_function, feature::mask_function_in_blocks);
  }
  heed::index kv_heads() const { return has(feature::grouped_heads) ? heads / 2 : heads; }
  heed::index d_k() const { return 20; }
  heed::index d_v() const { return has(feature::value_dim) ? 9 : 20; }
};

template <typename Visit>
void for_each_combination(const Visit& visit) {
  for (unsigned a = 0; a < unsigned(feature::count); ++a)
    for (unsigned b = a + 1; b < unsigned(feature::count); ++b) {
      const combination features{feature(a), feature(b)};  // plain with a feature is that feature alone
      if (features.possible()) visit(features);
    }
}

struct sizes {
  heed::index n_q, n_kv;
};
/// A prompt; more queries than keys; two chunks of a longer prompt; one token; two tokens after a long text.
constexpr sizes all_sizes[] = {{50, 140}, {60, 37}, {29, 119}, {21, 140}, {1, 140}, {2, 600}};

/// Hides a block here, shows another, and cuts a third.
const auto shown = [](heed::index b, heed::index h, heed::index i, heed::index j) {
  const heed::index block = (i / 16 + j / 32 + h + b) % 3;
  return block == 1 || (block == 2 && (i + 2 * j) % 3 != 0);
};
/// Another score: exact in every type, and -infinity for some.
const auto changed_score = [](auto score, heed::index b, heed::index h, heed::index i, heed::index j) {
  using Acc = decltype(score);
  return (i + 3 * j + h) % 17 == 5 ? Acc(-infinity) : Acc(score + Acc(0.125) * Acc((5 * i + 3 * j + 2 * h + b) % 11));
};

/// The numbers of the terms, in the type of the scores.
template <typename Acc>
struct term_numbers {
  heed::rows<Acc> bias;
  heed::row_vector<Acc> slopes, sinks, factors;

  template <typename Other>
  term_numbers<Other> cast() const {
    return {bias.template cast<Other>(), slopes.template cast<Other>(), sinks.template cast<Other>(), factors.template cast<Other>()};
  }
};

/// One combination at one size: options and terms.
struct setup {
  combination features;
  sizes shape;
  heed::attention_options options;
  term_numbers<float> numbers;
  testing::mask keep;
  heed::rows<std::uint8_t> bits;
  heed::block_mask blocks;
  std::vector<heed::index> lengths;

  setup(const combination& c, const sizes& s)
      : features(c), shape(s), blocks(batch, 1, s.n_q, s.n_kv, 16, 32), lengths{s.n_kv, s.n_kv} {
    if (c.has(feature::scale)) options.scale = 0.3;
    if (c.has(feature::softcap)) options.softcap = 1.5;
    if (c.has(feature::causal_top_left)) options.causal = heed::causal::top_left;
    if (c.has(feature::causal_bottom_right)) options.causal = heed::causal::bottom_right;
    if (c.has(feature::window)) options.window_left = 20, options.window_right = 7;
    if (c.has(feature::window_left)) options.window_left = 33;
    if (c.has(feature::bias)) numbers.bias = testing::random_rows<float>(1, batch * heads * s.n_q * s.n_kv, 21);
    if (c.has(feature::bias_infinite)) {  // one for all heads, column-major
      numbers.bias = testing::random_rows<float>(s.n_kv, s.n_q, 22);
      numbers.bias = testing::random_mask(s.n_kv, s.n_q, 23).select(numbers.bias, -std::numeric_limits<float>::infinity());
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
      for (heed::index n = 0; n < bits.size(); ++n) bits.data()[n] = static_cast<std::uint8_t>(engine() >> 24);
    }
    if (c.has(feature::key_lengths)) lengths[1] = s.n_kv * 2 / 3;
    if (c.has(feature::blocks))
      for (heed::index b = 0; b < batch; ++b)
        for (heed::index q = 0; q < blocks.q_blocks(); ++q)
          for (heed::index kv = 0; kv < blocks.kv_blocks(); ++kv)
            if ((b + 2 * q + kv) % 3 != 0) blocks.show(b, 0, q, kv);
    if (c.has(feature::mask_function_in_blocks)) blocks = heed::block_mask::of(shown, batch, heads, s.n_q, s.n_kv, 16, 32);
  }

  /// What tensors are told of the lengths. (Caches bring lengths of their own.)
  heed::index_list own_lengths() const { return features.has(feature::key_lengths) ? heed::index_list(lengths) : heed::index_list(); }

  /// call(terms...): a term that the combination lacks is empty.
  template <typename Acc, typename Call>
  void with_terms(const term_numbers<Acc>& n, const heed::index_list& lengths_given, const Call& call) const {
    const auto go = [&](const auto&... functions) {
      tensor_view<const Acc> bias_view;
      if (features.has(feature::bias)) bias_view = bhnd(n.bias.data(), batch, heads, shape.n_q, shape.n_kv);
      if (features.has(feature::bias_infinite)) bias_view = heed::view(n.bias.transpose());
      tensor_view<const bool> keep_view;
      if (features.has(feature::keep)) keep_view = bhnd(keep.data(), batch, heed::index(1), shape.n_q, shape.n_kv);
      if (features.has(feature::keep_keys)) keep_view = bhnd(keep.data(), heed::index(1), heads, heed::index(1), shape.n_kv);
      tensor_view<const std::uint8_t> bits_view;
      if (features.has(feature::keep_bits)) bits_view = bhnd(bits.data(), heed::index(1), heads, shape.n_q, bits.cols());
      const bool in_blocks = features.has(feature::blocks) || features.has(feature::mask_function_in_blocks);
      call(heed::keep(keep_view), heed::keep_bits(bits_view, shape.n_kv), heed::bias(bias_view), heed::alibi(n.slopes),
           heed::sinks(n.sinks), heed::logit_scales(n.factors), heed::key_lengths(lengths_given),
           in_blocks ? heed::blocks(blocks) : heed::detail::blocks_term(),
           heed::dropout(features.has(feature::dropout) ? 0.3 : 0.0, 27), functions...);
    };
    const bool masks = features.has(feature::mask_function) || features.has(feature::mask_function_in_blocks);
    if (features.has(feature::score_function)) {
      masks ? go(heed::score_function(changed_score), heed::mask_function(shown)) : go(heed::score_function(changed_score));
    } else {
      masks ? go(heed::mask_function(shown)) : go();
    }
  }
};

/// The inputs of one setup, [B,H,N,D].
template <typename Scalar>
struct inputs {
  heed::index n_q, n_kv, kv_heads, d_k, d_v;
  heed::rows<Scalar> query, key, value;

  explicit inputs(const setup& s)
      : n_q(s.shape.n_q), n_kv(s.shape.n_kv), kv_heads(s.features.kv_heads()), d_k(s.features.d_k()), d_v(s.features.d_v()) {
    query = testing::random_rows<Scalar>(1, batch * heads * n_q * d_k, 1);
    key = testing::random_rows<Scalar>(1, batch * kv_heads * n_kv * d_k, 2);
    value = testing::random_rows<Scalar>(1, batch * kv_heads * n_kv * d_v, 3);
    if (!s.features.has(feature::nan_inputs)) return;
    const auto spoil = [](heed::rows<Scalar>& numbers, heed::index row, heed::index d, double with) {
      numbers.middleCols(row * d, d).setConstant(Scalar(static_cast<float>(with)));
    };
    spoil(key, 5, d_k, std::numeric_limits<double>::quiet_NaN());
    spoil(key, (kv_heads + 1) * n_kv + 33, d_k, infinity);
    spoil(value, kv_heads * n_kv + 12, d_v, std::numeric_limits<double>::quiet_NaN());
  }
  template <typename Other>
  inputs<Other> cast() const {
    return {*this, query.template cast<Other>(), key.template cast<Other>(), value.template cast<Other>()};
  }
  template <typename Other>
  inputs(const inputs<Other>& shape, const heed::rows<Scalar>& q, const heed::rows<Scalar>& k, const heed::rows<Scalar>& v)
      : n_q(shape.n_q), n_kv(shape.n_kv), kv_heads(shape.kv_heads), d_k(shape.d_k), d_v(shape.d_v), query(q), key(k), value(v) {}

  tensor_view<const Scalar> query_view() const { return bhnd(query.data(), batch, heads, n_q, d_k); }
  tensor_view<const Scalar> key_view() const { return bhnd(key.data(), batch, kv_heads, n_kv, d_k); }
  tensor_view<const Scalar> value_view() const { return bhnd(value.data(), batch, kv_heads, n_kv, d_v); }
};

template <typename Scalar>
struct outputs {
  outputs(heed::index rows, heed::index d_v)
      : n_q(rows),
        dim(d_v),
        out(heed::rows<Scalar>::Constant(1, batch * heads * rows * d_v, Scalar(-7))),
        lse(1, batch * heads * rows) {
    lse.setConstant(heed::accumulator_t<Scalar>(-7));
  }
  explicit outputs(const inputs<Scalar>& in) : outputs(in.n_q, in.d_v) {}
  tensor_view<Scalar> out_view() { return bhnd(out.data(), batch, heads, n_q, dim); }
  tensor_view<heed::accumulator_t<Scalar>> lse_view() { return bhnd(lse.data(), batch, heads, n_q, heed::index(1)); }

  heed::index n_q, dim;
  heed::rows<Scalar> out;
  heed::rows<heed::accumulator_t<Scalar>> lse;
};

/// Copies a tensor, element by element.
template <typename From, typename To>
void copy(const tensor_view<From>& from, const tensor_view<To>& to) {
  for (heed::index b = 0; b < from.batch; ++b)
    for (heed::index h = 0; h < from.heads; ++h)
      for (heed::index i = 0; i < from.rows; ++i)
        for (heed::index c = 0; c < from.cols; ++c) to(b, h, i, c) = To(from(b, h, i, c));
}

/// The same tensor in the order [B,D,N,H], with gaps.
template <typename Scalar>
struct spread {
  explicit spread(const tensor_view<const Scalar>& from)
      : numbers(heed::rows<Scalar>::Constant(1, 2 * from.batch * from.heads * from.rows * from.cols, Scalar(-7))) {
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

template <typename Scalar>
outputs<Scalar> reference_of(const setup& s, const term_numbers<heed::accumulator_t<Scalar>>& numbers, const inputs<Scalar>& in) {
  outputs<Scalar> result(in);
  s.with_terms(numbers, s.own_lengths(), [&](const auto&... terms) {
    heed::reference_multi_head_attention_into(in.query_view(), in.key_view(), in.value_view(), result.out_view(), result.lse_view(),
                                              s.options, terms...);
  });
  return result;
}

/// One combination at one size, with what is right for it.
template <typename Scalar>
struct judged {
  setup s;
  inputs<Scalar> in;
  outputs<double> exact;

  judged(const combination& features, const sizes& shape)
      : s(features, shape), in(s), exact(reference_of(s, s.numbers.template cast<double>(), in.template cast<double>())) {}
};

/// Appends the keys of a setup in pieces that end anywhere, sequence by sequence.
template <typename Scalar, typename Append>
void append_in_pieces(const setup& s, const inputs<Scalar>& in, const Append& append) {
  const heed::index cuts[] = {0, s.shape.n_kv / 5, s.shape.n_kv / 2, s.shape.n_kv};
  for (int piece = 0; piece < 3; ++piece)
    for (heed::index b = 0; b < batch; ++b) {
      const heed::index first = (std::min)(cuts[piece], s.lengths[std::size_t(b)]),
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
  append_in_pieces(s, in, [&](heed::index b, const auto& key, const auto& value) { cache.append(b, key, value); });
  return cache;
}
/// A paged cache of the two sequences 0 and 1, whose pages lie in turns.
template <typename Scalar, typename Stored>
heed::paged_kv_cache<Stored> make_paged_cache(const setup& s, const inputs<Scalar>& in) {
  constexpr heed::index page_rows = 24;
  heed::paged_kv_cache<Stored> cache(2 * (s.shape.n_kv / page_rows + 2), page_rows, in.kv_heads, in.d_k, in.d_v);
  for (heed::index b = 0; b < batch; ++b) cache.add_sequence();
  append_in_pieces(s, in, [&](heed::index b, const auto& key, const auto& value) { cache.append(b, key, value); });
  return cache;
}
const std::vector<heed::index> both_sequences{0, 1};

/// Runs a path on every instruction set, and with the best one on three threads, which must change nothing.
template <typename Scalar, typename Run>
void check_path(const char* path, const judged<Scalar>& right, const testing::reference_error& error, const heed::index_list& lengths,
                const Run& run) {
  heed::workspace memory;
  const auto run_with = [&](heed::isa target, int threads) {
    outputs<Scalar> got(right.in);
    heed::attention_options options = right.s.options;
    options.target = target;
    options.threads = threads;
    right.s.with_terms(right.s.numbers, lengths, [&](const auto&... terms) { run(got, options, memory, terms...); });
    return got;
  };
  for (const heed::isa target : testing::isas()) {
    INFO(path << " on " << testing::name_of(target));
    const outputs<Scalar> got = run_with(target, 1);
    testing::check_error(got.out, right.exact.out, error.out);
    testing::check_error(got.lse, right.exact.lse, error.lse, 1);
  }
  INFO(path << " on three threads");
  const outputs<Scalar> one = run_with(heed::best_isa(), 1), three = run_with(heed::best_isa(), 3);
  CHECK(testing::max_error(three.out, one.out) == 0);
  CHECK(testing::max_error(three.lse, one.lse) == 0);
}

template <typename Scalar>
void check_tensors(const judged<Scalar>& right, const testing::reference_error& error) {
  const inputs<Scalar>& in = right.in;
  if (!right.s.features.has(feature::strides)) {
    check_path("tensors", right, error, right.s.own_lengths(), [&](outputs<Scalar>& got, auto&&... rest) {
      heed::multi_head_attention_into(in.query_view(), in.key_view(), in.value_view(), got.out_view(), got.lse_view(), rest...);
    });
    return;
  }
  const spread<Scalar> query(in.query_view()), key(in.key_view()), value(in.value_view());
  check_path("strided tensors", right, error, right.s.own_lengths(), [&](outputs<Scalar>& got, auto&&... rest) {
    const spread<Scalar> out(got.out_view());
    heed::multi_head_attention_into(query.view, key.view, value.view, out.view, got.lse_view(), rest...);
    copy(out.view, got.out_view());
  });
}

template <typename Scalar>
void check_caches(const judged<Scalar>& right, const testing::reference_error& error) {
  const inputs<Scalar>& in = right.in;
  const auto cached = [&](const char* path, const auto& cache) {
    check_path(path, right, error, {}, [&](outputs<Scalar>& got, auto&&... rest) {
      heed::cached_attention_into(in.query_view(), cache, got.out_view(), got.lse_view(), rest...);
    });
  };
  cached("kv_cache", make_cache<Scalar, Scalar>(right.s, in));
  const auto pages = make_paged_cache<Scalar, Scalar>(right.s, in);
  cached("paged_kv_cache", pages.batch(both_sequences));
}

}  // namespace

TEMPLATE_TEST_CASE("features in pairs on every path", "", float, Eigen::bfloat16) {
  for_each_combination([](const combination& features) {
    std::vector<judged<TestType>> all;
    testing::reference_error error;  // of the reference in TestType, over all sizes: in a few rows alone it may be right by luck
    for (const sizes& shape : all_sizes) {
      all.emplace_back(features, shape);
      const outputs<TestType> same = reference_of(all.back().s, all.back().s.numbers, all.back().in);
      error.out = (std::max)(error.out, testing::max_error(same.out, all.back().exact.out));
      error.lse = (std::max)(error.lse, testing::max_error(same.lse, all.back().exact.lse));
    }
    for (const judged<TestType>& right : all) {
      INFO(features.name() << ", n_q " << right.in.n_q << ", n_kv " << right.in.n_kv);
      check_tensors(right, error);
      check_caches(right, error);
    }
  });
}
