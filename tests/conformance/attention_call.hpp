#pragma once

// What the ops attention and varlen have in common: options, terms, and outputs that show whether
// they were written to.

#include <heed/multi_head.hpp>

#include "case.hpp"

namespace conformance {

inline heed::attention_options read_options(const test_case& c) {
  heed::attention_options options;
  if (c.options.contains("scale")) options.scale = number(c.options["scale"]);
  if (c.options.contains("softcap")) options.softcap = number(c.options["softcap"]);
  const std::string causal = c.options.value("causal", "none");
  if (causal == "top_left") {
    options.causal = heed::causal::top_left;
  } else if (causal == "bottom_right") {
    options.causal = heed::causal::bottom_right;
  } else if (causal != "none") {
    throw unsupported("causal " + causal);
  }
  if (c.options.contains("window")) {
    options.window_left = c.options["window"].at(0);
    options.window_right = c.options["window"].at(1);
  }
  return options;
}

/// An input that may be absent; then it has no numbers.
inline const tensor& optional_input(const test_case& c, const std::string& key) {
  static const tensor none{"", {0}, {}};
  const auto found = c.inputs.find(key);
  return found == c.inputs.end() ? none : found->second;
}

/// Where a path writes to.
template <typename Scalar>
struct outputs {
  static constexpr float untouched = -12345;

  outputs(heed::size_type out_size, heed::size_type lse_size)
      : out(heed::row_vector<Scalar>::Constant(out_size, Scalar(untouched))),
        lse(heed::row_vector<heed::accumulator_t<Scalar>>::Constant(lse_size, untouched)) {}

  /// Calls a path and compares the outputs, or the refusal, with those of the case.
  template <typename Call>
  void check(const test_case& c, const std::string& path, const Call& call, failures& failed) {
    try {
      call();
    } catch (const std::invalid_argument& refusal) {
      const std::string text = refusal.what();
      if (c.error.empty()) {
        failed.push_back(path + ": refused: " + text);
      } else if (text.find(c.error) == std::string::npos) {
        failed.push_back(path + ": the refusal does not say \"" + c.error + "\": " + text);
      }
      if ((out.array() != Scalar(untouched)).any() || (lse.array() != untouched).any())
        failed.push_back(path + ": refused, but wrote to its outputs");
      return;
    }
    if (!c.error.empty()) {
      failed.push_back(path + ": not refused for its " + c.error);
      return;
    }
    compare(c, path, "o", out, failed);
    compare(c, path, "lse", lse, failed);
  }

  heed::row_vector<Scalar> out;
  heed::row_vector<heed::accumulator_t<Scalar>> lse;
};

}  // namespace conformance
