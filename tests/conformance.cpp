// heed_conformance [--target ISA] DIR...: runs every JSON case under the folders and says what
// fails, and what the library cannot do yet; on one instruction set, or on what is automatic. Exit
// status 0: at least one case of every folder was run, and none failed.

#include "conformance/ops.hpp"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>

namespace {

using op_function = void (*)(const conformance::test_case&, conformance::failures&);

const std::map<std::string, op_function> ops = {
    {"attention", conformance::run_attention},
    {"gradient", conformance::run_gradient},
    {"merge", conformance::run_merge},
    {"varlen", conformance::run_varlen},
    {"gated_linear", conformance::run_gated_linear},
    {"gated_delta", conformance::run_gated_delta},
    {"rwkv7", conformance::run_rwkv7},
    {"selective_scan", conformance::run_selective_scan},
    {"Attention", conformance::run_onnx_attention},
    {"Softmax", conformance::run_onnx_softmax},
    {"RotaryEmbedding", conformance::run_onnx_rotary_embedding},
    {"FlexAttention", conformance::run_onnx_flex_attention},
    {"LinearAttention", conformance::run_onnx_linear_attention},
    {"CausalConvWithState", conformance::run_onnx_causal_conv},
};

/// The JSON files under a folder (or the one file that the path is), in the order of their names.
std::vector<std::filesystem::path> cases_under(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path))
      if (entry.is_regular_file() && entry.path().extension() == ".json")
        files.push_back(entry.path());
    std::sort(files.begin(), files.end());
  } else if (std::filesystem::is_regular_file(path)) {
    files.push_back(path);
  } else {
    throw std::runtime_error(path.string() + ": no such file or folder");
  }
  if (files.empty())
    throw std::runtime_error(path.string() + ": there is no case (*.json) in this folder");
  return files;
}

struct tally {
  int passed = 0, failed = 0, skipped = 0;
  int run() const { return passed + failed; }
};

/// The outputs of a case that nothing was compared with.
std::string not_compared(const conformance::test_case& c) {
  std::string names;
  if (!c.error.empty()) return names;  // a refusal has no outputs
  for (const auto& output : c.outputs)
    if (!c.compared.count(output.first)) names += (names.empty() ? "" : ", ") + output.first;
  return names;
}

void run_case(const std::filesystem::path& file, tally& count) {
  conformance::failures failed;
  try {
    std::ifstream stream(file);
    if (!stream) throw conformance::malformed("cannot be opened");
    const conformance::test_case c = conformance::read_case(stream);
    const auto op = ops.find(c.op);
    if (op == ops.end()) throw conformance::unsupported("op " + c.op);
    op->second(c, failed);
    // An output that is compared with nothing is a fault of this program.
    const std::string missing = not_compared(c);
    if (!missing.empty()) failed.push_back("nothing is compared with its " + missing);
  } catch (const conformance::unsupported& what) {
    std::cout << "skip " << file.string() << ": not supported yet: " << what.what() << '\n';
    ++count.skipped;
    return;
  } catch (const conformance::malformed& what) {
    failed.push_back(std::string("not a well-formed case: ") + what.what());
  } catch (const std::exception& what) {
    failed.push_back(std::string("unexpected error: ") + what.what());
  }
  if (failed.empty()) {
    ++count.passed;
    return;
  }
  ++count.failed;
  std::cout << "FAIL " << file.string();
  for (std::size_t n = 0; n < failed.size(); ++n) std::cout << (n == 0 ? ": " : "; ") << failed[n];
  std::cout << '\n';
}

/// Runs the cases of some folders on what is automatic now. Returns whether all went well.
bool run_folders(const std::vector<std::string>& folders) {
  bool good = true;
  for (const std::string& folder : folders) {
    tally count;
    for (const std::filesystem::path& file : cases_under(folder)) run_case(file, count);
    std::cout << folder << ": " << count.passed << " passed, " << count.failed << " failed, "
              << count.skipped << " skipped\n";
    if (count.run() == 0)
      std::cout << "FAIL " << folder << ": every case was skipped, so this folder tests nothing\n";
    good = good && count.failed == 0 && count.run() > 0;
  }
  return good;
}
}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> folders(argv + 1, argv + argc);
  const bool every_target = !folders.empty() && folders[0] == "--every-target";
  if (every_target) folders.erase(folders.begin());
  if (folders.empty()) {
    std::cerr << "usage: heed_conformance [--every-target] DIR...\nRuns every JSON case under the "
                 "folders.\n";
    return 1;
  }
  try {
    if (!every_target) return run_folders(folders) ? 0 : 1;
    bool good = true;
    for (const heed::isa target : heed::available_isas()) {
      heed::set_target(target);
      std::cout << heed::name(target) << ":\n";
      good = run_folders(folders) && good;
    }
    return good ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "heed_conformance: " << error.what() << '\n';
    return 1;
  }
}
