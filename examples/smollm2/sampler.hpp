#pragma once

#include "tokenizer.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace smollm2 {

/// Chooses the next token: the likeliest one at temperature 0; else at random from the softmax of
/// logits / temperature, of which only the likeliest tokens that together reach the probability
/// top_p take part (Holtzman et al. 2020). A seed gives the same choices everywhere.
class sampler {
 public:
  sampler(double temperature, double top_p, std::uint64_t seed)
      : temperature_(temperature), top_p_(top_p), random_(seed) {}

  token choose(const Eigen::Ref<const Eigen::VectorXf>& logits) {
    Eigen::Index best = 0;
    const double largest = double(logits.maxCoeff(&best));
    if (!(temperature_ > 0)) return token(best);

    // What weighs less than a billionth of the likeliest token never gets a turn.
    const double least = largest - temperature_ * std::log(1e9);
    std::vector<candidate> candidates;
    double all = 0;
    for (Eigen::Index t = 0; t < logits.size(); ++t) {
      const double logit = double(logits(t));
      if (!(logit >= least)) continue;
      candidates.push_back({std::exp((logit - largest) / temperature_), token(t)});
      all += candidates.back().weight;
    }
    // The likeliest come off a heap one by one: top_p is reached soon, and sorting them all takes
    // longer than it takes the model to think.
    const auto before = [](const candidate& a, const candidate& b) {
      return a.weight < b.weight || (a.weight == b.weight && a.id > b.id);
    };
    std::make_heap(candidates.begin(), candidates.end(), before);
    auto chosen = candidates.end();
    double sum = 0;
    do {
      std::pop_heap(candidates.begin(), chosen, before);
      sum += (--chosen)->weight;
    } while (chosen != candidates.begin() && sum < top_p_ * all);

    double place = sum * double(random_() >> 11) * 0x1p-53;  // in [0, sum)
    for (auto c = candidates.end(); --c != chosen;) {
      place -= c->weight;
      if (place < 0) return c->id;
    }
    return chosen->id;
  }

 private:
  struct candidate {
    double weight;
    token id;
  };

  double temperature_, top_p_;
  std::mt19937_64 random_;
};

}  // namespace smollm2
