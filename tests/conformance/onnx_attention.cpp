// ONNX's Attention (opsets 23 to 25) as calls onto heed.

#include <heed/heed.hpp>

#include "../support/isas.hpp"
#include "attention_call.hpp"
#include "ops.hpp"

namespace conformance {
namespace {

/// Q, K or V: [B, H, S, D], or [B, S, H * D] with the number of heads given.
template <typename Scalar>
heed::tensor_view<const Scalar> heads_of(const tensor& t, const heed::row_vector<Scalar>& data,
                                         heed::size_type heads) {
  if (t.shape.size() == 4)
    return heed::bhnd(data.data(), t.shape[0], t.shape[1], t.shape[2], t.shape[3]);
  if (t.shape.size() != 3 || heads < 1)
    throw malformed("Q, K and V have four axes, or three and a number of heads");
  return heed::bnhd(data.data(), t.shape[0], t.shape[1], heads, t.shape[2] / heads);
}

/// What has been seen before, and then what is new: present_key or present_value, [B, H, S, D].
template <typename Scalar>
struct present {
  present(const tensor& past, const heed::tensor_view<const Scalar>& tokens) {
    const heed::size_type before = past.shape.size() == 4 ? past.shape[2] : 0,
                          length = before + tokens.rows;
    const heed::row_vector<Scalar> old = values<Scalar>(past);
    data.resize(tokens.batch * tokens.heads * length * tokens.cols);
    const auto to = heed::bhnd(data.data(), tokens.batch, tokens.heads, length, tokens.cols);
    const auto from = heed::bhnd(old.data(), tokens.batch, tokens.heads, before, tokens.cols);
    for (heed::size_type b = 0; b < to.batch; ++b)
      for (heed::size_type h = 0; h < to.heads; ++h)
        for (heed::size_type i = 0; i < length; ++i)
          for (heed::size_type d = 0; d < to.cols; ++d)
            to(b, h, i, d) = i < before ? from(b, h, i, d) : tokens(b, h, i - before, d);
    view = to;
  }
  heed::row_vector<Scalar> data;
  heed::tensor_view<const Scalar> view;
};

/// attn_mask of any rank up to four, its last axis filled up to n_kv with what hides.
template <typename Element>
struct mask {
  mask(const tensor& t, heed::size_type n_kv, Element hides) {
    if (t.data.empty()) return;
    const heed::row_vector<Element> given = values<Element>(t);
    const heed::tensor_view<const Element> from = view_of(t, given.data());
    const heed::size_type cols = from.cols == 1 && n_kv != 1 ? 1 : n_kv;
    data.resize(from.batch * from.heads * from.rows * cols);
    const auto to = heed::bhnd(data.data(), from.batch, from.heads, from.rows, cols);
    for (heed::size_type b = 0; b < to.batch; ++b)
      for (heed::size_type h = 0; h < to.heads; ++h)
        for (heed::size_type i = 0; i < to.rows; ++i)
          for (heed::size_type j = 0; j < cols; ++j)
            to(b, h, i, j) = j < from.cols ? from(b, h, i, j) : hides;
    view = to;
  }
  heed::row_vector<Element> data;
  heed::tensor_view<const Element> view;
};

/// What the operator calls is_causal and windows: query i stands at i + offset.
struct position_mask {
  bool causal = false;
  heed::size_type left = -1, right = -1, offset = 0;

  bool operator()(heed::size_type, heed::size_type, heed::size_type i, heed::size_type j) const {
    const heed::size_type distance = j - i - offset;
    return !(causal && distance > 0) && !(left >= 0 && -distance > left) &&
           !(right >= 0 && distance > right);
  }
};

template <typename Scalar>
void run(const test_case& c, const std::string& precision, failures& failed) {
  using Acc = heed::accumulator_t<Scalar>;
  const heed::size_type q_heads = c.options.value("q_num_heads", 0),
                        kv_heads = c.options.value("kv_num_heads", 0);
  const tensor &q = c.input("Q"), &k = c.input("K"), &v = c.input("V"),
               &attn_mask = optional_input(c, "attn_mask");
  const auto q_data = values<Scalar>(q), k_data = values<Scalar>(k), v_data = values<Scalar>(v);
  const heed::tensor_view<const Scalar> query = heads_of(q, q_data, q_heads);
  const tensor& past_key = optional_input(c, "past_key");
  const present<Scalar> key(past_key, heads_of(k, k_data, kv_heads)),
      value(optional_input(c, "past_value"), heads_of(v, v_data, kv_heads));
  const heed::size_type past = past_key.shape.size() == 4 ? past_key.shape[2] : 0;
  const heed::size_type batch = query.batch, heads = query.heads, n_q = query.rows,
                        n_kv = key.view.rows, d_v = value.view.cols;

  static const tensor none{"", {0}, {}};
  const bool boolean = attn_mask.dtype == "bool";
  const mask<bool> keep(boolean ? attn_mask : none, n_kv, false);
  const mask<Acc> bias(boolean ? none : attn_mask, n_kv, heed::detail::negative_infinity<Acc>());
  const auto lengths = values<heed::size_type>(optional_input(c, "nonpad_kv_seqlen"));

  heed::attention_options options;
  if (c.options.contains("scale")) options.scale = number(c.options["scale"]);
  if (c.options.contains("softcap")) options.softcap = number(c.options["softcap"]);
  position_mask place{c.options.value("is_causal", 0) != 0,
                      c.options.value("left_window_size", heed::size_type(-1)),
                      c.options.value("right_window_size", heed::size_type(-1)), past};
  // heed's own alignments where one of them is meant; a mask function where the diagonal is
  // elsewhere.
  const bool bottom_right = lengths.size() > 0 || past == n_kv - n_q;
  if (bottom_right || (past == 0 && place.causal)) {
    if (place.causal)
      options.causal = bottom_right ? heed::causal::bottom_right : heed::causal::top_left;
    options.window_left = place.left;
    options.window_right = place.right;
    place = {};
  }

  const auto check = [&](const std::string& path, const auto& call) {
    heed::row_vector<Scalar> out(batch * heads * n_q * d_v);
    heed::row_vector<Acc> lse(batch * heads * n_q);
    const auto out_view = q.shape.size() == 4 ? heed::bhnd(out.data(), batch, heads, n_q, d_v)
                                              : heed::bnhd(out.data(), batch, n_q, heads, d_v);
    call(out_view, heed::bhnd(lse.data(), batch, heads, n_q, heed::size_type(1)),
         heed::when(keep.view.data, heed::keep(keep.view)),
         heed::when(bias.view.data, heed::bias(bias.view)),
         heed::when(lengths.size() > 0, heed::key_lengths(lengths)), heed::mask_function(place));
    compare(c, path + " in " + precision, "Y", out, failed);
    return lse;
  };
  const heed::row_vector<Acc> lse =
      check("reference", [&](const auto& out, const auto& sums, const auto&... terms) {
        heed::reference_multi_head_attention_into(query, key.view, value.view, out, sums, options,
                                                  terms...);
      });
  for (const heed::isa target : testing::isas())
    check("multi_head_attention_into (" + testing::name_of(target) + ")",
          [&](const auto& out, const auto& sums, const auto&... terms) {
            heed::attention_options on = options;
            on.execution.target = target;
            heed::workspace memory;
            heed::multi_head_attention_into(query, key.view, value.view, out, sums, on, memory,
                                            terms...);
          });

  if (c.outputs.count("present_key")) compare(c, precision, "present_key", key.data, failed);
  if (c.outputs.count("present_value")) compare(c, precision, "present_value", value.data, failed);
  if (!c.outputs.count("qk_matmul_output")) return;

  // Modes 0 to 2: a score function sees the scores scaled, capped and biased, and writes them down.
  // Mode 3: the weights.
  const int mode = c.options.value("qk_matmul_output_mode", 0);
  heed::row_vector<Acc> matrix = heed::row_vector<Acc>::Constant(
      batch * heads * n_q * n_kv, mode == 3 ? Acc(0) : heed::detail::negative_infinity<Acc>());
  const auto at = heed::bhnd(matrix.data(), batch, heads, n_q, n_kv);
  heed::row_vector<Scalar> ignored(batch * heads * n_q * d_v);
  const auto ignored_view = heed::bhnd(ignored.data(), batch, heads, n_q, d_v);
  const auto write_down = [&](Acc score, heed::size_type b, heed::size_type h, heed::size_type i,
                              heed::size_type j) {
    at(b, h, i, j) = mode == 3 ? std::exp(score - lse((b * heads + h) * n_q + i)) : score;
    return score;
  };
  if (mode == 0 || mode == 1) {
    heed::attention_options plain;
    plain.scale = options.scale;
    if (mode == 1) plain.softcap = options.softcap;
    heed::reference_multi_head_attention_into(query, key.view, value.view, ignored_view, {}, plain,
                                              heed::score_function(write_down));
  } else {
    heed::reference_multi_head_attention_into(
        query, key.view, value.view, ignored_view, {}, options, heed::score_function(write_down),
        heed::when(keep.view.data, heed::keep(keep.view)),
        heed::when(bias.view.data, heed::bias(bias.view)),
        heed::when(lengths.size() > 0, heed::key_lengths(lengths)), heed::mask_function(place));
  }
  compare(c, "score function in " + precision, "qk_matmul_output", matrix, failed);
}

}  // namespace

void run_onnx_attention(const test_case& c, failures& failed) {
  c.allow({"scale", "is_causal", "q_num_heads", "kv_num_heads", "softcap", "softmax_precision",
           "qk_matmul_output_mode", "left_window_size", "right_window_size"},
          {"Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"});
  const std::string& type = c.input("Q").dtype;
  if (type == "float16") return run<Eigen::half>(c, "half", failed);
  if (type == "bfloat16") return run<Eigen::bfloat16>(c, "bfloat16", failed);
  run<double>(c, "double", failed);
  run<float>(c, "float", failed);
}

}  // namespace conformance
