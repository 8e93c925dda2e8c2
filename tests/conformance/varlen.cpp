#include <heed/ragged.hpp>

#include "attention_call.hpp"
#include "ops.hpp"

namespace conformance {
namespace {

template <typename Scalar>
void run(const test_case& c, const std::string& precision, failures& failed) {
  const auto query = values<Scalar>(c.input("q")), key = values<Scalar>(c.input("k")),
             value = values<Scalar>(c.input("v"));
  const auto query_starts = values<heed::size_type>(c.input("cu_seqlens_q")),
             key_starts = values<heed::size_type>(c.input("cu_seqlens_kv"));
  // the layout is [total, heads, dim], and [heads, total] for lse
  const auto packed = [](const tensor& t, auto* data) {
    if (t.shape.size() != 3) throw malformed("q, k and v of varlen have three axes");
    return heed::bnhd(data, heed::size_type(1), t.shape[0], t.shape[1], t.shape[2]);
  };
  const auto q = packed(c.input("q"), query.data()), k = packed(c.input("k"), key.data()),
             v = packed(c.input("v"), value.data());
  const heed::attention_options options = read_options(c);

  const auto check = [&](const std::string& path, const auto& call) {
    outputs<Scalar> result(q.rows * q.heads * v.cols, q.rows * q.heads);
    const auto out = heed::bnhd(result.out.data(), heed::size_type(1), q.rows, q.heads, v.cols);
    const auto lse =
        heed::bhnd(result.lse.data(), heed::size_type(1), q.heads, q.rows, heed::size_type(1));
    result.check(
        c, path + " in " + precision, [&] { call(out, lse); }, failed);
  };
  check("reference", [&](const auto& out, const auto& lse) {
    heed::reference_ragged_attention_into(q, k, v, out, lse, query_starts, key_starts, options);
  });
  check("ragged_attention_into", [&](const auto& out, const auto& lse) {
    heed::workspace memory;
    heed::ragged_attention_into(q, k, v, out, lse, query_starts, key_starts, options, memory);
  });
}

}  // namespace

void run_varlen(const test_case& c, failures& failed) {
  c.allow({"scale", "softcap", "causal", "window", "layout"},
          {"q", "k", "v", "cu_seqlens_q", "cu_seqlens_kv"});
  run<double>(c, "double", failed);
  run<float>(c, "float", failed);
}

}  // namespace conformance
