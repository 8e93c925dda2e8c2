#pragma once

#include "transformer.hpp"

#include <algorithm>
#include <cmath>

namespace training {

/// Adam with decoupled weight decay (Loshchilov and Hutter 2019). Gradients are clipped; the
/// learning rate rises, and falls as one over the root of the steps (Vaswani et al. 2017), which
/// asks for no last step. Everything that it remembers is public: a checkpoint keeps it.
template <typename Scalar>
class adamw {
 public:
  explicit adamw(size_type parameters)
      : mean(vector<Scalar>::Zero(parameters)), square(vector<Scalar>::Zero(parameters)) {}

  double learning_rate = 1e-2, beta1 = 0.9, beta2 = 0.98, epsilon = 1e-8, decay = 0.01;
  double warm_up = 100;  // the step at which the learning rate is reached, and falls again
  double most = 1;       // the norm that a gradient is clipped to

  vector<Scalar> mean, square;  // of the gradient, each with an exponential weight on the past
  size_type steps = 0;

  void step(vector<Scalar>& weights, const vector<Scalar>& gradient) {
    ++steps;
    const Scalar clip = Scalar((std::min)(1.0, most / (double(gradient.norm()) + 1e-12)));
    mean += Scalar(1 - beta1) * (clip * gradient - mean);
    square += Scalar(1 - beta2) * ((clip * gradient).cwiseAbs2() - square);

    const double t = double(steps),
                 rate = learning_rate * (std::min)(t / warm_up, std::sqrt(warm_up / t));
    // Both means began at 0 and are too small by these factors.
    const Scalar first = Scalar(rate / (1 - std::pow(beta1, t))),
                 second = Scalar(1 / (1 - std::pow(beta2, t)));
    weights *= Scalar(1 - rate * decay);
    weights.array() -= first * mean.array() / ((second * square.array()).sqrt() + Scalar(epsilon));
  }
};

}  // namespace training
