// Every term, option and cache in a line or two of use, each next to the same thing computed
// directly.

#include <heed/heed.hpp>

#include "support/command_line.hpp"
#include "support/table.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

namespace {

using heed::size_type;
using heed::split_heads;
using heed::view;
using heed::writable_view;
using matrix = heed::rows<float>;

constexpr size_type batch = 2, n = 72, heads = 4, kv_heads = 2, d = 32;

double difference(const matrix& a, const matrix& b) {
  return double((a - b).cwiseAbs().maxCoeff());
}

/// The inputs, and the rows of the table of results.
struct page {
  // Tokens of both sequences one below the other, heads side by side: the layout that a projection
  // leaves.
  const matrix query = matrix::Random(batch * n, heads*d),
               key = matrix::Random(batch * n, kv_heads*d),
               value = matrix::Random(batch * n, kv_heads*d);
  matrix out = matrix::Zero(batch * n, heads*d), want = out;
  heed::workspace memory;
  support::table table{{"what", "difference", ""}};
  int wrong = 0;

  auto q() const { return split_heads(view(query), heads, batch); }
  auto k() const { return split_heads(view(key), kv_heads, batch); }
  auto v() const { return split_heads(view(value), kv_heads, batch); }

  // Scores stay below 16, values below 1: this bounds a float's rounding of 2^-24 in sums of d
  // products and n weights.
  static constexpr double tolerance = 16.0 * (d + n) * 0x1p-24;

  void heading(const std::string& text) { table.add({text, "", ""}); }
  void report(const std::string& what, double difference, double allowed = tolerance) {
    const bool right = difference <= allowed;
    wrong += right ? 0 : 1;
    table.add({"  " + what, support::scientific(difference), right ? "ok" : "WRONG"});
  }
  /// The fused form against the direct one, for the same options and terms.
  template <typename... Terms>
  void compare(const std::string& what, const heed::attention_options& options,
               const Terms&... terms) {
    heed::multi_head_attention_into(q(), k(), v(), split_heads(writable_view(out), heads, batch),
                                    {}, options, memory, terms...);
    heed::reference_multi_head_attention_into(
        q(), k(), v(), split_heads(writable_view(want), heads, batch), {}, options, terms...);
    report(what, difference(out, want));
  }
};

heed::attention_options with(heed::causal causal, size_type left = -1, size_type right = -1) {
  heed::attention_options options;
  options.causal = causal;
  options.window_left = left;
  options.window_right = right;
  return options;
}

void options_and_terms(page& p) {
  const heed::attention_options plain, causal = with(heed::causal::bottom_right);
  p.heading("options");
  p.compare("plain", plain);
  p.compare("causal", causal);
  p.compare("window: 16 keys to the left, 4 to the right", with(heed::causal::none, 16, 4));
  heed::attention_options options = causal;
  options.softcap = 20;
  p.compare("softcap 20", options);
  options.scale = 0.5;
  p.compare("scale 0.5", options);

  p.heading("terms");
  heed::rows<bool> odd(n, n);
  for (size_type i = 0; i < n; ++i)
    for (size_type j = 0; j < n; ++j) odd(i, j) = (i + j) % 3 != 0;
  p.compare("keep(mask)", plain, heed::keep(odd));
  std::vector<std::uint8_t> bits(std::size_t(n * ((n + 7) / 8)), 0xB5);
  p.compare("keep_bits(bytes)", plain,
            heed::keep_bits(heed::bhnd(bits.data(), 1, 1, n, (n + 7) / 8), n));
  const matrix added = matrix::Random(n, n);
  p.compare("bias(matrix)", plain, heed::bias(added));
  const heed::row_vector<float> slopes = heed::alibi_slopes<float>(heads),
                                logits = heed::row_vector<float>::Constant(heads, 1.5f),
                                factors = heed::row_vector<float>::LinSpaced(heads, 0.5f, 2.0f);
  p.compare("alibi(slopes)", causal, heed::alibi(slopes));
  const matrix near_keys = matrix::Random(8 + 1 + 4, d), near_values = matrix::Random(8 + 1 + 4, d);
  p.compare("relative_keys(table, 8, 4)", plain, heed::relative_keys(near_keys, 8, 4));
  p.compare("relative_values(table, 8, 4)", plain, heed::relative_values(near_values, 8, 4));
  const auto distances = heed::t5_bias(matrix::Random(32, heads), n, n);
  p.compare("bias(t5_bias(table, n, n).view())", plain, heed::bias(distances.view()));
  p.compare("sinks(logits)", causal, heed::sinks(logits));
  p.compare("logit_scales(factors)", causal, heed::logit_scales(factors));
  const std::vector<size_type> lengths{n, 19};
  p.compare("key_lengths(lengths)", causal, heed::key_lengths(lengths));
  p.compare("query_lengths(lengths)", causal, heed::query_lengths(lengths),
            heed::key_lengths(lengths));
  const std::vector<size_type> first{0, 11};
  p.compare("first_keys(rows)", causal, heed::first_keys(first));
  heed::row_vector<float> largest(heads);
  p.compare("max_logits(numbers)", causal, heed::max_logits(largest));
  heed::block_mask diagonal(1, 1, n, n, 16, 16);
  for (size_type block = 0; block < diagonal.q_blocks(); ++block) diagonal.show(0, 0, block, block);
  p.compare("blocks(mask)", plain, heed::blocks(diagonal));
  Eigen::MatrixXi lists(3, n);
  for (int i = 0; i < n; ++i) lists.col(i) << 0, i / 2, i;
  p.compare("selected_keys(lists)", plain, heed::selected_keys(lists));
  p.compare("dropout(0.1, seed)", causal, heed::dropout(0.1, 42));
  const auto fade = [](float score, size_type, size_type h, size_type i, size_type j) {
    return score - 0.01f * float((h + 1) * std::abs(i - j));
  };
  const auto same_third = [](size_type, size_type, size_type i, size_type j) {
    return i / 24 == j / 24;
  };
  p.compare("score_function(f)", plain, heed::score_function(fade));
  p.compare("mask_function(f)", plain, heed::mask_function(same_third));
  const auto halved = [](float weight, size_type, size_type, size_type i, size_type j) {
    return i == j ? weight / 2 : weight;
  };
  p.compare("weight_function(f)", plain, heed::weight_function(halved));
  p.compare("several at once", causal, heed::keep(odd), heed::alibi(slopes), heed::sinks(logits),
            heed::key_lengths(lengths));

  p.heading("layouts");
  const std::vector<size_type> starts{0, 50, 51, 51,
                                      batch * n};  // four sequences, one of them empty
  heed::ragged_attention_into(split_heads(view(p.query), heads), split_heads(view(p.key), kv_heads),
                              split_heads(view(p.value), kv_heads),
                              split_heads(writable_view(p.out), heads), {}, starts, starts, causal,
                              p.memory);
  heed::reference_ragged_attention_into(
      split_heads(view(p.query), heads), split_heads(view(p.key), kv_heads),
      split_heads(view(p.value), kv_heads), split_heads(writable_view(p.want), heads), {}, starts,
      starts, causal);
  p.report("ragged batch of 50, 1, 0 and 93 tokens", difference(p.out, p.want));
  heed::attention_options threaded = causal;
  threaded.execution.threads = 2;
  const matrix one =
      heed::packed_multi_head_attention(p.query, p.key, p.value, {heads, kv_heads, batch}, causal);
  p.report("two threads give the same bits",
           difference(one, heed::packed_multi_head_attention(p.query, p.key, p.value,
                                                             {heads, kv_heads, batch}, threaded)),
           0);
}

/// A cache that is given a prompt and then a token at a time, against attention over the whole; its
/// own oracle reads what it stores.
template <typename Stored>
void one_cache(page& p, const std::string& what, double rounding) {
  heed::kv_cache<Stored> cache(1, kv_heads, d, d);
  matrix stored = matrix::Zero(n, heads * d), direct = stored;
  const heed::attention_options causal = with(heed::causal::bottom_right);
  for (size_type first = 0, count = 60; first < n; first += count, count = 1) {
    cache.append(split_heads(view(p.key.middleRows(first, count)), kv_heads),
                 split_heads(view(p.value.middleRows(first, count)), kv_heads));
    const auto query = split_heads(view(p.query.middleRows(first, count)), heads);
    heed::cached_attention_into(query, cache,
                                split_heads(writable_view(stored.middleRows(first, count)), heads),
                                {}, causal, p.memory);
    heed::reference_cached_attention_into(
        query, cache, split_heads(writable_view(direct.middleRows(first, count)), heads), {},
        causal);
  }
  p.report(what + ", against its oracle", difference(stored, direct));
  const matrix whole = heed::packed_multi_head_attention(
      p.query.topRows(n), p.key.topRows(n), p.value.topRows(n), {heads, kv_heads}, causal);
  p.report(what + ", against no cache", difference(stored, whole), page::tolerance + rounding);
}

void caches(page& p) {
  p.heading("caches");
  // Relative rounding of the stored numbers, in scores below 6 (twice, for exp's sake) and in
  // values below 1.
  one_cache<float>(p, "kv_cache<float>", 0);
  one_cache<Eigen::half>(p, "kv_cache<half>", 13 * 0x1p-11);
  one_cache<Eigen::bfloat16>(p, "kv_cache<bfloat16>", 13 * 0x1p-8);
  one_cache<std::int8_t>(p, "kv_cache<int8>", 13 * 0x1p-8);
  one_cache<heed::int8_block>(p, "kv_cache<int8_block>", 13 * 0x1p-8);
  one_cache<heed::float8_e4m3>(p, "kv_cache<float8_e4m3>", 13 * 0x1p-4);
  one_cache<heed::float8_e5m2>(p, "kv_cache<float8_e5m2>", 13 * 0x1p-3);
  one_cache<heed::int4_block>(p, "kv_cache<int4_block>",
                              13.0 / 14);  // a step is a 15th of the range

  const heed::attention_options window = with(heed::causal::bottom_right, 16);
  heed::kv_cache<float> rolling(1, kv_heads, d, d, 32, 16);
  matrix rolled = matrix::Zero(n, heads * d);
  for (size_type t = 0; t < n; ++t) {
    rolling.append(split_heads(view(p.key.row(t)), kv_heads),
                   split_heads(view(p.value.row(t)), kv_heads));
    heed::cached_attention_into(split_heads(view(p.query.row(t)), heads), rolling,
                                split_heads(writable_view(rolled.row(t)), heads), {}, window,
                                p.memory);
  }
  const matrix windowed = heed::packed_multi_head_attention(
      p.query.topRows(n), p.key.topRows(n), p.value.topRows(n), {heads, kv_heads}, window);
  p.report("rolling cache of 16 tokens, " + std::to_string(rolling.capacity()) + " rows for " +
               std::to_string(n),
           difference(rolled, windowed));

  // A prompt of 40 tokens that two sequences share, each with its own ending: the fork copies no
  // page before it writes.
  heed::paged_kv_cache<float> pages(12, 16, kv_heads, d, d);
  const size_type first = pages.add_sequence();
  pages.append(first, split_heads(view(p.key.topRows(40)), kv_heads),
               split_heads(view(p.value.topRows(40)), kv_heads));
  const size_type second = pages.fork(first);
  pages.append(first, split_heads(view(p.key.middleRows(40, 10)), kv_heads),
               split_heads(view(p.value.middleRows(40, 10)), kv_heads));
  pages.append(second, split_heads(view(p.key.middleRows(50, 3)), kv_heads),
               split_heads(view(p.value.middleRows(50, 3)), kv_heads));
  const std::vector<size_type> both{first, second};
  matrix forked(2, heads * d), alone = forked;
  heed::cached_attention_into(split_heads(view(p.query.topRows(2)), heads, 2), pages.batch(both),
                              split_heads(writable_view(forked), heads, 2), {}, {}, p.memory);
  const auto ending = [&](const matrix& tokens, size_type from, size_type count) {
    matrix all(40 + count, tokens.cols());
    all << tokens.topRows(40), tokens.middleRows(from, count);
    return all;
  };
  alone.row(0) = heed::packed_multi_head_attention(p.query.row(0), ending(p.key, 40, 10),
                                                   ending(p.value, 40, 10), {heads, kv_heads});
  alone.row(1) = heed::packed_multi_head_attention(p.query.row(1), ending(p.key, 50, 3),
                                                   ending(p.value, 50, 3), {heads, kv_heads});
  p.report("paged cache, forked: " + std::to_string(12 - pages.free_pages()) +
               " pages for 50 + 43 tokens, not 7",
           difference(forked, alone));

  // Rows as pages that a server owns: 40 tokens in pages 2, 0 and 1 of 16.
  const std::vector<std::int32_t> numbers{2, 0, 1}, lengths{40};
  const heed::kv_pages<float> served(heed::bnhd(p.key.data(), 3, 16, kv_heads, d),
                                     heed::bnhd(p.value.data(), 3, 16, kv_heads, d),
                                     heed::page_table(numbers.data(), 1, 3), lengths);
  matrix by_table(1, heads * d);
  heed::cached_attention_into(split_heads(view(p.query.row(0)), heads), served,
                              split_heads(writable_view(by_table), heads), {}, {}, p.memory);
  const auto in_order = [](const matrix& rows) {
    matrix all(40, rows.cols());
    all << rows.middleRows(32, 16), rows.topRows(16), rows.middleRows(16, 8);
    return all;
  };
  p.report("pages of the caller's, by a table",
           difference(by_table,
                      heed::packed_multi_head_attention(p.query.row(0), in_order(p.key),
                                                        in_order(p.value), {heads, kv_heads})));

  const heed::latent_weights<float> w{matrix::Random(heads * d, 48), matrix::Random(heads * d, 48),
                                      heads, 16};
  const matrix latent = 0.2f * matrix::Random(n, 48 + 16),
               latest = matrix::Random(3, heads * (d + 16));
  p.report("latent attention, absorbed against expanded",
           difference(heed::latent_attention(latest, latent, w),
                      heed::expanded_latent_attention(latest, latent, w)));
}

void parts_and_positions(page& p) {
  const matrix query = p.query.topLeftCorner(n, d), key = p.key.topLeftCorner(n, d),
               value = p.value.topLeftCorner(n, d);
  const heed::attention_options causal = with(heed::causal::bottom_right);
  p.heading("parts");
  // The last 24 tokens: all of the shared prefix, then their own keys causally.
  const size_type shared = n - 24;
  const auto prefix =
      heed::attention_with_lse(query.bottomRows(24), key.topRows(shared), value.topRows(shared));
  const auto own = heed::attention_with_lse(query.bottomRows(24), key.bottomRows(24),
                                            value.bottomRows(24), causal);
  p.report("merge(shared prefix, own tokens)",
           difference(heed::merge(prefix, own).out,
                      heed::reference_attention(query.bottomRows(24), key, value, causal)));

  p.heading("positions: attention is the same wherever the text begins");
  for (const auto& scaling :
       {std::pair<const char*, heed::rope_scaling>{"rope", heed::rope_scaling::none},
        {"rope, linear scaling by 4", heed::rope_scaling::linear},
        {"rope, NTK scaling by 4", heed::rope_scaling::ntk},
        {"rope, YaRN scaling by 4", heed::rope_scaling::yarn},
        {"rope, llama 3 scaling by 4", heed::rope_scaling::llama3}}) {
    heed::rope_options rope;
    rope.scaling = scaling.second;
    if (scaling.second != heed::rope_scaling::none) rope.factor = 4;
    const auto rotated = [&](const matrix& tokens, size_type first) {
      matrix turned = tokens;
      heed::apply_rope(writable_view(turned), rope, first);
      return turned;
    };
    p.report(scaling.first,
             difference(heed::attention(rotated(query, 0), rotated(key, 0), value, causal),
                        heed::attention(rotated(query, 1000), rotated(key, 1000), value, causal)));
  }

  p.heading("looking at weights: rebuilt from the log-sum-exp, against the whole matrix");
  const auto all = heed::attention_with_weights(query, key, value, causal);
  p.report("weights times values",
           difference(all.weights * value, heed::reference_attention(query, key, value, causal)));
  p.report("key_mass",
           difference(heed::key_mass(query, key, all.lse, causal),
                      all.weights.colwise().sum().transpose()),
           n * page::tolerance);
  p.report("row_entropy",
           difference(heed::row_entropy(query, key, all.lse, causal),
                      -(all.weights.array() *
                        (all.weights.array() + std::numeric_limits<float>::min()).log())
                           .rowwise()
                           .sum()
                           .matrix()));
  p.report("top_keys",
           difference(heed::top_keys(query, key, all.lse, 1, causal).weights,
                      all.weights.rowwise().maxCoeff()),
           0);
}

void gradients(page& p) {
  const matrix query = p.query.topLeftCorner(n, d), key = p.key.topLeftCorner(n, d),
               value = p.value.topLeftCorner(n, d), grad_out = matrix::Random(n, d);
  const heed::attention_options causal = with(heed::causal::bottom_right);
  const auto largest = [](const auto& a, const auto& b) {
    return (std::max)(
        {difference(a.query, b.query), difference(a.key, b.key), difference(a.value, b.value)});
  };
  p.heading("gradients");
  const auto all = heed::attention_with_weights(query, key, value, causal);
  const auto back = heed::attention_backward(query, key, value, all.out, all.lse, grad_out, causal);
  p.report("attention_backward",
           largest(back, heed::reference_attention_backward(query, key, value, all.out, all.lse,
                                                            grad_out, causal)));
  const matrix grad_weights = grad_out * value.transpose();
  p.report(
      "scaled_softmax_backward, times the keys",
      difference(
          heed::scaled_softmax_backward(all.weights, grad_weights, 1 / std::sqrt(double(d))) * key,
          back.query));

  const size_type half = n / 2;  // of the keys, for all queries
  const auto left = heed::attention_with_lse(query, key.topRows(half), value.topRows(half)),
             right = heed::attention_with_lse(query, key.bottomRows(half), value.bottomRows(half));
  const auto whole = heed::attention_with_lse(query, key, value);
  heed::attention_result<float> grad(n, d);
  grad.out = grad_out;
  grad.lse.setZero();
  const auto parts = heed::merge_backward(left, right, grad);
  p.report(
      "merge_backward, then each part's keys",
      difference(heed::attention_backward(query, key.topRows(half), value.topRows(half), left.out,
                                          left.lse, parts[0].out, {}, heed::grad_lse(parts[0].lse))
                     .key,
                 heed::attention_backward(query, key, value, whole.out, whole.lse, grad_out)
                     .key.topRows(half)));

  const matrix x = 0.5f * matrix::Random(n, 48), w_q = 0.5f * matrix::Random(48, d),
               w_k = 0.5f * matrix::Random(48, d), w_v = 0.5f * matrix::Random(48, d);
  const auto layer = heed::project_qkv(x, w_q, w_k, w_v);
  const auto forward = heed::attention_with_lse(layer.query, layer.key, layer.value, causal);
  const auto steps = heed::attention_backward(layer.query, layer.key, layer.value, forward.out,
                                              forward.lse, grad_out, causal);
  p.report(
      "self_attention_backward",
      difference(
          heed::self_attention_backward(x, w_q, w_k, w_v, grad_out, causal).x,
          heed::project_qkv_backward(x, w_q, w_k, w_v, steps.query, steps.key, steps.value).x));

  const heed::latent_weights<float> w{0.2f * matrix::Random(heads * d, 48),
                                      0.2f * matrix::Random(heads * d, 48), heads, 16};
  const matrix latent = 0.2f * matrix::Random(n, 48 + 16),
               latest = matrix::Random(3, heads * (d + 16)),
               grad_latest = matrix::Random(3, heads * d);
  p.report(
      "latent_attention_backward, absorbed against expanded",
      difference(heed::latent_attention_backward(latest, latent, w, grad_latest).latent,
                 heed::expanded_latent_attention_backward(latest, latent, w, grad_latest).latent));

  matrix turned = query;
  heed::rope_options rope;
  heed::apply_rope(writable_view(turned), rope);
  rope.direction = heed::rope_direction::backward;
  heed::apply_rope(writable_view(turned), rope);
  p.report("rope, and backward", difference(turned, query));
}

}  // namespace

int main(int argc, char** argv) {
  bool quick = false;
  support::command_line command(
      "10_every_term",
      "each option, term, layout and cache in a line of use, checked against the direct form");
  command.flag("--quick", "the same: this example takes no time", quick);
  if (const auto status = command.parse(argc, argv)) return *status;

  page p;
  options_and_terms(p);
  caches(p);
  parts_and_positions(p);
  gradients(p);
  std::cout << "\n"
            << batch << " sequences of " << n << " tokens, " << heads << " heads on " << kv_heads
            << " key/value heads of " << d << ".\n\n";
  p.table.print(std::cout);
  if (p.wrong > 0) std::cout << "\n" << p.wrong << " of these differ by more than rounding.\n";
  return p.wrong == 0 ? 0 : 1;
}
