#pragma once

#include "chat.hpp"
#include "model.hpp"
#include "tokenizer.hpp"

#include <heed/heatmap.hpp>
#include <heed/weights.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace smollm2 {

/// Keeps the queries and keys of every layer while a model reads, and makes a page of the weights: one map for each head of each layer.
class attention_recorder {
 public:
  explicit attention_recorder(const model_config& c) : config_(c), layers_(std::size_t(c.layers)) {}

  /// Keeps what a chunk of tokens asks for and offers, up to the page's last token.
  void add(const attention_step& step) {
    layer& l = layers_[std::size_t(step.layer)];
    const index count = (std::min)(step.query.rows, most_tokens - l.query.rows());
    append(step.query, count, l.query);
    append(step.key, count, l.key);
  }

  /// The page. `tokens` are all that the model has read.
  std::string html(const tokenizer& words, const std::vector<token>& tokens) const {
    const index n = layers_[0].query.rows();
    std::vector<std::string> labels;
    for (index i = 0; i < n; ++i) labels.push_back(words.decode(tokens[std::size_t(i)]));
    heed::heatmap_options page_options;
    page_options.title = "What SmolLM2 looks at";
    page_options.row_name = "token";
    page_options.col_name = "looks at";
    page_options.note = "Each token looks back at itself and those before it.";
    if (index(tokens.size()) > n)
      page_options.note += " The page shows the first " + std::to_string(n) + " of " + std::to_string(tokens.size()) + " tokens.";
    page_options.keep_per_row = n > 256 ? 16 : 0;  // a long text's page keeps the 16 strongest links of each token
    heed::heatmap_page page(labels, labels, page_options);

    heed::attention_options options;
    options.causal = heed::causal::bottom_right;
    const index d = config_.head_dim, group = config_.heads / config_.kv_heads;
    for (index l = 0; l < config_.layers; ++l) {
      const layer& kept = layers_[std::size_t(l)];
      for (index h = 0; h < config_.heads; ++h) {
        const auto query = kept.query.middleCols(h * d, d), key = kept.key.middleCols(h / group * d, d);
        page.add(heed::attention_with_weights(query, key, key, options).weights, l, h);
      }
    }
    return page.html();
  }

 private:
  /// 270 maps of more tokens than these are more than a browser likes.
  static constexpr index most_tokens = 2048;
  struct layer {
    matrix query, key;  // a row a token, heads side by side
  };

  static void append(const heed::tensor_view<const float>& from, index count, matrix& to) {
    const index first = to.rows(), d = from.cols;
    to.conservativeResize(first + count, from.heads * d);
    for (index i = 0; i < count; ++i)
      for (index h = 0; h < from.heads; ++h)
        for (index c = 0; c < d; ++c) to(first + i, h * d + c) = from(0, h, i, c);
  }

  const model_config config_;
  std::vector<layer> layers_;
};

}  // namespace smollm2
