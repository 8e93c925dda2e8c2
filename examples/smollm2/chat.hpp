#pragma once

#include "tokenizer.hpp"

#include <heed/detail/utf8.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace smollm2 {

/// The tokens that every chat begins with: who the model is, up to where the user's name stands.
inline std::vector<token> chat_opening(const tokenizer& words) {
  return words.encode(
      "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
      "Face<|im_end|>\n<|im_start|>");
}

/// The tokens that bring a user's message to the model, up to where its answer begins. The first
/// message of a chat comes after its opening, a later one after the end of the answer before it.
/// What the user typed stays text: names of special tokens in it too.
inline std::vector<token> chat_message(const tokenizer& words, const std::string& message,
                                       bool is_first) {
  std::vector<token> out =
      is_first ? chat_opening(words) : words.encode("<|im_end|>\n<|im_start|>");
  const std::vector<token> text = words.encode("user\n" + message, false),
                           after = words.encode("<|im_end|>\n<|im_start|>assistant\n");
  out.insert(out.end(), text.begin(), text.end());
  out.insert(out.end(), after.begin(), after.end());
  return out;
}

/// Turns the bytes of tokens into text that is safe to print, as they come: characters that are
/// spread over tokens wait until they are whole, and what would steer a terminal, line ends and
/// tabs aside, becomes U+FFFD.
class text_stream {
 public:
  /// What can be printed now that `bytes` have come.
  std::string add(const std::string& bytes) {
    waiting_ += bytes;
    return take(waiting_.size() - unfinished());
  }
  /// What is left: a character that never became whole is U+FFFD.
  std::string finish() { return take(waiting_.size()); }

 private:
  /// How many bytes at the end begin a character of which more must come.
  std::size_t unfinished() const {
    for (std::size_t back = 1; back <= 3 && back <= waiting_.size(); ++back) {
      const unsigned byte = static_cast<unsigned char>(waiting_[waiting_.size() - back]);
      if (byte < 0x80) return 0;
      if (byte >= 0xC0) return back < (byte >= 0xF0 ? 4u : byte >= 0xE0 ? 3u : 2u) ? back : 0;
    }
    return 0;
  }
  std::string take(std::size_t count) {
    const std::string whole = waiting_.substr(0, count);
    waiting_.erase(0, count);
    std::string safe;
    for (std::size_t at = 0; at < whole.size();) {
      const char32_t c = heed::detail::next_code_point(whole, at);
      const bool steers = (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7F && c < 0xA0) ||
                          (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
      heed::detail::append_utf8(safe, steers ? heed::detail::replacement_character : c);
    }
    return safe;
  }

  std::string waiting_;
};

}  // namespace smollm2
