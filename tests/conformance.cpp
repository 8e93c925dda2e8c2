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
  int passed = 0, in_part = 0, failed = 0, skipped = 0;
  int run() const { return passed + in_part + failed; }
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
  std::string missing;
  try {
    std::ifstream stream(file);
    if (!stream) throw conformance::malformed("cannot be opened");
    const conformance::test_case c = conformance::read_case(stream);
    const auto op = ops.find(c.op);
    if (op == ops.end()) throw conformance::unsupported("op " + c.op);
    op->second(c, failed);
    missing = not_compared(c);
    // There is no gradient in the library yet. Of any other op, an output that is compared with
    // nothing is a fault of this program.
    if (c.op != "gradient" && !missing.empty())
      failed.push_back("nothing is compared with its " + missing);
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
    ++(missing.empty() ? count.passed : count.in_part);
    if (!missing.empty())
      std::cout << "in part " << file.string() << ": not supported yet: " << missing << '\n';
    return;
  }
  ++count.failed;
  std::cout << "FAIL " << file.string();
  for (std::size_t n = 0; n < failed.size(); ++n) std::cout << (n == 0 ? ": " : "; ") << failed[n];
  std::cout << '\n';
}

/// The instruction set of that name.
heed::isa target_of(const std::string& name) {
  for (const heed::isa target : heed::available_isas())
    if (name == heed::name(target)) return target;
  throw std::runtime_error("this CPU has no instruction set " + name);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: heed_conformance [--target ISA] DIR...\nRuns every JSON case under the "
                 "folders.\n";
    return 1;
  }
  try {
    int first = 1;
    if (std::string(argv[1]) == "--target" && argc > 3) {
      first = 3;
      heed::set_target(target_of(argv[2]));
    }
    bool good = true;
    for (int n = first; n < argc; ++n) {
      tally count;
      for (const std::filesystem::path& file : cases_under(argv[n])) run_case(file, count);
      std::cout << argv[n] << ": " << count.passed << " passed, " << count.in_part
                << " passed in part, " << count.failed << " failed, " << count.skipped
                << " skipped\n";
      if (count.run() == 0)
        std::cout << "FAIL " << argv[n]
                  << ": every case was skipped, so this folder tests nothing\n";
      good = good && count.failed == 0 && count.run() > 0;
    }
    return good ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "heed_conformance: " << error.what() << '\n';
    return 1;
  }
}
