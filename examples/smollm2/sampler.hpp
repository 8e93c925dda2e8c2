#pragma once

#include "tokenizer.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace smollm2 {

/// Chooses the next token: the likeliest one at temperature 0; else at random from the softmax of logits / temperature, of which only the
/// likeliest tokens that together reach the probability top_p take part (Holtzman et al. 2020). A seed gives the same choices everywhere.
class sampler {
 public:
  sampler(double temperature, double top_p, std::uint64_t seed) : temperature_(temperature), top_p_(top_p), random_(seed) {}

  token choose(const Eigen::VectorXf& logits) {
    Eigen::Index best = 0;
    const double largest = double(logits.maxCoeff(&best));
    if (!(temperature_ > 0)) return token(best);

    const Eigen::ArrayXd weights = ((logits.cast<double>().array() - largest) / temperature_).exp();
    std::vector<token> order(static_cast<std::size_t>(logits.size()));
    std::iota(order.begin(), order.end(), 0);
    // What weighs less than a billionth of the likeliest token never gets a turn; the rest are few, and sorting them is cheap.
    order.erase(std::remove_if(order.begin(), order.end(), [&](token t) { return weights(t) < 1e-9; }), order.end());
    std::stable_sort(order.begin(), order.end(), [&](token a, token b) { return weights(a) > weights(b); });
    const double enough = top_p_ * weights.sum();
    double sum = 0;
    std::size_t count = 0;
    while (count < order.size() && (count == 0 || sum < enough)) sum += weights(order[count++]);

    double place = sum * double(random_() >> 11) * 0x1p-53;  // in [0, sum)
    for (std::size_t i = 0; i + 1 < count; ++i) {
      place -= weights(order[i]);
      if (place < 0) return order[i];
    }
    return order[count - 1];
  }

 private:
  double temperature_, top_p_;
  std::mt19937_64 random_;
};

}  // namespace smollm2
