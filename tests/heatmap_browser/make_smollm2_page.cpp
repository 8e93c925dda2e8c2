// Writes pages of what SmolLM2 looks at in texts, for test_smollm2_page.py.

#include "attention_page.hpp"
#include "model_file.hpp"
#include "session.hpp"

#include <fstream>
#include <iostream>
#include <vector>

int main(int argc, char** argv) {
  using namespace smollm2;
  if (argc < 3 || argc % 2 == 0) {
    std::cerr << "usage: make_smollm2_page FILE TEXT [FILE TEXT ...]\n";
    return 1;
  }
  if (!std::ifstream(model_file()).good()) {
    std::cout << "SKIP: there is no " << model_file() << "; examples/smollm2/fetch.py fetches it\n";
    return 0;
  }
  const gguf_file file(gguf_file::read(model_file()), "model");
  const tokenizer words(file);
  const model layers(file);
  for (int i = 1; i < argc; i += 2) {
    attention_recorder recorder(layers.config());
    session reader(layers, cache_type::float32, 1);
    reader.watch([&](const attention_step& step) { recorder.add(step); });
    const std::vector<token> tokens = words.encode(argv[i + 1], false);
    reader.read(tokens);
    std::ofstream out(argv[i], std::ios::binary);
    out << recorder.html(words, tokens);
    if (!out.flush()) {
      std::cerr << "make_smollm2_page: cannot write " << argv[i] << "\n";
      return 1;
    }
  }
  return 0;
}
