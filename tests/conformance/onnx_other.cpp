// ONNX's Softmax, RotaryEmbedding and the preview FlexAttention as calls onto heed.

#include <heed/heed.hpp>

#include "../support/isas.hpp"
#include "attention_call.hpp"
#include "ops.hpp"

namespace conformance {
namespace {

/// Softmax along one axis: heed's is along rows, so the axis is brought there by a strided view of
/// each slice.
template <typename Scalar>
void run_softmax(const test_case& c, const std::string& precision, failures& failed) {
  const tensor& input = c.input("input");
  const heed::size_type rank = static_cast<heed::size_type>(input.shape.size());
  heed::size_type axis = c.options.value("axis", heed::size_type(-1));
  if (axis < 0) axis += rank;
  heed::size_type outer = 1, inner = 1;
  for (heed::size_type a = 0; a < rank; ++a)
    (a < axis ? outer : inner) *= a == axis ? 1 : input.shape[static_cast<std::size_t>(a)];
  const heed::size_type length = input.shape[static_cast<std::size_t>(axis)];
  const auto x = values<Scalar>(input);
  heed::row_vector<Scalar> out(x.size());
  using slice = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
  for (heed::size_type o = 0; o < outer; ++o) {
    const slice transposed(1, inner);
    Eigen::Map<heed::rows<Scalar>, 0, slice>(out.data() + o * length * inner, inner, length,
                                             transposed) =
        heed::scaled_softmax(Eigen::Map<const heed::rows<Scalar>, 0, slice>(
            x.data() + o * length * inner, inner, length, transposed));
  }
  compare(c, precision, "output", out, failed);
}

template <typename Scalar>
void run_rotary(const test_case& c, const std::string& precision, failures& failed) {
  const tensor &input = c.input("X"), &cos_cache = c.input("cos_cache"),
               &positions = optional_input(c, "position_ids");
  heed::row_vector<Scalar> x = values<Scalar>(input);
  const heed::size_type num_heads = c.options.value("num_heads", 0);
  const auto view = input.shape.size() == 4 ? heed::bhnd(x.data(), input.shape[0], input.shape[1],
                                                         input.shape[2], input.shape[3])
                                            : heed::bnhd(x.data(), input.shape[0], input.shape[1],
                                                         num_heads, input.shape[2] / num_heads);
  const auto cos = values<Scalar>(cos_cache), sin = values<Scalar>(c.input("sin_cache"));
  const heed::size_type pairs = cos_cache.shape.back(), table_rows = cos.size() / pairs;
  using table = Eigen::Map<const heed::rows<Scalar>>;
  std::vector<heed::size_type> places;  // without position_ids the tables hold a row for each token
  for (heed::size_type t = 0; t < view.batch * view.rows; ++t)
    places.push_back(positions.data.empty() ? t
                                            : static_cast<heed::size_type>(
                                                  positions.data[static_cast<std::size_t>(t)]));
  heed::rotate_into(view, table(cos.data(), table_rows, pairs),
                    table(sin.data(), table_rows, pairs), places,
                    c.options.value("interleaved", 0) ? heed::rope_layout::interleaved
                                                      : heed::rope_layout::half_split);
  compare(c, precision, "Y", x, failed);
}

/// The graphs that the cases carry as score_mod, as functions.
template <typename Acc>
struct named_function {
  std::string graph;
  Acc constant = 0;

  Acc operator()(Acc score, heed::size_type, heed::size_type, heed::size_type i,
                 heed::size_type j) const {
    if (graph == "score_mod_bias") return score + constant;
    if (graph == "score_mod_soft_cap") return constant * std::tanh(score / constant);
    if (graph == "score_mod_causal_mask")
      return i >= j ? score : heed::detail::negative_infinity<Acc>();
    return score;
  }
};

template <typename Scalar>
void run_flex(const test_case& c, const std::string& precision, failures& failed) {
  using Acc = heed::accumulator_t<Scalar>;
  const tensor &q = c.input("Q"), &k = c.input("K"), &v = c.input("V");
  const auto q_data = values<Scalar>(q), k_data = values<Scalar>(k), v_data = values<Scalar>(v);
  const auto query = view_of(q, q_data.data()), key = view_of(k, k_data.data()),
             value = view_of(v, v_data.data());
  heed::attention_options options;
  if (c.options.contains("scale")) options.scale = number(c.options["scale"]);

  named_function<Acc> function;
  if (c.options.contains("score_mod")) {
    const auto& graph = c.options["score_mod"];
    function.graph = graph.at("graph").get<std::string>();
    const std::map<std::string, const char*> constants = {
        {"score_mod_bias", "bias"}, {"score_mod_soft_cap", "cap"}, {"score_mod_causal_mask", ""}};
    const auto constant = constants.find(function.graph);
    if (constant == constants.end()) throw unsupported("score_mod " + function.graph);
    if (*constant->second)
      function.constant = Acc(number(graph.at("constants").at(constant->second).at(0)));
  }
  const auto check = [&](const std::string& path, const auto& call) {
    heed::row_vector<Scalar> out(query.batch * query.heads * query.rows * value.cols);
    call(heed::bhnd(out.data(), query.batch, query.heads, query.rows, value.cols),
         heed::score_function(function));
    compare(c, path + " in " + precision, "Y", out, failed);
  };
  check("reference", [&](const auto& out, const auto& term) {
    heed::reference_multi_head_attention_into(query, key, value, out, {}, options, term);
  });
  for (const heed::isa target : testing::isas())
    check("multi_head_attention_into (" + testing::name_of(target) + ")",
          [&](const auto& out, const auto& term) {
            options.execution.target = target;
            heed::workspace memory;
            heed::multi_head_attention_into(query, key, value, out, {}, options, memory, term);
          });
}

}  // namespace

void run_onnx_softmax(const test_case& c, failures& failed) {
  c.allow({"axis"}, {"input"});
  run_softmax<double>(c, "double", failed);
  run_softmax<float>(c, "float", failed);
}

void run_onnx_rotary_embedding(const test_case& c, failures& failed) {
  c.allow({"interleaved", "num_heads", "rotary_embedding_dim"},
          {"X", "cos_cache", "sin_cache", "position_ids"});
  run_rotary<double>(c, "double", failed);
  run_rotary<float>(c, "float", failed);
}

void run_onnx_flex_attention(const test_case& c, failures& failed) {
  c.allow({"scale", "score_mod"}, {"Q", "K", "V"});
  if (c.input("Q").dtype == "float16") return run_flex<Eigen::half>(c, "half", failed);
  run_flex<double>(c, "double", failed);
  run_flex<float>(c, "float", failed);
}

}  // namespace conformance
