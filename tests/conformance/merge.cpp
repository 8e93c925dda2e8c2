#include <heed/merge.hpp>

#include "ops.hpp"

namespace conformance {
namespace {

template <typename Scalar>
heed::attention_result<Scalar> part(const test_case& c, const std::string& suffix) {
  const tensor& out = c.input("o" + suffix);
  if (out.shape.size() != 2) throw malformed("the outputs of merge have two axes");
  heed::attention_result<Scalar> result(out.shape[0], out.shape[1]);
  const auto numbers = values<Scalar>(out);
  result.out = Eigen::Map<const heed::rows<Scalar>>(numbers.data(), out.shape[0], out.shape[1]);
  result.lse = values<Scalar>(c.input("lse" + suffix));
  return result;
}

template <typename Scalar>
void run(const test_case& c, const std::string& path, failures& failed) {
  const heed::attention_result<Scalar> merged =
      heed::merge(part<Scalar>(c, "_a"), part<Scalar>(c, "_b"));
  const heed::row_vector<Scalar> out =
      Eigen::Map<const heed::row_vector<Scalar>>(merged.out.data(), merged.out.size());
  compare(c, path, "o", out, failed);
  compare(c, path, "lse", merged.lse, failed);
}

}  // namespace

void run_merge(const test_case& c, failures& failed) {
  c.allow({}, {"o_a", "lse_a", "o_b", "lse_b"});
  run<double>(c, "merge in double", failed);
  run<float>(c, "merge in float", failed);
}

}  // namespace conformance
