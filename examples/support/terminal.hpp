#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/ioctl.h>
#include <unistd.h>
#endif

namespace support {

enum class colours { none, palette, full };

inline std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

inline bool is_terminal(std::FILE* stream) {
#if defined(__unix__) || defined(__APPLE__)
  return isatty(fileno(stream)) != 0;
#else
  static_cast<void>(stream);
  return false;
#endif
}

/// The colours that standard output can show: none where NO_COLOR is set (no-color.org), on a dumb
/// terminal, and in a pipe or file. `wanted` is always, never or auto.
inline colours colours_of_stdout(const std::string& wanted) {
  const std::string term = environment("TERM"), depth = environment("COLORTERM");
  if (wanted != "auto" && wanted != "always" && wanted != "never")
    throw std::runtime_error("--colour takes auto, always or never, not '" + wanted + "'");
  if (wanted == "never") return colours::none;
  if (wanted != "always" &&
      (!environment("NO_COLOR").empty() || term.empty() || term == "dumb" || !is_terminal(stdout)))
    return colours::none;
  return depth == "truecolor" || depth == "24bit" ? colours::full : colours::palette;
}

/// Columns of the terminal: what COLUMNS says, else what the terminal says, else 80.
inline int terminal_width() {
  const int from_environment = std::atoi(environment("COLUMNS").c_str());
  if (from_environment > 0) return from_environment;
#if defined(__unix__) || defined(__APPLE__)
  winsize size{};
  if (ioctl(fileno(stdout), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
#endif
  return 80;
}

/// Cells of a heat map, three columns each. In colour a cell carries its value in per cent, white
/// on a middle tone that stands off from dark and from light ground alike; without colour it is a
/// denser and denser character.
class heat_ink {
 public:
  explicit heat_ink(colours depth) : depth_(depth) {}

  /// value in [0, 1]; 1 has the strongest ink.
  std::string cell(double value) const {
    if (depth_ == colours::none) {
      const std::string ramp = " .:-=+*#%@";
      return " " + std::string(2, ramp[static_cast<std::size_t>(
                                      std::lround(strength(value) * double(ramp.size() - 1)))]);
    }
    const int percent = static_cast<int>(std::lround(100 * value));
    if (percent < 1) return "  .";
    char text[8];
    std::snprintf(text, sizeof text, percent > 99 ? "%3d" : " %2d", (std::min)(percent, 100));
    return ground(strength(value)) + "\033[1;97m" + text + "\033[0m";
  }

 private:
  /// Small weights matter too: the ink grows with the root of the weight.
  static double strength(double value) {
    return std::sqrt((std::min)(1.0, (std::max)(0.0, value)));
  }

  std::string ground(double s) const {
    static constexpr std::array<std::array<int, 3>, 4> stops{
        {{70, 110, 180}, {125, 80, 175}, {190, 45, 110}, {200, 70, 10}}};
    const double place = s * (stops.size() - 1);
    const std::size_t i = (std::min)(static_cast<std::size_t>(place), stops.size() - 2);
    std::array<int, 3> rgb{};
    for (std::size_t c = 0; c < 3; ++c)
      rgb[c] = static_cast<int>(
          std::lround(stops[i][c] + (place - double(i)) * (stops[i + 1][c] - stops[i][c])));
    char code[32];
    if (depth_ == colours::full) {
      std::snprintf(code, sizeof code, "\033[48;2;%d;%d;%dm", rgb[0], rgb[1], rgb[2]);
    } else {  // the 6 x 6 x 6 cube of the 256-colour palette, whose levels are 0, 95, 135, 175,
              // 215, 255
      const auto level = [](int v) { return v < 48 ? 0 : v < 115 ? 1 : (v - 35) / 40; };
      std::snprintf(code, sizeof code, "\033[48;5;%dm",
                    16 + 36 * level(rgb[0]) + 6 * level(rgb[1]) + level(rgb[2]));
    }
    return code;
  }

  colours depth_;
};

/// `text` in bold where there are colours.
inline std::string bold(const std::string& text, colours depth) {
  return depth == colours::none ? text : "\033[1m" + text + "\033[0m";
}

}  // namespace support
