#pragma once

#include <heed/detail/abi.hpp>
#include <heed/detail/utf8.hpp>

#include <cstddef>
#include <locale>
#include <sstream>
#include <string>

// Text and numbers as they stand in a page or a picture.

HEED_NAMESPACE_BEGIN
namespace detail {

/// Inside a JSON string that stands in a <script> block: no quote, no line end, and nothing that
/// HTML could take for a tag.
inline std::string json_text(const std::string& text) {
  static const char* const hex = "0123456789abcdef";
  std::string out = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    const bool escape = c < 0x20 || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' ||
                        c == 0x7F || c == 0x2028 || c == 0x2029;
    if (!escape) {
      append_utf8(out, c);
      continue;
    }
    out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out += hex[(c >> shift) & 15];
  }
  return out + "\"";
}

/// Inside HTML or XML text or a quoted attribute. Control characters are no text there: they become
/// U+FFFD.
inline std::string markup_text(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default: {
        const bool is_text = c >= 0x20 && (c < 0x7F || c > 0x9F) && c != 0xFFFE && c != 0xFFFF;
        append_utf8(out, is_text || c == '\t' || c == '\n' ? c : replacement_character);
      }
    }
  }
  return out;
}

/// A number in C's locale, whatever the program's: JSON and SVG want a point.
inline std::string number_text(double x) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out.precision(9);
  out << x;
  return out.str();
}

}  // namespace detail
HEED_NAMESPACE_END
