#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

namespace training {

/// Values at moments that are equally far apart.
struct curve {
  char mark;
  std::string name;
  std::vector<double> values;
};

/// Curves from 0 up in characters; the first values are those of step `first`, the last of `last`.
inline void plot(std::ostream& out, const std::vector<curve>& curves, long first, long last) {
  const int width = 64;
  double most = 1;
  for (const curve& c : curves)
    for (const double value : c.values) most = (std::max)(most, value);
  const int lines_of_1 = most > 7 ? 1 : 2, height = lines_of_1 * int(std::ceil(most));

  for (int line = height; line >= 0; --line) {
    std::string text(std::size_t(width), ' ');
    for (const curve& c : curves)
      for (std::size_t x = 0; x < text.size() && !c.values.empty(); ++x) {
        const double value = c.values[x * (c.values.size() - 1) / (text.size() - 1)];
        if (std::lround(value * lines_of_1) == line) text[x] = c.mark;
      }
    const std::string label = line % lines_of_1 == 0 ? std::to_string(line / lines_of_1) : "";
    out << std::setw(4) << label << " |" << text << "\n";
  }
  const std::string from = std::to_string(first), to = std::to_string(last);
  const std::size_t gap =
      std::size_t(width) - (std::min)(std::size_t(width), from.size() + to.size());
  out << "     +" << std::string(std::size_t(width), '-') << "\n      " << from
      << std::string(gap, ' ') << to << " steps\n";
  for (const curve& c : curves) out << "      " << c.mark << " " << c.name << "\n";
}

}  // namespace training
