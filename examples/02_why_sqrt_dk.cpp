// Why the scores are divided by sqrt(d_k). A dot product of two vectors of independent numbers of
// variance 1 has variance d_k: without the scale the softmax of long vectors looks at one key
// alone, and its gradient, which is p (1 - p), is gone.

#include <heed/heed.hpp>

#include "support/command_line.hpp"
#include "support/table.hpp"

#include <cmath>
#include <iostream>
#include <random>

namespace {

using heed::size_type;
using matrix = heed::rows<double>;
using support::fixed;

/// What scores of one scale look like: their variance, the entropy of the weights, and the size of
/// the softmax's gradient.
struct measured {
  double variance = 0, entropy = 0, largest = 0, gradient = 0;
};

measured measure(const matrix& query, const matrix& key, double scale) {
  heed::attention_options options;
  options.scale = scale;
  const auto result = heed::attention_with_lse(query, key, key, options);
  const matrix weights = heed::attention_weights(query, key, result.lse, 0, query.rows(), options);
  const matrix scores = scale * query * key.transpose();

  measured m;
  m.variance = scores.array().square().mean();
  m.entropy = heed::row_entropy(query, key, result.lse, options).mean();
  m.largest = weights.rowwise().maxCoeff().mean();
  // |dp/ds|^2 of a row is the Frobenius norm of diag(p) - p p^T
  for (size_type i = 0; i < weights.rows(); ++i) {
    const auto p = weights.row(i).array();
    const double squares = p.square().sum();
    m.gradient += std::sqrt((std::max)(squares - 2 * p.cube().sum() + squares * squares, 0.0)) /
                  double(weights.rows());
  }
  return m;
}

}  // namespace

int main(int argc, char** argv) {
  using heed::size_type;  // not the one of <strings.h>
  bool quick = false;
  support::command_line options(
      "02_why_sqrt_dk", "what the scale 1 / sqrt(d_k) does to scores, weights and gradients");
  options.flag("--quick", "fewer queries", quick);
  if (const auto status = options.parse(argc, argv)) return *status;

  const size_type n_q = quick ? 64 : 512, n_kv = 256;
  std::mt19937 bits(1);
  std::normal_distribution<double> normal;
  support::table table({"d_k", "variance", "entropy", "largest", "gradient", "|", "variance",
                        "entropy", "largest", "gradient"});
  bool right = true;
  for (size_type d_k = 4; d_k <= 1024; d_k *= 2) {
    const auto draw = [&](size_type n) -> matrix {
      return matrix::NullaryExpr(n, d_k, [&] { return normal(bits); });
    };
    const matrix query = draw(n_q), key = draw(n_kv);
    const measured plain = measure(query, key, 1),
                   scaled = measure(query, key, 1 / std::sqrt(double(d_k)));
    table.add({std::to_string(d_k), fixed(plain.variance, 1), fixed(plain.entropy, 2),
               fixed(plain.largest, 3), fixed(plain.gradient, 4), "|", fixed(scaled.variance, 2),
               fixed(scaled.entropy, 2), fixed(scaled.largest, 3), fixed(scaled.gradient, 4)});
    right = right && std::abs(scaled.variance - 1) < 0.25 &&
            std::abs(plain.variance / double(d_k) - 1) < 0.25;
  }
  std::cout << "\n"
            << n_q << " queries against " << n_kv
            << " keys, all numbers normal with variance 1; a row's greatest entropy is ln " << n_kv
            << " = " << fixed(std::log(double(n_kv)), 2)
            << ".\nThe variance of the scores; of a row, on average, the entropy of its weights "
               "(nats), its largest weight, and the "
               "size of\n"
            << "its gradient |dp/ds|. Left: scores q . k. Right: q . k / sqrt(d_k).\n\n";
  table.print(std::cout);
  std::cout << "\nThe variance of q . k is d_k. Without the scale a row of weights becomes a "
               "single 1 (entropy 0) and its gradient dies;\n"
               "with it, neither depends on d_k.\n";
  if (!right) std::cout << "BUT the variances measured here are not what this page says.\n";
  return right ? 0 : 1;
}
