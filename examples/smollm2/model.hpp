#pragma once

#include "gguf.hpp"
#include "huge_pages.hpp"
#include "quantised.hpp"

#include <heed/types.hpp>

#include <Eigen/Core>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <string>
#include <vector>

namespace smollm2 {

/// One row a token.
using matrix = heed::rows<float>;

/// The sizes of a llama-like decoder.
struct model_config {
  size_type layers, width, heads, kv_heads, head_dim, hidden, context, vocabulary;
  double rope_base, epsilon;

  size_type query_cols() const { return heads * head_dim; }
  size_type kv_cols() const { return kv_heads * head_dim; }
};

/// The weights of a model of the llama family: RMSNorm, grouped-query attention with rotary
/// positions, and a SwiGLU, layer by layer.
class model {
 public:
  struct layer {
    layer(const model_config& c, std::pmr::memory_resource& memory)
        : qkv(c.width, memory),
          out(c.query_cols(), memory),
          gate_up(c.width, memory),
          down(c.hidden, memory) {}
    Eigen::RowVectorXf attention_norm, hidden_norm;
    quantised_matrix qkv, out, gate_up, down;
  };

  /// Throws std::runtime_error, with the reason, where the file holds another kind of model.
  explicit model(const gguf_file& file)
      : config_(read_config(file)),
        embedding_(config_.width, memory_),
        output_(config_.width, memory_) {
    embedding_.add(file, "token_embd.weight", config_.vocabulary);
    if (file.has_tensor("output.weight")) output_.add(file, "output.weight", config_.vocabulary);
    output_norm_ = norm(file, "output_norm.weight");
    for (size_type i = 0; i < config_.layers; ++i)
      layers_.push_back(read_layer(file, "blk." + std::to_string(i) + "."));
  }

  const model_config& config() const { return config_; }
  const std::vector<layer>& layers() const { return layers_; }
  const quantised_matrix& embedding() const { return embedding_; }
  /// The matrix that turns the last layer's vectors into logits: the embedding where the file
  /// brings no matrix of its own.
  const quantised_matrix& output() const { return output_.rows() > 0 ? output_ : embedding_; }
  const Eigen::RowVectorXf& output_norm() const { return output_norm_; }

 private:
  static model_config read_config(const gguf_file& file) {
    const std::string architecture = file.get<std::string>("general.architecture");
    if (architecture != "llama")
      file.fail("holds a model of the kind '" + architecture + "'; only 'llama' is supported");
    const auto size = [&](const std::string& key) {
      const std::int64_t value = file.get<std::int64_t>("llama." + key);
      if (value < 1 || value > (std::int64_t(1) << 24))
        file.fail("has " + std::to_string(value) + " as its llama." + key);
      return size_type(value);
    };
    const auto unsupported = [&](const std::string& key) {
      if (file.has(key)) file.fail("has '" + key + "', which is not supported");
    };
    unsupported("llama.rope.scaling.type");
    unsupported("llama.expert_count");
    unsupported("llama.attention.sliding_window");
    for (const char* const tensor : {"rope_freqs.weight", "blk.0.attn_q.bias",
                                     "blk.0.attn_output.bias", "blk.0.ffn_gate.bias"})
      if (file.has_tensor(tensor))
        file.fail("has a tensor '" + std::string(tensor) + "', which is not supported");

    model_config c{};
    c.layers = size("block_count");
    c.width = size("embedding_length");
    c.heads = size("attention.head_count");
    c.kv_heads = size("attention.head_count_kv");
    c.hidden = size("feed_forward_length");
    c.context = size("context_length");
    c.vocabulary = size_type(file.tensor("token_embd.weight").rows);
    if (c.heads % c.kv_heads != 0 || c.width % c.heads != 0)
      file.fail("has " + std::to_string(c.heads) + " heads, " + std::to_string(c.kv_heads) +
                " for keys and values, and a width of " + std::to_string(c.width) +
                ": one must divide the other");
    c.head_dim = c.width / c.heads;
    for (const char* const key :
         {"rope.dimension_count", "attention.key_length", "attention.value_length"})
      if (file.has(std::string("llama.") + key) && size(key) != c.head_dim)
        file.fail("has " + std::to_string(size(key)) + " as its llama." + key +
                  ", where only the width of a head, " + std::to_string(c.head_dim) +
                  ", is supported");
    if (c.head_dim % 2 != 0) file.fail("has heads of an odd width, " + std::to_string(c.head_dim));
    c.rope_base = file.get<double>("llama.rope.freq_base", 10000);
    c.epsilon = file.get<double>("llama.attention.layer_norm_rms_epsilon");
    if (!(c.rope_base > 0) || !(c.epsilon >= 0))
      file.fail("has a rope.freq_base or an epsilon that makes no sense");
    return c;
  }

  Eigen::RowVectorXf norm(const gguf_file& file, const std::string& name) const {
    const gguf_tensor& tensor = file.tensor(name);
    if (tensor.type != tensor_type::f32 || tensor.rows != 1 ||
        size_type(tensor.cols) != config_.width)
      file.fail("has a tensor '" + name + "' that is not F32 of the model's width, " +
                std::to_string(config_.width));
    Eigen::RowVectorXf values(config_.width);
    std::memcpy(values.data(), tensor.data, sizeof(float) * std::size_t(config_.width));
    return values;
  }

  layer read_layer(const gguf_file& file, const std::string& prefix) {
    const model_config& c = config_;
    layer l(c, memory_);
    l.attention_norm = norm(file, prefix + "attn_norm.weight");
    l.hidden_norm = norm(file, prefix + "ffn_norm.weight");
    l.qkv.add(file, prefix + "attn_q.weight", c.query_cols());
    l.qkv.add(file, prefix + "attn_k.weight", c.kv_cols());
    l.qkv.add(file, prefix + "attn_v.weight", c.kv_cols());
    l.out.add(file, prefix + "attn_output.weight", c.width);
    l.gate_up.add(file, prefix + "ffn_gate.weight", c.hidden);
    l.gate_up.add(file, prefix + "ffn_up.weight", c.hidden);
    l.down.add(file, prefix + "ffn_down.weight", c.width);
    return l;
  }

  model_config config_;
  huge_pages pages_;
  std::pmr::monotonic_buffer_resource memory_{std::size_t(64) << 20, &pages_};
  quantised_matrix embedding_, output_;
  Eigen::RowVectorXf output_norm_;
  std::vector<layer> layers_;
};

}  // namespace smollm2
