#pragma once

#include <heed/isa.hpp>

#include <string>
#include <vector>

namespace testing {

/// Every instruction set that this machine can run.
inline std::vector<heed::isa> isas() { return {heed::isa::automatic}; }

inline std::string name_of(heed::isa) { return "automatic"; }

}  // namespace testing
