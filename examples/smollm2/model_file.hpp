#pragma once

#include <cstdlib>
#include <string>

namespace smollm2 {

/// Where fetch.py puts the model: heed/ in $XDG_CACHE_HOME, which is ~/.cache where it is not set.
inline std::string model_file() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  const std::string folder = cache && *cache ? cache : std::string(home ? home : "") + "/.cache";
  return folder + "/heed/SmolLM2-135M-Instruct.Q4_1.gguf";
}

}  // namespace smollm2
