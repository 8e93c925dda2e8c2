#pragma once

#include "terminal.hpp"

#include <cstdio>
#include <string>

namespace support {

/// Says on standard error how far a long job is: a bar that redraws itself on a terminal, a plain
/// line a step anywhere else.
class progress {
 public:
  explicit progress(int steps)
      : steps_(steps), bar_(is_terminal(stderr) && environment("TERM") != "dumb") {}
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;
  ~progress() { clear(); }

  /// The next step begins: `what` it does.
  void step(const std::string& what) {
    if (!bar_) {
      std::fprintf(stderr, "  step %d of %d: %s\n", done_ + 1, steps_, what.c_str());
    } else {
      const int width = 30, filled = steps_ > 0 ? width * done_ / steps_ : width;
      std::fprintf(stderr, "\r\033[K[%s%s] %3d %%  %s",
                   std::string(std::size_t(filled), '#').c_str(),
                   std::string(std::size_t(width - filled), '.').c_str(),
                   steps_ > 0 ? 100 * done_ / steps_ : 100, what.c_str());
    }
    std::fflush(stderr);
    ++done_;
  }
  /// Takes the bar away, so that something else can be printed.
  void clear() {
    if (bar_) std::fputs("\r\033[K", stderr);
    std::fflush(stderr);
  }

 private:
  int steps_, done_ = 0;
  bool bar_;
};

}  // namespace support
