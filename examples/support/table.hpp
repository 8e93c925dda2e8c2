#pragma once

#include "text.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

namespace support {

/// A table of text: columns as wide as their widest cell, the first to the left, the others to the
/// right.
class table {
 public:
  explicit table(std::vector<std::string> head) : rows_{std::move(head)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

  void print(std::ostream& out) const {
    std::vector<std::size_t> widths(rows_[0].size(), 0);
    for (const auto& row : rows_)
      for (std::size_t c = 0; c < row.size(); ++c)
        widths[c] = (std::max)(widths[c], display_width(row[c]));
    for (const auto& row : rows_) {
      std::string line = " ";
      for (std::size_t c = 0; c < row.size(); ++c) {
        const std::string gap(widths[c] - display_width(row[c]), ' ');
        line += c == 0 ? " " + row[c] + gap : "  " + gap + row[c];
      }
      out << line << "\n";
    }
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// A number with `digits` digits after the decimal point.
inline std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

/// A small number by its order: 3e-07.
inline std::string scientific(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0e", value);
  return text;
}

/// Bytes in the unit that reads best.
inline std::string bytes(double count) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (count >= 1024 && unit < 4) count /= 1024, ++unit;
  return fixed(count, unit == 0 || count >= 100 ? 0 : 1) + " " + units[unit];
}

/// Seconds in the unit that reads best.
inline std::string seconds(double value) {
  if (value < 1e-3) return fixed(value * 1e6, 0) + " us";
  if (value < 1) return fixed(value * 1e3, value < 0.1 ? 2 : 0) + " ms";
  return fixed(value, 2) + " s";
}

}  // namespace support
