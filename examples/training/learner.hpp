#pragma once

#include "adamw.hpp"
#include "transformer.hpp"

#include <cstdint>

namespace training {

/// A model and its optimiser.
template <typename Scalar>
struct learner {
  learner(const model_size& size, std::uint64_t seed)
      : model(size, seed), optimiser(size.parameters()) {}

  transformer<Scalar> model;
  adamw<Scalar> optimiser;

  /// One step: learns a batch, and returns its mean loss before.
  double learn(const batch& input) {
    model.forward(input);
    const double loss = double(model.losses(input).mean());
    model.backward(input);
    optimiser.step(model.weights.all, model.gradient.all);
    return loss;
  }
};

}  // namespace training
