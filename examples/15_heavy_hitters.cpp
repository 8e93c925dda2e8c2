// A cache that cannot keep everything: which keys should go? A window keeps the last ones. But a
// few keys have most of the weight, and a query long after them still looks there. H2O (Zhang et
// al. 2023) counts the weight that each key has had so far, keeps the heaviest beside the last
// ones, and lets the lightest go. Here with the heads of SmolLM2 over a page of English.

#include "smollm2/decoder.hpp"
#include "smollm2/language_model.hpp"

#include "support/command_line.hpp"
#include "support/table.hpp"
#include "support/text.hpp"

#include <heed/attention.hpp>
#include <heed/kv_cache.hpp>
#include <heed/weights.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <exception>
#include <functional>
#include <iostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using smollm2::matrix;
using smollm2::size_type;  // and not the one of <strings.h>
using support::fixed;

/// A key/value head: a row a token, of the queries a row for each query head of its group.
struct head {
  size_type group;
  matrix query, key, value;
};

/// What a cache of few tokens holds: in each slot a token, and the weight that it has had.
struct kept_tokens {
  std::vector<size_type> token;
  Eigen::RowVectorXf mass;
};
/// Chooses the slot that token t takes.
using policy = std::function<std::size_t(const kept_tokens&, size_type t)>;

/// The slot of the least `value` among those whose token may go.
template <typename May, typename Value>
std::size_t least(const kept_tokens& s, const May& may_go, const Value& value) {
  std::size_t best = s.token.size();
  for (std::size_t i = 0; i < s.token.size(); ++i)
    if (may_go(s.token[i]) && (best == s.token.size() || value(i) < value(best))) best = i;
  return best;
}

/// Attention of each token over what a cache of `size` tokens holds by then, itself included.
matrix attend(const head& h, size_type size, const policy& evict) {
  const size_type n = h.key.rows(), d = h.key.cols();
  matrix keys(size, d), values(size, d), out(n * h.group, d);
  kept_tokens kept;
  kept.mass.setZero(size);
  for (size_type t = 0; t < n; ++t) {
    std::size_t slot = std::size_t(t);
    if (t < size)
      kept.token.push_back(t);
    else
      slot = evict(kept, t);
    kept.token[slot] = t;
    kept.mass(size_type(slot)) = 0;
    keys.row(size_type(slot)) = h.key.row(t);
    values.row(size_type(slot)) = h.value.row(t);

    const size_type held = size_type(kept.token.size());
    const auto queries = h.query.middleRows(t * h.group, h.group);
    const auto seen = heed::attention_with_lse(queries, keys.topRows(held), values.topRows(held));
    out.middleRows(t * h.group, h.group) = seen.out;
    kept.mass.head(held) += heed::key_mass(queries, keys.topRows(held), seen.lse);
  }
  return out;
}

/// All key/value heads of some layers, as they are after a text.
std::vector<std::vector<head>> heads_of(const smollm2::language_model& m,
                                        const std::vector<smollm2::token>& text,
                                        const std::vector<size_type>& layers) {
  const smollm2::model_config& c = m.layers.config();
  smollm2::decoder decoder(m.layers, 1);
  std::vector<heed::kv_cache<float>> caches(
      std::size_t(c.layers), heed::kv_cache<float>(1, c.kv_heads, c.head_dim, c.head_dim));
  std::vector<std::vector<head>> out;
  decoder.watch([&](const smollm2::attention_step& step) {
    if (std::find(layers.begin(), layers.end(), step.layer) == layers.end()) return;
    const size_type n = step.key.rows, d = c.head_dim, group = c.heads / c.kv_heads;
    out.emplace_back();
    for (size_type h = 0; h < c.kv_heads; ++h) {
      head kept{group, matrix(n * group, d), matrix(n, d), matrix(n, d)};
      for (size_type t = 0; t < n; ++t)
        for (size_type i = 0; i < d; ++i) {
          for (size_type g = 0; g < group; ++g)
            kept.query(t * group + g, i) = step.query(0, h * group + g, t, i);
          kept.key(t, i) = step.key(0, h, t, i);
          kept.value(t, i) = step.value(0, h, t, i);
        }
      out.back().push_back(std::move(kept));
    }
  });
  decoder.read({{0, text, false}}, caches);
  return out;
}

/// How far the heads of a layer are from attention over all tokens with a cache of `size`: one that
/// keeps the last tokens, one that keeps the first 4 too, and one that keeps the heaviest beside
/// the last `recent`.
std::array<double, 3> errors(const std::vector<head>& heads, size_type size, size_type recent) {
  const auto oldest_from = [](size_type first) {
    return [first](const kept_tokens& s, size_type) {
      return least(
          s, [&](size_type token) { return token >= first; },
          [&](std::size_t i) { return s.token[i]; });
    };
  };
  const policy lightest = [&](const kept_tokens& s, size_type t) {
    return least(
        s, [&](size_type token) { return token <= t - recent; },
        [&](std::size_t i) { return s.mass(size_type(i)); });
  };
  const std::array<policy, 3> policies{oldest_from(0), oldest_from(4), lightest};
  std::array<double, 3> off{};
  double all = 0;
  for (const head& h : heads) {
    const size_type n = h.key.rows(), rows = (n - size) * h.group;
    const matrix right = attend(h, n, nullptr).bottomRows(rows);
    all += double(right.squaredNorm());
    for (std::size_t p = 0; p < 3; ++p)
      off[p] += double((attend(h, size, policies[p]).bottomRows(rows) - right).squaredNorm());
  }
  for (double& error : off) error = std::sqrt(error / all);
  return off;
}

}  // namespace

int main(int argc, char** argv) {
  bool quick = false;
  int size = 128;
  std::string model = smollm2::model_file();
  support::command_line command("15_heavy_hitters",
                                "a cache that keeps the last keys and the heaviest");
  command.flag("--quick", "two layers, fewer tokens", quick);
  command.option("--size", "N", "tokens that the cache keeps, 16 or more (default: 128)", size);
  command.option("--model", "FILE", "another GGUF file of the llama family", model);
  if (const auto status = command.parse(argc, argv)) return *status;
  try {
    const smollm2::language_model m = smollm2::load(model);
    std::vector<smollm2::token> text = m.words.encode(
        support::read_file(HEED_EXAMPLES_DIR "/data/lighthouse.txt", 1 << 20), false);
    if (quick) text.resize(100), size = 32;
    const size_type n = size_type(text.size()), kept = size, recent = kept / 2;
    if (size < 16 || kept >= n)
      throw std::runtime_error("--size takes a number from 16 to " + std::to_string(n - 1));
    std::vector<size_type> layers;
    for (size_type l = 0; l < m.layers.config().layers; l += quick ? 29 : 5) layers.push_back(l);

    std::cout << n << " tokens, of which a cache keeps " << kept
              << ". How far the output of attention is from that over all tokens\n(Frobenius norm, "
                 "relative, from the first token on that misses one):\n\n";
    support::table table(
        {"layer", "the last " + std::to_string(kept),
         "the first 4, the last " + std::to_string(kept - 4),
         "the heaviest " + std::to_string(kept - recent) + ", the last " + std::to_string(recent)});
    const auto add = [&](const std::string& name, const std::array<double, 3>& off) {
      table.add({name, fixed(off[0], 2), fixed(off[1], 2), fixed(off[2], 2)});
    };
    const auto heads = heads_of(m, text, layers);
    std::array<double, 3> mean{};
    for (std::size_t l = 0; l < heads.size(); ++l) {
      const std::array<double, 3> off = errors(heads[l], kept, recent);
      add(std::to_string(layers[l]), off);
      for (std::size_t p = 0; p < 3; ++p) mean[p] += off[p] / double(heads.size());
    }
    add("mean", mean);
    table.print(std::cout);
    return mean[2] < mean[0] ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "15_heavy_hitters: " << support::printable(error.what()) << "\n";
    return 1;
  }
}
