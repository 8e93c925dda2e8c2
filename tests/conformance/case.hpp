#pragma once

// One JSON case, the numbers in it, and the comparison that it asks for. tests/data/README.md
// describes the format.

#include <heed/isa.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "../support/checksum.hpp"

namespace conformance {

/// A file that cannot be read as a case.
struct malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A case of something that the library does not have (yet).
struct unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct tensor {
  std::string dtype;
  std::vector<heed::size_type> shape;
  std::vector<double> data;
};

struct test_case {
  std::string name, op;
  std::string error;  // the word that the refusal must hold; empty: the case must run
  nlohmann::json options;
  std::map<std::string, tensor> inputs, outputs;
  mutable std::set<std::string> compared;  // the outputs that something was compared with
  double rtol = 0, atol = 0;

  /// An input that must be there.
  const tensor& input(const std::string& key) const {
    const auto found = inputs.find(key);
    if (found == inputs.end()) throw malformed("input " + key + " is missing");
    return found->second;
  }
  /// Options and inputs that the op does not know make the case one that is not supported.
  void allow(const std::vector<std::string>& known_options,
             const std::vector<std::string>& known_inputs) const {
    const auto in = [](const std::vector<std::string>& known, const std::string& word) {
      for (const std::string& one : known)
        if (one == word) return true;
      return false;
    };
    for (const auto& option : options.items())
      if (!in(known_options, option.key()))
        throw unsupported("op " + op + ": option " + option.key());
    for (const auto& one : inputs)
      if (!in(known_inputs, one.first)) throw unsupported("op " + op + ": input " + one.first);
  }
};

/// What went wrong in a case, one sentence each.
using failures = std::vector<std::string>;

inline double number(const nlohmann::json& json) {
  if (json.is_number()) return json.get<double>();
  if (json.is_boolean()) return json.get<bool>() ? 1 : 0;
  if (json == "inf") return std::numeric_limits<double>::infinity();
  if (json == "-inf") return -std::numeric_limits<double>::infinity();
  if (json == "nan") return std::numeric_limits<double>::quiet_NaN();
  throw malformed("not a number: " + json.dump());
}

inline std::map<std::string, tensor> read_tensors(const nlohmann::json& json) {
  std::map<std::string, tensor> tensors;
  for (const auto& item : json.items()) {
    tensor one{item.value().at("dtype"), item.value().at("shape"), {}};
    heed::size_type size = 1;
    for (const heed::size_type extent : one.shape) size *= extent;
    for (const nlohmann::json& value : item.value().at("data")) one.data.push_back(number(value));
    if (size != static_cast<heed::size_type>(one.data.size()))
      throw malformed(item.key() + " has " + std::to_string(one.data.size()) +
                      " numbers, but its shape holds " + std::to_string(size));
    tensors[item.key()] = one;
  }
  return tensors;
}

inline test_case read_case(std::istream& stream) {
  try {
    const nlohmann::json json = nlohmann::json::parse(stream);
    test_case c;
    c.name = json.at("name");
    c.op = json.at("op");
    c.error = json.value("error", "");
    c.options = json.contains("attributes") ? json["attributes"]
                                            : json.value("options", nlohmann::json::object());
    c.rtol = json.at("rtol");
    c.atol = json.at("atol");
    c.inputs = read_tensors(json.at("inputs"));
    c.outputs = read_tensors(json.at("outputs"));
    return c;
  } catch (const nlohmann::json::exception& error) {
    throw malformed(error.what());
  }
}

/// The numbers of a tensor in another type; through the type that they were stored in, so that
/// every run starts from the same values.
template <typename Scalar>
heed::row_vector<Scalar> values(const tensor& t) {
  heed::row_vector<Scalar> result(static_cast<heed::size_type>(t.data.size()));
  for (heed::size_type i = 0; i < result.size(); ++i) {
    const double stored = t.data[static_cast<std::size_t>(i)];
    result(i) = t.dtype == "float32" ? Scalar(static_cast<float>(stored)) : Scalar(stored);
  }
  return result;
}

/// The extents of a tensor with ones put before them until there are four.
inline std::vector<heed::size_type> four_extents(const tensor& t) {
  if (t.shape.size() > 4) throw unsupported("a tensor of more than four axes");
  std::vector<heed::size_type> shape(4 - t.shape.size(), 1);
  shape.insert(shape.end(), t.shape.begin(), t.shape.end());
  return shape;
}

/// Numbers row by row, with the extents of t, as [batch, heads, rows, cols].
template <typename Scalar>
heed::tensor_view<Scalar> view_of(const tensor& t, Scalar* data) {
  const std::vector<heed::size_type> shape = four_extents(t);
  return heed::bhnd(data, shape[0], shape[1], shape[2], shape[3]);
}

/// Compares the result of a path with an output of the case. `share`: by how much of its largest
/// number the output may be wrong besides.
template <typename Scalar>
void compare(const test_case& c, const std::string& path, const std::string& output,
             const heed::row_vector<Scalar>& got, failures& failed, double share = 0) {
  const auto found = c.outputs.find(output);
  if (found == c.outputs.end()) throw malformed("output " + output + " is missing");
  c.compared.insert(output);
  testing::checksum(c.name + ": " + path + ": " + output + ": " +
                        heed::name(heed::detail::resolve(heed::isa::automatic)),
                    got);
  const std::vector<double>& want = found->second.data;
  if (got.size() != static_cast<heed::size_type>(want.size()))
    throw malformed("output " + output + " has " + std::to_string(want.size()) +
                    " numbers, but the inputs call for " + std::to_string(got.size()));

  double slack = 0;
  for (const double w : want)
    if (std::isfinite(w)) slack = (std::max)(slack, share * std::abs(w));
  std::size_t wrong = 0, first = 0;
  for (std::size_t n = 0; n < want.size(); ++n) {
    const double g = static_cast<double>(got(static_cast<heed::size_type>(n))), w = want[n];
    const bool same = std::isfinite(w) ? std::abs(g - w) <= c.atol + c.rtol * std::abs(w) + slack
                      : std::isnan(w)  ? std::isnan(g)
                                       : g == w;
    if (!same && wrong++ == 0) first = n;
  }
  if (wrong == 0) return;
  std::ostringstream text;
  text.precision(9);
  text << path << ": " << output << "[" << first << "] is "
       << static_cast<double>(got(static_cast<heed::size_type>(first))) << ", not " << want[first]
       << " (" << wrong << " of " << want.size() << " are wrong)";
  failed.push_back(text.str());
}

}  // namespace conformance
