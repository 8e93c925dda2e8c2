#pragma once

#include <heed/heed.hpp>

#include <Eigen/Core>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

// A transformer of attention alone, forward and backward. x is [sequences * length, width], one
// sequence below the other:
//
//   x = embedding[tokens]
//   in each layer:  x += attention(rotated q, rotated k, v) W_out,  [q k v] = norm(x) W_qkv
//   logits = norm(x) unembedding
//
// The backward pass goes through the same lines from the last to the first. Of a product y = x W,
// the gradients are dx = dy W^T and dW = x^T dy; heed knows that of attention.

namespace training {

using heed::size_type;
template <typename Scalar>
using matrix = heed::rows<Scalar>;
template <typename Scalar>
using vector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;

struct model_size {
  size_type vocabulary = 64, layers = 2, heads = 4, head_dim = 16;

  size_type width() const { return heads * head_dim; }
  size_type parameters() const { return width() * (2 * vocabulary + 4 * layers * width()); }
};

/// Sequences of one length, one after the other, and what should follow each token.
struct batch {
  size_type length = 0;
  std::vector<int> tokens, targets;

  size_type rows() const { return size_type(tokens.size()); }
  size_type sequences() const { return rows() / length; }
};

/// The weights of a model, or the gradient with respect to them: one vector, so that an optimiser
/// and a file need not know what is where, and its parts as matrices.
template <typename Scalar>
class parameters {
 public:
  explicit parameters(const model_size& size)
      : all(vector<Scalar>::Zero(size.parameters())), size_(size) {}

  vector<Scalar> all;

  using part = Eigen::Map<matrix<Scalar>>;
  part embedding() { return at(0, size_.vocabulary, size_.width()); }
  part unembedding() { return at(size_.vocabulary, size_.width(), size_.vocabulary); }
  part qkv(size_type layer) { return at(of_layer(layer), size_.width(), 3 * size_.width()); }
  part out(size_type layer) {
    return at(of_layer(layer) + 3 * size_.width(), size_.width(), size_.width());
  }

 private:
  /// Parts begin at multiples of the width.
  size_type of_layer(size_type layer) const {
    return 2 * size_.vocabulary + 4 * layer * size_.width();
  }
  part at(size_type first, size_type rows, size_type cols) {
    return part(all.data() + first * size_.width(), rows, cols);
  }

  model_size size_;
};

/// Each row divided by its root mean square.
template <typename Scalar>
class rms_norm {
 public:
  const matrix<Scalar>& forward(const matrix<Scalar>& x) {
    inverse_ = (x.rowwise().squaredNorm().array() / Scalar(x.cols()) + Scalar(1e-6)).rsqrt();
    out_ = inverse_.asDiagonal() * x;
    return out_;
  }
  /// The gradient with respect to x.
  matrix<Scalar> backward(const matrix<Scalar>& grad_out) const {
    const vector<Scalar> along = grad_out.cwiseProduct(out_).rowwise().mean();
    return inverse_.asDiagonal() * (grad_out - along.asDiagonal() * out_);
  }
  const matrix<Scalar>& out() const { return out_; }

 private:
  vector<Scalar> inverse_;
  matrix<Scalar> out_;
};

template <typename Scalar>
class transformer {
 public:
  /// Weights that keep the size of what goes through them; those that write into x begin smaller.
  transformer(const model_size& size, std::uint64_t seed)
      : weights(size), gradient(size), size_(size), layers_(std::size_t(size.layers)) {
    options_.causal = heed::causal::top_left;
    std::mt19937_64 random(seed);
    const auto fill = [&](auto part, double deviation) {
      const double most = std::sqrt(3.0) * deviation;  // of a uniform distribution
      for (size_type i = 0; i < part.size(); ++i)
        part.data()[i] = Scalar(most * (double(random() >> 11) * 0x1p-52 - 1));
    };
    const double deviation = 1 / std::sqrt(double(size.width()));
    fill(weights.embedding(), 1);
    for (size_type l = 0; l < size.layers; ++l) {
      fill(weights.qkv(l), deviation);
      fill(weights.out(l), deviation / std::sqrt(2.0 * double(size.layers)));
    }
    fill(weights.unembedding(), deviation);
  }

  parameters<Scalar> weights, gradient;
  const model_size& size() const { return size_; }

  /// The logits of what follows each token.
  const matrix<Scalar>& forward(const batch& input) {
    sequences_ = input.sequences();
    matrix<Scalar> x(input.rows(), size_.width());
    for (size_type i = 0; i < x.rows(); ++i)
      x.row(i) = weights.embedding().row(input.tokens[std::size_t(i)]);

    for (size_type l = 0; l < size_.layers; ++l) {
      activations& a = layers_[std::size_t(l)];
      a.qkv = product(a.norm.forward(x), weights.qkv(l));
      heed::apply_rope(query_and_key(a.qkv));
      a.mixed.resize(x.rows(), size_.width());
      a.lse.resize(x.rows(), size_.heads);
      heed::multi_head_attention_into(query(a.qkv), key(a.qkv), value(a.qkv),
                                      split(a.mixed, size_.heads), split(a.lse, size_.heads),
                                      options_, memory_);
      x += product(a.mixed, weights.out(l));
    }
    logits_ = product(last_norm_.forward(x), weights.unembedding());
    return logits_;
  }

  /// The cross entropy of each token's target, in nats, after forward(input).
  vector<Scalar> losses(const batch& input) {
    logits_.colwise() -= logits_.rowwise().maxCoeff().eval();  // softmax stays the same
    vector<Scalar> loss = logits_.array().exp().rowwise().sum().log();
    for (size_type i = 0; i < loss.size(); ++i)
      loss(i) -= logits_(i, input.targets[std::size_t(i)]);
    return loss;
  }

  /// The gradient of the mean loss, after losses(input).
  void backward(const batch& input) {
    // Of softmax and cross entropy: the probabilities, less 1 at the target.
    matrix<Scalar> grad_logits = logits_.array().exp();
    for (size_type i = 0; i < grad_logits.rows(); ++i) {
      grad_logits.row(i) /= grad_logits.row(i).sum();
      grad_logits(i, input.targets[std::size_t(i)]) -= 1;
    }
    grad_logits /= Scalar(grad_logits.rows());

    gradient.unembedding() = product(last_norm_.out().transpose(), grad_logits);
    matrix<Scalar> grad_x =
        last_norm_.backward(product(grad_logits, weights.unembedding().transpose()));

    heed::rope_options rotate_back;
    rotate_back.direction = heed::rope_direction::backward;
    for (size_type l = size_.layers; l-- > 0;) {
      activations& a = layers_[std::size_t(l)];
      gradient.out(l) = product(a.mixed.transpose(), grad_x);
      matrix<Scalar> grad_mixed = product(grad_x, weights.out(l).transpose());
      matrix<Scalar> grad_qkv(a.qkv.rows(), a.qkv.cols());
      heed::multi_head_attention_backward_into(
          query(a.qkv), key(a.qkv), value(a.qkv), split(a.mixed, size_.heads),
          split(a.lse, size_.heads), split(grad_mixed, size_.heads), query(grad_qkv), key(grad_qkv),
          value(grad_qkv), options_, memory_);
      heed::apply_rope(query_and_key(grad_qkv), rotate_back);
      gradient.qkv(l) = product(a.norm.out().transpose(), grad_qkv);
      grad_x += a.norm.backward(product(grad_qkv, weights.qkv(l).transpose()));
    }

    gradient.embedding().setZero();
    for (size_type i = 0; i < grad_x.rows(); ++i)
      gradient.embedding().row(input.tokens[std::size_t(i)]) += grad_x.row(i);
  }

  /// The weights length x length of one head, in one sequence of the last forward pass.
  matrix<Scalar> attention(size_type layer, size_type head, size_type sequence) {
    const auto& a = layers_[std::size_t(layer)];
    const size_type length = a.qkv.rows() / sequences_, d = size_.head_dim;
    const auto of_sequence = a.qkv.middleRows(sequence * length, length);
    return heed::attention_weights(
        of_sequence.middleCols(head * d, d), of_sequence.middleCols(size_.width() + head * d, d),
        a.lse.col(head).segment(sequence * length, length), 0, length, options_);
  }

 private:
  struct activations {  // of a layer, which its gradient needs
    rms_norm<Scalar> norm;
    matrix<Scalar> qkv, mixed, lse;  // [rows, 3 * width], rotated; [rows, width]; [rows, heads]
  };

  /// x w at the speed of heed's kernels, whatever the compiler was told of the machine.
  template <typename X, typename W>
  matrix<Scalar> product(const X& x, const W& w) {
    matrix<Scalar> out(x.rows(), w.cols());
    heed::project_into(x, w, out, options_, memory_);
    return out;
  }

  // Columns as heads: [sequences, heads, length, columns of a head].
  template <typename Columns>
  auto split(Columns&& columns, size_type heads) const {
    return heed::split_heads(heed::writable_view(columns), heads, sequences_);
  }
  auto query(matrix<Scalar>& qkv) const { return split(qkv.leftCols(size_.width()), size_.heads); }
  auto key(matrix<Scalar>& qkv) const {
    return split(qkv.middleCols(size_.width(), size_.width()), size_.heads);
  }
  auto value(matrix<Scalar>& qkv) const { return split(qkv.rightCols(size_.width()), size_.heads); }
  auto query_and_key(matrix<Scalar>& qkv) const {
    return split(qkv.leftCols(2 * size_.width()), 2 * size_.heads);
  }

  model_size size_;
  std::vector<activations> layers_;
  rms_norm<Scalar> last_norm_;
  matrix<Scalar> logits_;
  size_type sequences_ = 1;
  heed::attention_options options_;
  heed::workspace memory_;
};

}  // namespace training
