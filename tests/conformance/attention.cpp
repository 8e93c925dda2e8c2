#include <heed/backward.hpp>

#include <algorithm>

#include "../support/isas.hpp"
#include "attention_call.hpp"
#include "ops.hpp"

namespace conformance {
namespace {

/// The inputs of a case in one precision.
template <typename Scalar>
struct call_inputs {
  const test_case& c;
  heed::row_vector<Scalar> query, key, value, bias, alibi, sinks, logit_scales;
  heed::row_vector<bool> keep;
  heed::row_vector<heed::size_type> kv_len, kv_first, q_len;
  heed::tensor_view<const Scalar> query_view, key_view, value_view;

  explicit call_inputs(const test_case& of)
      : c(of),
        query(values<Scalar>(c.input("q"))),
        key(values<Scalar>(c.input("k"))),
        value(values<Scalar>(c.input("v"))),
        bias(values<Scalar>(optional_input(c, "bias"))),
        alibi(values<Scalar>(optional_input(c, "alibi"))),
        sinks(values<Scalar>(optional_input(c, "sinks"))),
        logit_scales(values<Scalar>(optional_input(c, "logit_scales"))),
        keep(values<bool>(optional_input(c, "keep"))),
        kv_len(read_lengths(c)),
        kv_first(values<heed::size_type>(optional_input(c, "kv_first"))),
        q_len(values<heed::size_type>(optional_input(c, "q_len"))),
        query_view(view_of<const Scalar>(c.input("q"), query.data())),
        key_view(view_of<const Scalar>(c.input("k"), key.data())),
        value_view(view_of<const Scalar>(c.input("v"), value.data())) {}
  static heed::row_vector<heed::size_type> read_lengths(const test_case& c) {
    if (!c.options.contains("kv_len")) return values<heed::size_type>(optional_input(c, "kv_len"));
    const std::vector<heed::size_type> lengths = c.options["kv_len"];
    return Eigen::Map<const heed::row_vector<heed::size_type>>(
        lengths.data(), static_cast<heed::size_type>(lengths.size()));
  }
  call_inputs(const call_inputs&) = delete;  // the views stay with the numbers

  bool given(const char* name) const { return c.inputs.count(name) > 0; }
  /// Numbers of the slopes' shape: [Hq], or [B,Hq].
  template <typename Number>
  Eigen::Map<std::conditional_t<std::is_const<Number>::value, const heed::rows<Scalar>,
                                heed::rows<Scalar>>>
  like_slopes(Number* numbers) const {
    const auto& shape = optional_input(c, "alibi").shape;
    return {numbers, shape.size() == 2 ? shape[0] : 1, shape.back()};
  }

  /// call(terms...)
  template <typename Call>
  void with_terms(const Call& call) const {
    const auto keep_view = view_of(optional_input(c, "keep"), keep.data());
    const auto bias_view = view_of(optional_input(c, "bias"), bias.data());
    const auto slopes = like_slopes(alibi.data());
    call(heed::when(given("keep"), heed::keep(keep_view)),
         heed::when(given("bias"), heed::bias(bias_view)),
         heed::when(given("alibi"), heed::alibi(slopes)),
         heed::when(given("sinks"), heed::sinks(sinks)),
         heed::when(given("logit_scales"), heed::logit_scales(logit_scales)),
         heed::when(kv_len.size() > 0, heed::key_lengths(kv_len)),
         heed::when(kv_first.size() > 0, heed::first_keys(kv_first)),
         heed::when(q_len.size() > 0, heed::query_lengths(q_len)));
  }
};

/// The forward call on all paths of one precision.
template <typename Scalar>
void run(const test_case& c, const std::string& precision, failures& failed) {
  const call_inputs<Scalar> in(c);
  const auto &query = in.query_view, &key = in.key_view, &value = in.value_view;
  const heed::size_type batch = query.batch, heads = query.heads, n_q = query.rows,
                        d_v = value.cols;
  const auto check = [&](const std::string& path, const auto& call) {
    outputs<Scalar> result(batch * heads * n_q * d_v, batch * heads * n_q);
    const auto out = heed::bhnd(result.out.data(), batch, heads, n_q, d_v),
               lse = heed::bhnd(result.lse.data(), batch, heads, n_q, heed::size_type(1));
    result.check(
        c, path + " in " + precision,
        [&] { in.with_terms([&](const auto&... terms) { call(out, lse, terms...); }); }, failed);
  };

  heed::attention_options options = read_options(c);
  check("reference", [&](const auto& out, const auto& lse, const auto&... terms) {
    heed::reference_multi_head_attention_into(query, key, value, out, lse, options, terms...);
  });
  check("streaming", [&](const auto& out, const auto& lse, const auto&... terms) {
    heed::detail::streaming(heed::detail::make_problem<Scalar>("streaming_attention", query, key,
                                                               value, out, lse, options, terms...));
  });
  for (const heed::isa target : testing::isas()) {
    options.execution.target = target;
    check("multi_head_attention_into (" + testing::name_of(target) + ")",
          [&](const auto& out, const auto& lse, const auto&... terms) {
            heed::workspace memory;
            heed::multi_head_attention_into(query, key, value, out, lse, options, memory, terms...);
          });
  }
}

/// The gradient on all paths of one precision, each from the results of its own forward call.
template <typename Scalar>
void run_backward(const test_case& c, const std::string& precision, failures& failed) {
  const call_inputs<Scalar> in(c);
  const auto &query = in.query_view, &key = in.key_view, &value = in.value_view;
  const heed::size_type batch = query.batch, heads = query.heads, n_q = query.rows,
                        d_v = value.cols;
  const auto d_o = values<Scalar>(c.input("d_o")),
             d_lse = values<Scalar>(optional_input(c, "d_lse"));
  const auto grad_out = heed::bhnd(d_o.data(), batch, heads, n_q, d_v);
  // A score s is known to half a unit in the last place, s * epsilon / 2: weights, and what is a
  // sum of them, are wrong by that share of themselves. Of the scores of a row, the lse is as large
  // as any that counts.
  double largest_score = 0;
  for (const double one : c.outputs.at("lse").data)
    if (std::isfinite(one)) largest_score = (std::max)(largest_score, std::abs(one));
  const double error_of_weights =
      largest_score * static_cast<double>(std::numeric_limits<Scalar>::epsilon()) / 2;
  const auto check = [&](const std::string& path, const auto& forward, const auto& backward) {
    const auto room = [](heed::size_type numbers) {
      return heed::row_vector<Scalar>(heed::row_vector<Scalar>::Constant(numbers, Scalar(-12345)));
    };
    auto out = room(batch * heads * n_q * d_v), lse = room(batch * heads * n_q),
         dq = room(in.query.size()), dk = room(in.key.size()), dv = room(in.value.size()),
         dbias = room(in.bias.size()), dalibi = room(in.alibi.size()),
         dsinks = room(in.sinks.size()), dlogit_scales = room(in.logit_scales.size());
    const auto out_view = heed::bhnd(out.data(), batch, heads, n_q, d_v),
               lse_view = heed::bhnd(lse.data(), batch, heads, n_q, heed::size_type(1));
    const auto same = [](const char* name, const test_case& of, heed::row_vector<Scalar>& to) {
      return view_of(of.input(name), to.data());
    };
    in.with_terms([&](const auto&... terms) {
      forward(out_view, lse_view, terms...);
      backward(out_view, lse_view, same("q", c, dq), same("k", c, dk), same("v", c, dv), terms...,
               heed::when(in.given("d_lse"),
                          heed::grad_lse(heed::bhnd(d_lse.data(), batch, heads, n_q, 1))),
               heed::when(in.given("bias"),
                          heed::grad_bias(view_of(optional_input(c, "bias"), dbias.data()))),
               heed::when(in.given("alibi"), heed::grad_alibi(in.like_slopes(dalibi.data()))),
               heed::when(in.given("sinks"), heed::grad_sinks(dsinks)),
               heed::when(in.given("logit_scales"), heed::grad_logit_scales(dlogit_scales)));
    });
    const auto compare_with = [&](const char* output, const heed::row_vector<Scalar>& got) {
      compare(c, path + " in " + precision, output, got, failed, error_of_weights);
    };
    compare_with("dq", dq);
    compare_with("dk", dk);
    compare_with("dv", dv);
    if (in.given("bias")) compare_with("dbias", dbias);
    if (in.given("alibi")) compare_with("dalibi", dalibi);
    if (in.given("sinks")) compare_with("dsinks", dsinks);
    if (in.given("logit_scales")) compare_with("dlogit_scales", dlogit_scales);
  };

  heed::attention_options options = read_options(c);
  check(
      "reference",
      [&](const auto& out, const auto& lse, const auto&... terms) {
        heed::reference_multi_head_attention_into(query, key, value, out, lse, options, terms...);
      },
      [&](const auto& out, const auto& lse, const auto& dq, const auto& dk, const auto& dv,
          const auto&... terms) {
        heed::reference_multi_head_attention_backward_into(query, key, value, out, lse, grad_out,
                                                           dq, dk, dv, options, terms...);
      });
  for (const heed::isa target : testing::isas()) {
    options.execution.target = target;
    heed::workspace memory;
    check(
        "multi_head_attention_backward_into (" + testing::name_of(target) + ")",
        [&](const auto& out, const auto& lse, const auto&... terms) {
          heed::multi_head_attention_into(query, key, value, out, lse, options, memory, terms...);
        },
        [&](const auto& out, const auto& lse, const auto& dq, const auto& dk, const auto& dv,
            const auto&... terms) {
          heed::multi_head_attention_backward_into(query, key, value, out, lse, grad_out, dq, dk,
                                                   dv, options, memory, terms...);
        });
  }
}

}  // namespace

void run_attention(const test_case& c, failures& failed) {
  c.allow({"scale", "softcap", "causal", "window"},
          {"q", "k", "v", "keep", "bias", "alibi", "sinks", "kv_len", "kv_first", "q_len"});
  run<double>(c, "double", failed);
  run<float>(c, "float", failed);
}

void run_gradient(const test_case& c, failures& failed) {
  c.allow({"scale", "softcap", "causal", "window", "kv_len"},
          {"q", "k", "v", "keep", "bias", "alibi", "sinks", "logit_scales", "kv_len", "kv_first",
           "q_len", "d_o", "d_lse"});
  run<double>(c, "double", failed);
  run<float>(c, "float", failed);
  run_backward<double>(c, "double", failed);
  run_backward<float>(c, "float", failed);
}

}  // namespace conformance
