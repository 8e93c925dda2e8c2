#pragma once

#include "decoder.hpp"
#include "model.hpp"
#include "tokenizer.hpp"

#include <heed/kv_cache.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace smollm2 {

/// How the keys and values that a session has seen are stored.
enum class cache_type { float32, bfloat16, fp8, int8, int8_block, int4_block };
/// Their names, in the same order.
constexpr std::array<const char*, 6> cache_names{"float", "bfloat16",   "fp8",
                                                 "int8",  "int8-block", "4bit"};

/// A text that a model reads and writes, alone: a batch of one, in caches that grow with it.
class session {
 public:
  session(const model& m, cache_type type, int threads)
      : decoder_(m, threads), caches_(make_caches(m.config(), type)) {}

  /// Tokens read so far, and how many fit.
  size_type position() const {
    return std::visit([](const auto& layers) { return layers[0].length(0); }, caches_);
  }
  size_type context() const { return decoder_.config().context; }
  /// The memory of keys and values, all layers.
  size_type cache_bytes() const {
    size_type sum = 0;
    std::visit(
        [&](const auto& layers) {
          for (const auto& cache : layers) sum += cache.bytes();
        },
        caches_);
    return sum;
  }
  /// What a token takes of it.
  size_type token_bytes() const {
    return std::visit(
        [](const auto& layers) {
          return layers[0].bytes() / layers[0].capacity() * size_type(layers.size());
        },
        caches_);
  }
  /// Time that went into the caches and attention, of all that `read` took.
  double attention_seconds() const { return decoder_.attention_seconds(); }
  /// Calls `look` after each layer's attention from now on.
  void watch(std::function<void(const attention_step&)> look) { decoder_.watch(std::move(look)); }

  /// Reads on, and returns the logits of the token that follows: one for each token of the
  /// vocabulary. Throws std::invalid_argument where there is nothing to read, no room for it, or no
  /// such token.
  const Eigen::VectorXf& read(const std::vector<token>& tokens) {
    const size_type n = size_type(tokens.size());
    if (n == 0) throw std::invalid_argument("there is nothing to read");
    if (n > context() - position())
      throw std::invalid_argument("the text has " + std::to_string(position() + n) +
                                  " tokens, but the model's context has " +
                                  std::to_string(context()));
    for (const token t : tokens)
      if (t < 0 || t >= decoder_.config().vocabulary)
        throw std::invalid_argument("there is no token " + std::to_string(t));
    for (size_type first = 0; first < n; first += chunk) {
      const size_type end = (std::min)(n, first + chunk);
      const std::vector<next_tokens> step{
          {0, {tokens.begin() + first, tokens.begin() + end}, end == n}};
      std::visit(
          [&](auto& layers) {
            const matrix& logits = decoder_.read(step, layers);
            if (end == n) logits_ = logits.row(0).transpose();
          },
          caches_);
    }
    return logits_;
  }

 private:
  template <typename... Stored>
  using layers_of = std::variant<std::vector<heed::kv_cache<Stored>>...>;
  using any_layers = layers_of<float, Eigen::bfloat16, heed::float8_e4m3, std::int8_t,
                               heed::int8_block, heed::int4_block>;

  /// Tokens that go through the layers together, so that a dequantised weight serves them all.
  static constexpr size_type chunk = 512;

  static any_layers make_caches(const model_config& c, cache_type type) {
    const auto of = [&](auto stored) -> any_layers {
      using cache = heed::kv_cache<decltype(stored)>;
      return std::vector<cache>(std::size_t(c.layers),
                                cache(1, c.kv_heads, c.head_dim, c.head_dim));
    };
    switch (type) {
      case cache_type::bfloat16:
        return of(Eigen::bfloat16());
      case cache_type::fp8:
        return of(heed::float8_e4m3());
      case cache_type::int8:
        return of(std::int8_t());
      case cache_type::int8_block:
        return of(heed::int8_block());
      case cache_type::int4_block:
        return of(heed::int4_block());
      default:
        return of(float());
    }
  }

  decoder decoder_;
  any_layers caches_;
  Eigen::VectorXf logits_;
};

}  // namespace smollm2
