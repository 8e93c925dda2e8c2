#pragma once

#include <heed/attention.hpp>

#include "isas.hpp"

namespace testing {

/// attention_with_lse on one instruction set.
inline auto attention_on(heed::isa target) {
  return [target](const auto& query, const auto& key, const auto& value,
                  heed::attention_options options, const auto&... terms) {
    options.execution.target = target;
    return heed::attention_with_lse(query, key, value, options, terms...);
  };
}

}  // namespace testing
