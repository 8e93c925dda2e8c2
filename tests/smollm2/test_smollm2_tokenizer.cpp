#include "../catch.hpp"
#include "model_at_hand.hpp"
#include "tokenizer.hpp"

#include <string>
#include <vector>

namespace {

using smollm2::token;
using smollm2::tokenizer;

const tokenizer& smollm() {
  static const tokenizer made = [] {
    return tokenizer(smollm2::gguf_file(smollm2::gguf_file::read(smollm2::model_file()), "model"));
  }();
  return made;
}

}  // namespace

TEST_CASE("Text is cut into the right pre-tokens") {
  for (const auto& example : right_answers("tokenizer")) {
    if (example.contains("ids_no_special")) continue;  // its pre-tokens are between special tokens
    const std::string text = example["text"];
    CAPTURE(text);
    CHECK(tokenizer::pre_tokens(text) == example["pre"].get<std::vector<std::string>>());
  }
}

TEST_CASE("Token ids are exact") {
  if (!model_at_hand()) return;
  int with_specials = 0;
  for (const auto& example : right_answers("tokenizer")) {
    const std::string text = example["text"];
    CAPTURE(text);
    const auto ids = example["ids"].get<std::vector<token>>();
    CHECK(smollm().encode(text) == ids);
    const bool differs = example.contains("ids_no_special");
    CHECK(smollm().encode(text, false) ==
          (differs ? example["ids_no_special"].get<std::vector<token>>() : ids));
    with_specials += differs;
  }
  CHECK(with_specials > 0);
  for (const char* const name : {"plain_capital", "plain_story", "plain_unicode", "chat_capital",
                                 "chat_poem", "chat_long"}) {
    const auto example = right_answers(name);
    CAPTURE(name);
    CHECK(smollm().encode(example["text"].get<std::string>()) ==
          example["prompt_ids"].get<std::vector<token>>());
    CHECK(smollm().decode(example["prompt_ids"].get<std::vector<token>>()) ==
          example["text"].get<std::string>());
    CHECK(smollm().decode(example["greedy_ids"].get<std::vector<token>>()) ==
          example["greedy_text"].get<std::string>());
  }
}

TEST_CASE(
    "Every byte but the 21 without a token comes back, and long words take no longer than they "
    "must") {
  if (!model_at_hand()) return;
  int lost = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text(1, static_cast<char>(static_cast<unsigned char>(byte)));
    const std::string back = smollm().decode(smollm().encode(text));
    if (back != text) {
      CHECK(back.empty());
      ++lost;
    }
  }
  CHECK(lost == 21);
  const std::string word(200000, 'a');
  CHECK(smollm().decode(smollm().encode(word)) == word);
}
