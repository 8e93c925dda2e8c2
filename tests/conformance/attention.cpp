#include "../support/isas.hpp"
#include "attention_call.hpp"
#include "ops.hpp"

namespace conformance {
namespace {

/// All paths of one precision.
template <typename Scalar>
void run(const test_case& c, const std::string& precision, failures& failed) {
  const auto& q = c.input("q");
  const auto& k = c.input("k");
  const auto& v = c.input("v");
  const auto query = values<Scalar>(q), key = values<Scalar>(k), value = values<Scalar>(v);
  const auto query_view = view_of(q, query.data()), key_view = view_of(k, key.data()),
             value_view = view_of(v, value.data());

  const auto keep = values<bool>(optional_input(c, "keep"));
  const auto bias = values<Scalar>(optional_input(c, "bias")),
             alibi = values<Scalar>(optional_input(c, "alibi"));
  const auto sinks = values<Scalar>(optional_input(c, "sinks"));
  const auto kv_len = values<heed::size_type>(optional_input(c, "kv_len"));
  const auto keep_view = view_of(optional_input(c, "keep"), keep.data());
  const auto bias_view = view_of(optional_input(c, "bias"), bias.data());

  const heed::size_type batch = query_view.batch, heads = query_view.heads, n_q = query_view.rows,
                        d_v = value_view.cols;
  const auto check = [&](const std::string& path, const auto& call) {
    outputs<Scalar> result(batch * heads * n_q * d_v, batch * heads * n_q);
    const auto out = heed::bhnd(result.out.data(), batch, heads, n_q, d_v),
               lse = heed::bhnd(result.lse.data(), batch, heads, n_q, heed::size_type(1));
    result.check(
        c, path + " in " + precision,
        [&] {
          const auto given = [&](const char* name) { return c.inputs.count(name) > 0; };
          call(out, lse, heed::when(given("keep"), heed::keep(keep_view)),
               heed::when(given("bias"), heed::bias(bias_view)),
               heed::when(given("alibi"), heed::alibi(alibi)),
               heed::when(given("sinks"), heed::sinks(sinks)),
               heed::when(given("kv_len"), heed::key_lengths(kv_len)));
        },
        failed);
  };

  heed::attention_options options = read_options(c);
  check("reference", [&](const auto& out, const auto& lse, const auto&... terms) {
    heed::reference_multi_head_attention_into(query_view, key_view, value_view, out, lse, options,
                                              terms...);
  });
  check("streaming", [&](const auto& out, const auto& lse, const auto&... terms) {
    heed::detail::streaming(heed::detail::make_problem<Scalar>(
        "streaming_attention", query_view, key_view, value_view, out, lse, options, terms...));
  });
  for (const heed::isa target : testing::isas()) {
    options.execution.target = target;
    check("multi_head_attention_into (" + testing::name_of(target) + ")",
          [&](const auto& out, const auto& lse, const auto&... terms) {
            heed::workspace memory;
            heed::multi_head_attention_into(query_view, key_view, value_view, out, lse, options,
                                            memory, terms...);
          });
  }
}

}  // namespace

void run_attention(const test_case& c, failures& failed) {
  c.allow({"scale", "softcap", "causal", "window"},
          {"q", "k", "v", "keep", "bias", "alibi", "sinks", "kv_len"});
  run<double>(c, "double", failed);
  run<float>(c, "float", failed);
}

void run_gradient(const test_case& c, failures& failed) {
  c.allow({"scale", "softcap", "causal", "window"},
          {"q", "k", "v", "keep", "bias", "sinks", "d_o", "d_lse"});
  run<double>(c, "double", failed);
  run<float>(c, "float", failed);
}

}  // namespace conformance
