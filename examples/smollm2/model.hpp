#pragma once

#include "gguf.hpp"
#include "huge_pages.hpp"
#include "quantised.hpp"
#include "share_out.hpp"
#include "tokenizer.hpp"

#include <heed/kv_cache.hpp>
#include <heed/position.hpp>
#include <heed/projection.hpp>
#include <heed/types.hpp>

#include <unsupported/Eigen/CXX11/ThreadPool>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory_resource>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
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

/// How the keys and values that a session has seen are stored.
enum class cache_type { float32, bfloat16, fp8, int8, int8_block, int4_block };

/// What one layer's attention had before it and made, for a chunk of tokens: a look inside, see
/// session::watch.
struct attention_step {
  size_type layer;
  const matrix& input;                                    // after the norm, n x width
  heed::tensor_view<const float> query, key, value, out;  // after RoPE, [1, heads, n, head_dim]
  const matrix& projected;                                // n x width
};

/// A text that a model reads and writes: its caches and its position.
class session {
 public:
  session(const model& m, cache_type type, int threads)
      : model_(m),
        threads_(threads - 1),
        pool_(threads_),
        cos_(0, m.config().head_dim / 2),
        sin_(0, m.config().head_dim / 2),
        scratch_(std::size_t(threads)) {
    for (size_type i = 0; i < m.config().layers; ++i)
      caches_.push_back(make_cache(m.config(), type));
    options_.causal = heed::causal::bottom_right;
    options_.execution.executor = &pool_;
  }

  /// Tokens read so far, and how many fit.
  size_type position() const { return position_; }
  size_type context() const { return model_.config().context; }
  /// The memory of keys and values, all layers.
  size_type cache_bytes() const {
    size_type sum = 0;
    for (const any_cache& cache : caches_)
      sum += std::visit([](const auto& c) { return c.bytes(); }, cache);
    return sum;
  }
  /// Time that went into the caches and attention, of all that `read` took.
  double attention_seconds() const { return attention_seconds_; }

  /// Calls `look` after each layer's attention from now on.
  void watch(std::function<void(const attention_step&)> look) { look_ = std::move(look); }

  /// Reads on, and returns the logits of the token that follows: one for each token of the
  /// vocabulary. Throws std::invalid_argument where there is nothing to read, no room for it, or no
  /// such token.
  const Eigen::VectorXf& read(const std::vector<token>& tokens) {
    const size_type n = size_type(tokens.size());
    if (n == 0) throw std::invalid_argument("there is nothing to read");
    if (n > context() - position_)
      throw std::invalid_argument("the text has " + std::to_string(position_ + n) +
                                  " tokens, but the model's context has " +
                                  std::to_string(context()));
    for (const token t : tokens)
      if (t < 0 || t >= model_.config().vocabulary)
        throw std::invalid_argument("there is no token " + std::to_string(t));
    for (size_type first = 0; first < n; first += chunk)
      read_chunk(tokens.data() + first, (std::min)(chunk, n - first));
    normalise(x_.bottomRows(1), model_.output_norm(), normed_);
    logits_.resize(model_.config().vocabulary);
    model_.output().multiply(normed_.data(), logits_.data(), pool_);
    return logits_;
  }

 private:
  using any_cache =
      std::variant<heed::kv_cache<float>, heed::kv_cache<Eigen::bfloat16>,
                   heed::kv_cache<heed::float8_e4m3>, heed::kv_cache<std::int8_t>,
                   heed::kv_cache<heed::int8_block>, heed::kv_cache<heed::int4_block>>;

  /// Tokens that go through the layers together, so that a dequantised weight serves them all.
  static constexpr size_type chunk = 512;
  /// Up to so many tokens multiply the quantised weights themselves; dequantising costs as much as
  /// about five such products.
  static constexpr size_type few = 5;
  /// Outputs whose weights are dequantised together, by one worker: few enough to stay in the
  /// second cache level and to be shared out.
  static constexpr size_type block = 96;
  struct scratch {
    matrix weights;
    heed::workspace memory;
  };

  static any_cache make_cache(const model_config& c, cache_type type) {
    const auto of = [&](auto stored) -> any_cache {
      return heed::kv_cache<decltype(stored)>(1, c.kv_heads, c.head_dim, c.head_dim);
    };
    switch (type) {
      case cache_type::bfloat16:
        return of(Eigen::bfloat16());
      case cache_type::fp8:
        return of(heed::float8_e4m3());
      case cache_type::int8:
        return of(std::int8_t());
      case cache_type::int8_block:
        return of(heed::int8_block());
      case cache_type::int4_block:
        return of(heed::int4_block());
      default:
        return of(float());
    }
  }

  template <typename Rows>
  void normalise(const Rows& x, const Eigen::RowVectorXf& weight, matrix& out) const {
    const float epsilon = float(model_.config().epsilon), width = float(x.cols());
    out.resize(x.rows(), x.cols());
    for (size_type i = 0; i < x.rows(); ++i)
      out.row(i) =
          x.row(i).cwiseProduct(weight) * (1 / std::sqrt(x.row(i).squaredNorm() / width + epsilon));
  }

  /// out = x W^T for the quantised W of a layer.
  void project(const matrix& x, const quantised_matrix& weight, matrix& out) {
    out.resize(x.rows(), weight.rows());
    if (x.rows() <= few) {
      for (size_type i = 0; i < x.rows(); ++i)
        weight.multiply(x.row(i).data(), out.row(i).data(), pool_);
      return;
    }
    share_out(pool_, (weight.rows() + block - 1) / block, [&](size_type i, int worker) {
      scratch& own = scratch_[std::size_t(worker)];
      const size_type first = i * block, count = (std::min)(block, weight.rows() - first);
      own.weights.resize(weight.cols(), block);
      weight.dequantise(first, count, own.weights.data(), block);
      heed::project_into(x, own.weights.leftCols(count), out.middleCols(first, count), {},
                         own.memory);
    });
  }

  /// The angles of positions up to `end`.
  void extend_rope(size_type end) {
    const size_type from = cos_.rows();
    if (end <= from) return;
    heed::rope_options options;
    options.base = model_.config().rope_base;
    const Eigen::ArrayXd frequencies =
        heed::rope_frequencies(model_.config().head_dim, options).frequencies;
    const size_type to = (std::max)(end, 2 * from);
    cos_.conservativeResize(to, Eigen::NoChange);
    sin_.conservativeResize(to, Eigen::NoChange);
    for (size_type p = from; p < to; ++p) {
      cos_.row(p) = (double(p) * frequencies).cos().cast<float>();
      sin_.row(p) = (double(p) * frequencies).sin().cast<float>();
    }
  }

  void read_chunk(const token* tokens, size_type n) {
    const model_config& c = model_.config();
    extend_rope(position_ + n);
    positions_.setLinSpaced(n, position_, position_ + n - 1);
    x_.resize(n, c.width);
    for (size_type i = 0; i < n; ++i) model_.embedding().row(tokens[i], x_.row(i).data());

    for (size_type l = 0; l < c.layers; ++l) {
      const model::layer& layer = model_.layers()[std::size_t(l)];
      normalise(x_, layer.attention_norm, normed_);
      project(normed_, layer.qkv, qkv_);
      attend(l, n);
      if (l + 1 == c.layers && n > 1 &&
          !look_) {  // after the last keys and values only the last token is of use
        heads_ = heads_.bottomRows(1).eval();
        x_ = x_.bottomRows(1).eval();
      }
      project(heads_, layer.out, projected_);
      if (look_) {
        const heed::tensor_view<const float> q = heads_of(qkv_, 0, c.heads),
                                             k = heads_of(qkv_, c.query_cols(), c.kv_heads),
                                             v = heads_of(qkv_, c.query_cols() + c.kv_cols(),
                                                          c.kv_heads),
                                             out = heads_of(heads_, 0, c.heads);
        look_({l, normed_, q, k, v, out, projected_});
      }
      x_ += projected_;

      normalise(x_, layer.hidden_norm, normed_);
      project(normed_, layer.gate_up, gate_up_);
      const auto gate = gate_up_.leftCols(c.hidden).array();
      hidden_ = gate / (1 + (-gate).exp()) * gate_up_.rightCols(c.hidden).array();
      project(hidden_, layer.down, projected_);
      x_ += projected_;
    }
    position_ += n;
  }

  /// Heads side by side in the columns of a matrix, from column `first` on.
  heed::tensor_view<float> heads_of(matrix& m, size_type first, size_type heads) const {
    const size_type d = model_.config().head_dim;
    return {m.data() + first, 1, heads, m.rows(), d, 0, d, m.cols(), 1};
  }

  /// heads_ = attention of the queries in qkv_ over all keys and values so far, those in qkv_ too.
  void attend(size_type layer, size_type n) {
    const auto start = std::chrono::steady_clock::now();
    const model_config& c = model_.config();
    const heed::tensor_view<float> query = heads_of(qkv_, 0, c.heads),
                                   key = heads_of(qkv_, c.query_cols(), c.kv_heads),
                                   value = heads_of(qkv_, c.query_cols() + c.kv_cols(), c.kv_heads);
    heed::rotate_into(query, cos_, sin_, positions_, heed::rope_layout::interleaved);
    heed::rotate_into(key, cos_, sin_, positions_, heed::rope_layout::interleaved);
    heads_.resize(n, c.query_cols());
    std::visit(
        [&](auto& cache) {
          cache.append(key, value);
          heed::cached_attention_into(query, cache, heads_of(heads_, 0, c.heads), {}, options_,
                                      memory_);
        },
        caches_[std::size_t(layer)]);
    attention_seconds_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  const model& model_;
  Eigen::ThreadPool threads_;
  heed::pool_executor<Eigen::ThreadPool> pool_;
  heed::attention_options options_;
  heed::workspace memory_;
  std::vector<any_cache> caches_;
  size_type position_ = 0;
  double attention_seconds_ = 0;
  std::function<void(const attention_step&)> look_;
  matrix cos_, sin_;  // a row a position
  Eigen::Matrix<size_type, Eigen::Dynamic, 1> positions_;
  matrix x_, normed_, qkv_, heads_, projected_, gate_up_, hidden_;
  std::vector<scratch> scratch_;  // one a worker
  Eigen::VectorXf logits_;
};

}  // namespace smollm2
