#pragma once

#include "chat.hpp"
#include "decoder.hpp"
#include "model.hpp"
#include "tokenizer.hpp"

#include <heed/detail/utf8.hpp>
#include <heed/heatmap.hpp>
#include <heed/weights.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace smollm2 {

/// A token as a label. A character can be spread over tokens: its bytes are written in hexadecimal,
/// as \xF0\x9F.
inline std::string token_label(const std::string& bytes) {
  static const char* const hex = "0123456789ABCDEF";
  const std::string replacement = "\xEF\xBF\xBD";
  std::string label;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t from = at;
    const bool broken =
        heed::detail::next_code_point(bytes, at) == heed::detail::replacement_character &&
        bytes.compare(from, replacement.size(), replacement) != 0;
    for (std::size_t i = from; i < at; ++i) {
      const unsigned byte = static_cast<unsigned char>(bytes[i]);
      label +=
          broken ? std::string("\\x") + hex[byte >> 4] + hex[byte & 15] : std::string(1, bytes[i]);
    }
  }
  return label;
}

/// Keeps the queries and keys of every layer while a model reads, and makes a page of the weights:
/// one map for each head of each layer.
class attention_recorder {
 public:
  explicit attention_recorder(const model_config& c) : config_(c), layers_(std::size_t(c.layers)) {}

  /// Keeps the queries and keys of a chunk of tokens, up to the page's last token.
  void add(const attention_step& step) {
    layer& l = layers_[std::size_t(step.layer)];
    const size_type count = (std::min)(step.query.rows, most_tokens - l.query.rows());
    append(step.query, count, l.query);
    append(step.key, count, l.key);
  }

  /// The page. `tokens` are all that the model has read.
  std::string html(const tokenizer& words, const std::vector<token>& tokens) const {
    const size_type n = layers_[0].query.rows();
    std::vector<std::string> labels;
    for (size_type i = 0; i < n; ++i)
      labels.push_back(token_label(words.decode(tokens[std::size_t(i)])));
    heed::heatmap_options page_options;
    page_options.title = "What SmolLM2 looks at";
    page_options.row_name = page_options.col_name = "token";
    page_options.note = "Each token looks back at itself and those before it.";
    if (size_type(tokens.size()) > n)
      page_options.note += " The page shows the first " + std::to_string(n) + " of " +
                           std::to_string(tokens.size()) + " tokens.";
    page_options.keep_per_row =
        n > 100 ? 16 : 0;  // so a page of 2,000 tokens has 40 MB, and one of 100 has 6
    heed::heatmap_page page(labels, labels, page_options);

    heed::attention_options options;
    options.causal = heed::causal::bottom_right;
    const size_type d = config_.head_dim, group = config_.heads / config_.kv_heads;
    for (size_type l = 0; l < config_.layers; ++l) {
      const layer& kept = layers_[std::size_t(l)];
      for (size_type h = 0; h < config_.heads; ++h) {
        const auto query = kept.query.middleCols(h * d, d),
                   key = kept.key.middleCols(h / group * d, d);
        page.add(heed::attention_with_weights(query, key, key, options).weights, l, h);
      }
    }
    return page.html();
  }

 private:
  /// 270 maps of more tokens than these are more than a browser likes.
  static constexpr size_type most_tokens = 2048;
  struct layer {
    matrix query, key;  // a row a token, heads side by side
  };

  static void append(const heed::tensor_view<const float>& from, size_type count, matrix& to) {
    const size_type first = to.rows(), d = from.cols;
    to.conservativeResize(first + count, from.heads * d);
    for (size_type i = 0; i < count; ++i)
      for (size_type h = 0; h < from.heads; ++h)
        for (size_type c = 0; c < d; ++c) to(first + i, h * d + c) = from(0, h, i, c);
  }

  const model_config config_;
  std::vector<layer> layers_;
};

}  // namespace smollm2
