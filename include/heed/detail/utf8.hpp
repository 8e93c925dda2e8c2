#pragma once

#include <heed/detail/abi.hpp>

#include <cstddef>
#include <string>

HEED_NAMESPACE_BEGIN
namespace detail {

/// The replacement of a byte sequence that is not UTF-8.
constexpr char32_t replacement_character = 0xFFFD;

/// Reads the code point at text[at] and moves `at` past it. Bytes that are not well-formed UTF-8
/// (overlong forms, surrogates and values past U+10FFFF too) give U+FFFD, one for each maximal part
/// (Unicode standard, section 3.9, table 3-7). Requires at < text.size().
inline char32_t next_code_point(const std::string& text, std::size_t& at) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const unsigned lead = byte(at++);
  if (lead < 0x80) return lead;
  const int length = lead >= 0xC2 && lead < 0xE0   ? 2
                     : lead >= 0xE0 && lead < 0xF0 ? 3
                     : lead >= 0xF0 && lead < 0xF5 ? 4
                                                   : 0;
  if (length == 0) return replacement_character;
  // The second byte decides whether the form is overlong, a surrogate or too large; the others are
  // free.
  unsigned low = lead == 0xE0 ? 0xA0u : lead == 0xF0 ? 0x90u : 0x80u;
  unsigned high = lead == 0xED ? 0x9Fu : lead == 0xF4 ? 0x8Fu : 0xBFu;
  char32_t code = lead & (0x7Fu >> length);
  for (int i = 1; i < length; ++i) {
    const unsigned next = byte(at);
    if (next < low || next > high) return replacement_character;
    code = (code << 6) | (next & 0x3Fu);
    low = 0x80u;
    high = 0xBFu;
    ++at;
  }
  return code;
}

inline void append_utf8(std::string& text, char32_t code) {
  const auto put = [&](char32_t byte) {
    text.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
  };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

}  // namespace detail
HEED_NAMESPACE_END
