#pragma once

#include <heed/detail/utf8.hpp>

#include <cstddef>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace support {

/// The first `limit` bytes of a file. Throws std::runtime_error where it cannot be read.
inline std::string read_file(const std::string& path, std::size_t limit) {
  std::ifstream file(path, std::ios::binary);
  std::string text(limit, '\0');
  if (file) file.read(&text[0], static_cast<std::streamsize>(limit));
  if (!file.is_open() || file.bad() || (file.fail() && !file.eof()))
    throw std::runtime_error("cannot read '" + path + "'");
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

/// Columns that a character takes on a terminal, near enough: none for a combining accent, two for
/// East Asian scripts.
inline std::size_t display_width(char32_t c) {
  if (c >= 0x300 && c <= 0x36F) return 0;
  return (c >= 0x1100 && c <= 0x115F) || (c >= 0x2E80 && c <= 0xD7A3) ||
                 (c >= 0xF900 && c <= 0xFAFF) || (c >= 0xFF01 && c <= 0xFF60)
             ? 2
             : 1;
}

inline std::size_t display_width(const std::string& text) {
  std::size_t width = 0;
  for (std::size_t at = 0; at < text.size();)
    width += display_width(heed::detail::next_code_point(text, at));
  return width;
}

/// The text, or as much of it as fits into `room` columns followed by two dots.
inline std::string clip(const std::string& text, std::size_t room) {
  if (display_width(text) <= room) return text;
  std::string clipped;
  std::size_t width = 0;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = heed::detail::next_code_point(text, at);
    width += display_width(c);
    if (width + 2 > room) break;
    heed::detail::append_utf8(clipped, c);
  }
  return clipped + "..";
}

/// What was typed or read, with every control character (an escape sequence among them) and every
/// byte that is not UTF-8 replaced: safe to print.
inline std::string printable(const std::string& text) {
  std::string safe;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = heed::detail::next_code_point(text, at);
    const bool control = c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x2028 && c <= 0x202E) ||
                         (c >= 0x2066 && c <= 0x2069);
    heed::detail::append_utf8(safe, control ? heed::detail::replacement_character : c);
  }
  return safe;
}

/// Lower case of the alphabets whose capitals are at a fixed distance: Latin (ASCII and Latin-1),
/// Greek, Cyrillic.
inline char32_t lower_case(char32_t c) {
  const bool near = (c >= 'A' && c <= 'Z') || (c >= 0xC0 && c <= 0xDE && c != 0xD7) ||
                    (c >= 0x391 && c <= 0x3A9) || (c >= 0x410 && c <= 0x42F);
  return near ? c + 0x20 : c >= 0x400 && c <= 0x40F ? c + 0x50 : c;
}

inline std::u32string lower_case(const std::string& word) {
  std::u32string lower;
  for (std::size_t at = 0; at < word.size();)
    lower.push_back(lower_case(heed::detail::next_code_point(word, at)));
  return lower;
}

/// The words of a text, as they are spelt. Punctuation, controls, invisible marks and bytes that
/// are not UTF-8 part words; an apostrophe or a hyphen between two letters does not; an ideograph
/// is a word by itself.
inline std::vector<std::string> words_of(const std::string& text) {
  const auto is_letter = [](char32_t c) {
    if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    const bool other = c < 0xC0 || c == 0xD7 || c == 0xF7 || (c >= 0x2000 && c < 0x2C00) ||
                       (c >= 0x3000 && c <= 0x303F) || (c >= 0xE000 && c <= 0xF8FF) ||
                       (c >= 0xFE00 && c <= 0xFE6F) || (c >= 0xFEFF && c <= 0xFF0F) || c >= 0xFFF0;
    return !other;
  };
  const auto is_ideograph = [](char32_t c) { return c >= 0x3040 && c <= 0x9FFF; };
  const auto joins = [](char32_t c) { return c == '\'' || c == '-' || c == 0x2019; };

  std::vector<std::string> words;
  std::string word;
  const auto finish = [&] {
    if (!word.empty()) words.push_back(word);
    word.clear();
  };
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = heed::detail::next_code_point(text, at);
    std::size_t ahead = at;
    const char32_t next = at < text.size() ? heed::detail::next_code_point(text, ahead) : U' ';
    if (is_ideograph(c)) finish();
    if (is_letter(c) || (joins(c) && !word.empty() && is_letter(next))) {
      heed::detail::append_utf8(word, c);
    } else {
      finish();
    }
    if (is_ideograph(c)) finish();
  }
  finish();
  return words;
}

}  // namespace support
