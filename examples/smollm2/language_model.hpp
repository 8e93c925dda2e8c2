#pragma once

#include "gguf.hpp"
#include "model.hpp"
#include "model_file.hpp"
#include "tokenizer.hpp"

#include "../support/text.hpp"

#include <fstream>
#include <stdexcept>
#include <string>

namespace smollm2 {

/// A model with its tokenizer.
struct language_model {
  explicit language_model(const gguf_file& file) : words(file), layers(file) {
    if (size_type(words.size()) != layers.config().vocabulary)
      file.fail("has " + std::to_string(words.size()) + " tokens, but vectors for " +
                std::to_string(layers.config().vocabulary));
  }

  tokenizer words;
  model layers;
};

/// The model in a file. Throws std::runtime_error, with the reason, where there is none.
inline language_model load(const std::string& path) {
  if (!std::ifstream(path) && path == model_file())
    throw std::runtime_error("there is no '" + path +
                             "' yet; examples/smollm2/fetch.py fetches it");
  return language_model(gguf_file(gguf_file::read(path), support::printable(path)));
}

}  // namespace smollm2
