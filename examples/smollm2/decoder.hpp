#pragma once

#include "model.hpp"
#include "quantised.hpp"
#include "share_out.hpp"
#include "stopwatch.hpp"
#include "tokenizer.hpp"

#include <heed/cached_attention.hpp>
#include <heed/executor.hpp>
#include <heed/position.hpp>
#include <heed/projection.hpp>
#include <heed/types.hpp>

#include <unsupported/Eigen/CXX11/ThreadPool>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace smollm2 {

/// What a sequence reads in a step: a chunk of a prompt, or the token that was written last.
struct next_tokens {
  size_type sequence;  // its name in the caches
  std::vector<token> tokens;
  bool asks = true;  // what comes after them?
};

/// What one layer's attention had before it and made, for the tokens of a step: a look inside, see
/// decoder::watch.
struct attention_step {
  size_type layer;
  const matrix& input;                                    // after the norm, n x width
  heed::tensor_view<const float> query, key, value, out;  // after RoPE, [1, heads, n, head_dim]
  const matrix& projected;                                // n x width
};

/// The model at work. What sequences have read is in caches of the caller's, one a layer; here is
/// scratch.
class decoder {
 public:
  decoder(const model& m, int threads)
      : model_(m),
        threads_(threads - 1),
        pool_(threads_),
        cos_(0, m.config().head_dim / 2),
        sin_(0, m.config().head_dim / 2),
        scratch_(std::size_t(threads)) {
    options_.causal = heed::causal::bottom_right;
    options_.execution.executor = &pool_;
  }

  const model_config& config() const { return model_.config(); }
  /// Time that went into the caches and attention, of all that `read` took.
  double attention_seconds() const { return attention_seconds_; }
  /// Calls `look` after each layer's attention from now on.
  void watch(std::function<void(const attention_step&)> look) { look_ = std::move(look); }

  /// A step: reads the next tokens of different sequences, one or more of each, all in one call of
  /// attention a layer. Returns the logits of the tokens that follow, a row for each sequence that
  /// asks. They are those that the sequence gets where it reads these tokens alone, to the bit.
  template <typename Cache>
  const matrix& read(const std::vector<next_tokens>& batch, std::vector<Cache>& caches) {
    const model_config& c = config();
    take(batch, caches[0]);
    for (size_type l = 0; l < c.layers; ++l) {
      const model::layer& layer = model_.layers()[std::size_t(l)];
      normalise(layer.attention_norm);
      project(normed_, layer.qkv, qkv_);
      attend(caches[std::size_t(l)]);
      // After the last keys and values only the tokens are of use that another follows.
      if (l + 1 == c.layers && !look_) keep_asking_rows(heads_), keep_asking_rows(x_), many_ = 0;
      project(heads_, layer.out, projected_);
      if (look_) show(l);
      x_ += projected_;

      normalise(layer.hidden_norm);
      project(normed_, layer.gate_up, gate_up_);
      const auto gate = gate_up_.leftCols(c.hidden).array();
      hidden_ = gate / (1 + (-gate).exp()) * gate_up_.rightCols(c.hidden).array();
      project(hidden_, layer.down, projected_);
      x_ += projected_;
    }
    if (look_) keep_asking_rows(x_);
    normalise(model_.output_norm());
    logits_.resize(x_.rows(), c.vocabulary);
    model_.output().multiply(normed_.data(), x_.rows(), logits_.data(), pool_);
    return logits_;
  }

 private:
  /// Sequences with up to so many tokens multiply the quantised weights themselves: dequantising
  /// costs as much as five such products, and with AVX2 makes the others a third faster. Neighbours
  /// have no say in it, because the two ways round differently.
  static constexpr size_type few = 16;
  /// Outputs whose weights are dequantised together, by one worker: few enough to stay in the
  /// second cache level and to be shared out.
  static constexpr size_type block = 96;
  struct scratch {
    matrix weights;
    heed::workspace memory;
  };

  /// Sets out the tokens, a row each: first the sequences with many of them, then those with few.
  template <typename Cache>
  void take(const std::vector<next_tokens>& batch, const Cache& cache) {
    sequences_.clear(), positions_.clear(), tokens_.clear(), starts_.assign(1, 0);
    asking_.assign(batch.size(), -1);
    for (const bool many : {true, false}) {
      for (std::size_t i = 0; i < batch.size(); ++i) {
        const next_tokens& next = batch[i];
        if ((size_type(next.tokens.size()) > few) != many) continue;
        sequences_.push_back(next.sequence);
        for (size_type j = 0; j < size_type(next.tokens.size()); ++j)
          positions_.push_back(cache.length(next.sequence) + j);
        tokens_.insert(tokens_.end(), next.tokens.begin(), next.tokens.end());
        starts_.push_back(size_type(tokens_.size()));
        if (next.asks) asking_[i] = starts_.back() - 1;
      }
      if (many) many_ = starts_.back();
    }
    asking_.erase(std::remove(asking_.begin(), asking_.end(), -1), asking_.end());
    if (!positions_.empty())
      extend_rope(*std::max_element(positions_.begin(), positions_.end()) + 1);
    x_.resize(size_type(tokens_.size()), config().width);
    for (size_type i = 0; i < x_.rows(); ++i)
      model_.embedding().row(tokens_[std::size_t(i)], x_.row(i).data());
  }
  /// The last rows of the sequences that ask, in the order of the batch.
  void keep_asking_rows(matrix& m) const {
    matrix kept(size_type(asking_.size()), m.cols());
    for (size_type i = 0; i < kept.rows(); ++i) kept.row(i) = m.row(asking_[std::size_t(i)]);
    m.swap(kept);
  }

  void normalise(const Eigen::RowVectorXf& weight) {
    const float epsilon = float(config().epsilon), width = float(x_.cols());
    normed_.resize(x_.rows(), x_.cols());
    for (size_type i = 0; i < x_.rows(); ++i)
      normed_.row(i) = x_.row(i).cwiseProduct(weight) *
                       (1 / std::sqrt(x_.row(i).squaredNorm() / width + epsilon));
  }

  /// out = x W^T for the quantised W of a layer.
  void project(const matrix& x, const quantised_matrix& weight, matrix& out) {
    out.resize(x.rows(), weight.rows());
    const size_type rest = x.rows() - many_;
    weight.multiply(x.bottomRows(rest).data(), rest, out.bottomRows(rest).data(), pool_);
    if (many_ == 0) return;
    share_out(pool_, (weight.rows() + block - 1) / block, [&](size_type i, int worker) {
      scratch& own = scratch_[std::size_t(worker)];
      const size_type first = i * block, count = (std::min)(block, weight.rows() - first);
      own.weights.resize(weight.cols(), block);
      weight.dequantise(first, count, own.weights.data(), block);
      heed::project_into(x.topRows(many_), own.weights.leftCols(count),
                         out.block(0, first, many_, count), {}, own.memory);
    });
  }

  /// The angles of positions up to `end`.
  void extend_rope(size_type end) {
    const size_type from = cos_.rows();
    if (end <= from) return;
    heed::rope_options options;
    options.base = config().rope_base;
    const Eigen::ArrayXd frequencies =
        heed::rope_frequencies(config().head_dim, options).frequencies;
    const size_type to = (std::max)(end, 2 * from);
    cos_.conservativeResize(to, Eigen::NoChange);
    sin_.conservativeResize(to, Eigen::NoChange);
    for (size_type p = from; p < to; ++p) {
      cos_.row(p) = (double(p) * frequencies).cos().cast<float>();
      sin_.row(p) = (double(p) * frequencies).sin().cast<float>();
    }
  }

  /// Rows [begin, end) of heads that are side by side in a matrix, from column `first` on.
  heed::tensor_view<float> heads_of(matrix& m, size_type first, size_type heads, size_type begin,
                                    size_type end) const {
    const size_type d = config().head_dim, row = m.cols();
    return {m.data() + begin * row + first, 1, heads, end - begin, d, 0, d, row, 1};
  }
  heed::tensor_view<float> queries(size_type begin, size_type end) {
    return heads_of(qkv_, 0, config().heads, begin, end);
  }
  heed::tensor_view<float> keys(size_type begin, size_type end) {
    return heads_of(qkv_, config().query_cols(), config().kv_heads, begin, end);
  }
  heed::tensor_view<float> values(size_type begin, size_type end) {
    return heads_of(qkv_, config().query_cols() + config().kv_cols(), config().kv_heads, begin,
                    end);
  }

  /// heads_ = attention of the queries in qkv_ over all keys and values of their sequences so far,
  /// those in qkv_ too.
  template <typename Cache>
  void attend(Cache& cache) {
    const stopwatch time;
    const size_type n = qkv_.rows();
    heed::rotate_into(queries(0, n), cos_, sin_, positions_, heed::rope_layout::interleaved);
    heed::rotate_into(keys(0, n), cos_, sin_, positions_, heed::rope_layout::interleaved);
    for (std::size_t i = 0; i < sequences_.size(); ++i)
      cache.append(sequences_[i], keys(starts_[i], starts_[i + 1]),
                   values(starts_[i], starts_[i + 1]));
    heads_.resize(n, config().query_cols());
    heed::ragged_cached_attention_into(queries(0, n), cache.batch(sequences_),
                                       heads_of(heads_, 0, config().heads, 0, n), {}, starts_,
                                       options_, memory_);
    attention_seconds_ += time.seconds();
  }
  void show(size_type layer) {
    const size_type n = qkv_.rows();
    const heed::tensor_view<const float> q = queries(0, n), k = keys(0, n), v = values(0, n),
                                         out = heads_of(heads_, 0, config().heads, 0, n);
    look_({layer, normed_, q, k, v, out, projected_});
  }

  const model& model_;
  Eigen::ThreadPool threads_;
  heed::pool_executor<Eigen::ThreadPool> pool_;
  heed::attention_options options_;
  heed::workspace memory_;
  double attention_seconds_ = 0;
  std::function<void(const attention_step&)> look_;
  matrix cos_, sin_;  // a row a position

  // A step, sequence by sequence: its name, where its rows begin; and of each row.
  std::vector<size_type> sequences_, starts_, positions_;
  std::vector<token> tokens_;
  std::vector<size_type> asking_;  // rows
  size_type many_ = 0;             // rows of sequences with more than a few

  matrix x_, normed_, qkv_, heads_, projected_, gate_up_, hidden_, logits_;
  std::vector<scratch> scratch_;  // one a worker
};

}  // namespace smollm2
