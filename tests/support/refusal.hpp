#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "../catch.hpp"

namespace testing {

/// A call must be refused by a std::invalid_argument whose text holds every one of these words: the
/// function, the argument, the sizes.
template <typename Call>
void check_refused(const Call& call, const std::vector<std::string>& words) {
  std::string message;
  try {
    call();
  } catch (const std::invalid_argument& refusal) {
    message = refusal.what();
  }
  INFO(message);
  REQUIRE(!message.empty());
  for (const std::string& word : words) CHECK_THAT(message, ContainsSubstring(word));
}

}  // namespace testing
