// Writes the page of what SmolLM2 looks at in the text of tests/smollm2/data/attn_layer0.json, for test_smollm2_page.py.

#include "attention_page.hpp"
#include "model_file.hpp"

#include <fstream>
#include <iostream>

int main(int argc, char** argv) {
  using namespace smollm2;
  if (argc != 2) {
    std::cerr << "usage: make_smollm2_page FILE\n";
    return 1;
  }
  if (!std::ifstream(model_file()).good()) {
    std::cout << "SKIP: there is no " << model_file() << "; examples/smollm2/fetch.py fetches it\n";
    return 0;
  }
  const gguf_file file(gguf_file::read(model_file()), "model");
  const tokenizer words(file);
  const model layers(file);
  attention_recorder recorder(layers.config());
  session reader(layers, cache_type::float32, 1);
  reader.watch([&](const attention_step& step) { recorder.add(step); });
  const std::vector<token> tokens = words.encode("The quick brown fox jumps over the lazy dog, twice.");
  reader.read(tokens);
  std::ofstream out(argv[1], std::ios::binary);
  out << recorder.html(words, tokens);
  return out.flush() ? 0 : 1;
}
