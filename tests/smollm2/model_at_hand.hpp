#pragma once

#include "model_file.hpp"

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

/// Is the model there? If not the test is skipped, and ctest says so.
inline bool model_at_hand() {
  if (std::ifstream(smollm2::model_file()).good()) return true;
  std::cout << "SKIP: there is no " << smollm2::model_file()
            << "; examples/smollm2/fetch.py fetches it\n";
  return false;
}

inline nlohmann::json right_answers(const std::string& name) {
  std::ifstream file(SMOLLM2_TEST_DATA "/" + name + ".json");
  return nlohmann::json::parse(file);
}
