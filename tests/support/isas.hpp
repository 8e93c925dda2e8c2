#pragma once

#include <heed/isa.hpp>

#include <string>
#include <vector>

namespace testing {

/// Every instruction set that this machine can run.
inline std::vector<heed::isa> isas() { return heed::available_isas(); }

inline std::string name_of(heed::isa target) { return heed::name(target); }

}  // namespace testing
