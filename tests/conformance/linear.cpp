#include <heed/causal_conv.hpp>
#include <heed/delta_rule.hpp>
#include <heed/linear_attention.hpp>
#include <heed/rwkv7.hpp>
#include <heed/selective_scan.hpp>

#include "ops.hpp"

namespace conformance {
namespace {

template <typename Scalar>
using numbers = heed::row_vector<Scalar>;

bool has(const test_case& c, const std::string& input) { return c.inputs.count(input) != 0; }

template <typename Scalar>
numbers<Scalar> optional_values(const test_case& c, const std::string& input) {
  return has(c, input) ? values<Scalar>(c.input(input)) : numbers<Scalar>(0);
}

/// A state to be carried on: the case's own, or zeros.
template <typename Scalar>
numbers<Scalar> state_values(const test_case& c, const std::string& input, heed::size_type size) {
  return has(c, input) ? values<Scalar>(c.input(input)) : numbers<Scalar>::Zero(size);
}

/// The type that an ONNX output is rounded to before it is compared.
template <typename Scalar>
numbers<Scalar> rounded_as(const tensor& t, const numbers<Scalar>& x) {
  if (t.dtype != "float16") return x;
  return x.template cast<Eigen::half>().template cast<Scalar>();
}

heed::size_type extent(const tensor& t, std::size_t axis) {
  if (axis >= t.shape.size()) throw malformed("a tensor has fewer axes than the op calls for");
  return t.shape[axis];
}

/// Tokens at a time in the chunked form; 0 is the library's choice, -1 stands for the recurrent
/// form.
constexpr heed::size_type paths[] = {-1, 0, 1, 5, 16, 64};
std::string path_name(heed::size_type chunk) {
  return chunk < 0 ? "recurrent" : "chunked, chunk " + std::to_string(chunk);
}

// What gated_linear, gated_delta and ONNX's LinearAttention come down to.
template <typename Scalar>
struct linear_call {
  numbers<Scalar> q, k, v, gate, beta, bonus, state;
  heed::tensor_view<const Scalar> query, key, value, log_gate, beta_view, bonus_view;
  heed::linear_attention_options options;
  bool bonus_given = false, delta = false;

  /// [B,H,T,d_v], dense, in the order of `out`; the state is carried on.
  void run(const heed::tensor_view<Scalar>& out, const heed::tensor_view<Scalar>& carried,
           heed::size_type chunk) {
    heed::workspace memory;
    if (delta) {
      heed::delta_rule_options same;
      same.scale = options.scale;
      if (chunk < 0) {
        heed::recurrent_multi_head_delta_rule_into(
            query, key, value, beta_view, out, same,
            heed::when(log_gate.data, heed::log_gate(log_gate)), heed::carry(carried));
      } else {
        same.chunk = chunk;
        heed::multi_head_delta_rule_into(query, key, value, beta_view, out, same, memory,
                                         heed::when(log_gate.data, heed::log_gate(log_gate)),
                                         heed::carry(carried));
      }
    } else if (chunk < 0) {
      heed::recurrent_multi_head_linear_attention_into(
          query, key, value, out, options, heed::when(log_gate.data, heed::log_gate(log_gate)),
          heed::when(bonus_view.data, heed::bonus(bonus_view)), heed::carry(carried));
    } else {
      options.chunk = chunk;
      heed::multi_head_linear_attention_into(query, key, value, out, options, memory,
                                             heed::when(log_gate.data, heed::log_gate(log_gate)),
                                             heed::when(bonus_view.data, heed::bonus(bonus_view)),
                                             heed::carry(carried));
    }
  }
};

template <typename Scalar>
void run_gated(const test_case& c, bool delta, const std::string& type, failures& failed) {
  linear_call<Scalar> call;
  call.q = values<Scalar>(c.input("q"));
  call.k = values<Scalar>(c.input("k"));
  call.v = values<Scalar>(c.input("v"));
  call.query = view_of(c.input("q"), call.q.data());
  call.key = view_of(c.input("k"), call.k.data());
  call.value = view_of(c.input("v"), call.v.data());
  call.delta = delta;
  const heed::size_type heads = call.key.heads, length = call.key.rows, d_k = call.key.cols,
                        d_v = call.value.cols;

  const std::string gate = c.options.value("gate", "none");
  if (gate != "none") {
    call.gate = values<Scalar>(c.input("log_gate"));
    if (gate == "constant") {
      call.log_gate = heed::bhnd(call.gate.data(), 1, heads, 1, 1);
    } else if (gate == "head" || gate == "key") {
      call.log_gate = heed::bhnd(call.gate.data(), 1, heads, length, gate == "key" ? d_k : 1);
    } else {
      throw unsupported("gate " + gate);
    }
  }
  if (delta) {
    call.beta = values<Scalar>(c.input("beta"));
    call.beta_view = heed::bhnd(call.beta.data(), 1, heads, length, 1);
  }
  const std::string read = c.options.value("read", "after_update");
  if (read == "before_update") {
    call.bonus =
        has(c, "bonus") ? values<Scalar>(c.input("bonus")) : numbers<Scalar>::Zero(heads * d_k);
    call.bonus_view = heed::bhnd(call.bonus.data(), 1, heads, 1, d_k);
  } else if (read != "after_update") {
    throw unsupported("read " + read);
  }
  if (c.options.contains("scale")) call.options.scale = number(c.options["scale"]);
  const std::string map = c.options.value("feature_map", "none");
  if (map == "elu_plus_one") {
    call.options.feature_map = heed::feature_map::elu_plus_one;
  } else if (map != "none") {
    throw unsupported("feature_map " + map);
  }
  call.options.normalise = c.options.value("normalise", false);
  if (c.options.contains("eps")) call.options.epsilon = number(c.options["eps"]);

  const heed::size_type state_cols = d_v + (call.options.normalise ? 1 : 0);
  for (const heed::size_type chunk : paths) {
    numbers<Scalar> out(heads * length * d_v),
        state = state_values<Scalar>(c, "initial_state", heads * d_k * state_cols);
    call.run(heed::bhnd(out.data(), 1, heads, length, d_v),
             heed::bhnd(state.data(), 1, heads, d_k, state_cols), chunk);
    compare(c, type + ", " + path_name(chunk), "o", out, failed);
    if (c.outputs.count("final_state"))
      compare(c, type + ", " + path_name(chunk), "final_state", state, failed);
  }
}

template <typename Scalar>
void run_rwkv7_in(const test_case& c, const std::string& type, failures& failed) {
  const auto r = values<Scalar>(c.input("r")), w = values<Scalar>(c.input("w")),
             k = values<Scalar>(c.input("k")), v = values<Scalar>(c.input("v")),
             a = values<Scalar>(c.input("a")), b = values<Scalar>(c.input("b"));
  const heed::size_type heads = extent(c.input("k"), 0), length = extent(c.input("k"), 1),
                        d_k = extent(c.input("k"), 2), d_v = extent(c.input("v"), 2);
  numbers<Scalar> out(heads * length * d_v),
      state = state_values<Scalar>(c, "initial_state", heads * d_v * d_k);
  heed::workspace memory;
  heed::multi_head_rwkv7_into(view_of(c.input("r"), r.data()), view_of(c.input("w"), w.data()),
                              view_of(c.input("k"), k.data()), view_of(c.input("v"), v.data()),
                              view_of(c.input("a"), a.data()), view_of(c.input("b"), b.data()),
                              heed::bhnd(out.data(), 1, heads, length, d_v), {}, memory,
                              heed::carry(heed::bhnd(state.data(), 1, heads, d_v, d_k)));
  compare(c, type, "o", out, failed);
  compare(c, type, "final_state", state, failed);
}

template <typename Scalar>
void run_selective_scan_in(const test_case& c, const std::string& type, failures& failed) {
  const auto u = values<Scalar>(c.input("u")), dt = values<Scalar>(c.input("dt")),
             a = values<Scalar>(c.input("a")), b = values<Scalar>(c.input("b")),
             m = values<Scalar>(c.input("c")), d = optional_values<Scalar>(c, "d"),
             bias = optional_values<Scalar>(c, "dt_bias"), z = optional_values<Scalar>(c, "z");
  const heed::size_type length = extent(c.input("u"), 0), channels = extent(c.input("u"), 1),
                        d_state = extent(c.input("a"), 1);
  numbers<Scalar> out(length * channels),
      state = state_values<Scalar>(c, "initial_state", channels * d_state);
  heed::selective_scan_options options;
  options.softplus = c.options.value("softplus", false);
  heed::workspace memory;
  heed::selective_scan_into(
      view_of(c.input("u"), u.data()), view_of(c.input("dt"), dt.data()),
      view_of(c.input("a"), a.data()), view_of(c.input("b"), b.data()),
      view_of(c.input("c"), m.data()), heed::bhnd(out.data(), 1, 1, length, channels), options,
      memory, heed::when(d.size() > 0, heed::skip(d)),
      heed::when(bias.size() > 0, heed::step_bias(bias)),
      heed::when(z.size() > 0, heed::silu_gate(heed::bhnd(z.data(), 1, 1, length, channels))),
      heed::carry(heed::bhnd(state.data(), 1, 1, channels, d_state)));
  compare(c, type, "o", out, failed);
  compare(c, type, "final_state", state, failed);
}

/// A packed tensor [B, T, H * dim] as [B, H, T, dim].
template <typename Scalar>
heed::tensor_view<const Scalar> packed(const tensor& t, const numbers<Scalar>& x,
                                       heed::size_type heads) {
  if (heads < 1 || extent(t, 2) % heads != 0)
    throw malformed("a packed tensor's last extent is not a multiple of its heads");
  return heed::bnhd(x.data(), extent(t, 0), extent(t, 1), heads, extent(t, 2) / heads);
}

template <typename Scalar>
void run_onnx_linear(const test_case& c, const std::string& type, failures& failed) {
  const std::string rule = c.options.value("update_rule", "gated_delta");
  const heed::size_type heads = c.options.at("q_num_heads"),
                        kv_heads = c.options.at("kv_num_heads");
  linear_call<Scalar> call;
  call.q = values<Scalar>(c.input("query"));
  call.k = values<Scalar>(c.input("key"));
  call.v = values<Scalar>(c.input("value"));
  call.query = packed(c.input("query"), call.q, heads);
  call.key = packed(c.input("key"), call.k, kv_heads);
  call.value = packed(c.input("value"), call.v, kv_heads);
  const heed::size_type batch = call.query.batch, length = call.query.rows, d_k = call.key.cols,
                        d_v = call.value.cols;
  if (rule == "gated" || rule == "gated_delta") {
    call.gate = values<Scalar>(c.input("decay"));
    call.log_gate = packed(c.input("decay"), call.gate, kv_heads);
  }
  if (rule == "delta" || rule == "gated_delta") {
    call.delta = true;
    call.beta = values<Scalar>(c.input("beta"));
    call.beta_view = packed(c.input("beta"), call.beta, extent(c.input("beta"), 2));
  } else if (rule != "linear" && rule != "gated") {
    throw unsupported("update_rule " + rule);
  }
  const double scale = c.options.contains("scale") ? number(c.options["scale"]) : 0;
  if (scale != 0) call.options.scale = scale;  // ONNX: 0 stands for 1 / sqrt(d_k)

  for (const heed::size_type chunk : paths) {
    numbers<Scalar> out(batch * length * heads * d_v),
        state = state_values<Scalar>(c, "past_state", batch * kv_heads * d_k * d_v);
    call.run(heed::bnhd(out.data(), batch, length, heads, d_v),
             heed::bhnd(state.data(), batch, kv_heads, d_k, d_v), chunk);
    compare(c, type + ", " + path_name(chunk), "output", rounded_as(c.outputs.at("output"), out),
            failed);
    compare(c, type + ", " + path_name(chunk), "present_state",
            rounded_as(c.outputs.at("present_state"), state), failed);
  }
}

/// A tensor [B, C, T] as [B, 1, T, C].
template <typename Scalar>
heed::tensor_view<Scalar> channels_first(Scalar* data, heed::size_type batch,
                                         heed::size_type channels, heed::size_type length) {
  return {data, batch, 1, length, channels, channels * length, 0, 1, length};
}

template <typename Scalar>
void run_onnx_conv(const test_case& c, const std::string& type, failures& failed) {
  using Acc = heed::accumulator_t<Scalar>;
  const tensor &input = c.input("input"), &weight = c.input("weight");
  const heed::size_type batch = extent(input, 0), channels = extent(input, 1),
                        length = extent(input, 2), taps = extent(weight, 2);
  const auto x = values<Scalar>(input), w = values<Scalar>(weight),
             bias = optional_values<Scalar>(c, "bias");
  numbers<Scalar> out(batch * channels * length);
  numbers<Acc> state = state_values<Acc>(c, "past_state", batch * channels * (taps - 1));
  heed::causal_conv_options options;
  const std::string name = c.options.value("activation", "none");
  if (name == "silu" || name == "swish") {
    options.activation = heed::activation::silu;
  } else if (name != "none") {
    throw unsupported("activation " + name);
  }
  heed::causal_conv_into(channels_first(x.data(), batch, channels, length),
                         heed::bhnd(w.data(), 1, 1, channels, taps),
                         channels_first(out.data(), batch, channels, length), options,
                         heed::when(bias.size() > 0, heed::channel_bias(bias)),
                         heed::carry(channels_first(state.data(), batch, channels, taps - 1)));
  compare(c, type, "output", out, failed);
  compare(c, type, "present_state", state, failed);
}

const std::vector<std::string> gated_options = {"scale",       "gate",      "read",
                                                "feature_map", "normalise", "eps"};

}  // namespace

void run_gated_linear(const test_case& c, failures& failed) {
  c.allow(gated_options, {"q", "k", "v", "log_gate", "bonus", "initial_state"});
  run_gated<double>(c, false, "double", failed);
  run_gated<float>(c, false, "float", failed);
}

void run_gated_delta(const test_case& c, failures& failed) {
  c.allow({"scale", "gate"}, {"q", "k", "v", "log_gate", "beta", "initial_state"});
  run_gated<double>(c, true, "double", failed);
  run_gated<float>(c, true, "float", failed);
}

void run_rwkv7(const test_case& c, failures& failed) {
  c.allow({}, {"r", "w", "k", "v", "a", "b", "initial_state"});
  run_rwkv7_in<double>(c, "double", failed);
  run_rwkv7_in<float>(c, "float", failed);
}

void run_selective_scan(const test_case& c, failures& failed) {
  c.allow({"softplus"}, {"u", "dt", "a", "b", "c", "d", "dt_bias", "z", "initial_state"});
  run_selective_scan_in<double>(c, "double", failed);
  run_selective_scan_in<float>(c, "float", failed);
}

void run_onnx_linear_attention(const test_case& c, failures& failed) {
  c.allow({"q_num_heads", "kv_num_heads", "update_rule", "scale", "chunk_size"},
          {"query", "key", "value", "past_state", "decay", "beta"});
  run_onnx_linear<double>(c, "double", failed);
  run_onnx_linear<float>(c, "float", failed);
}

void run_onnx_causal_conv(const test_case& c, failures& failed) {
  c.allow({"activation", "ndim"}, {"input", "weight", "bias", "past_state"});
  if (c.input("input").dtype == "float16") {
    run_onnx_conv<Eigen::half>(c, "half", failed);
  } else {
    run_onnx_conv<double>(c, "double", failed);
    run_onnx_conv<float>(c, "float", failed);
  }
}

}  // namespace conformance
