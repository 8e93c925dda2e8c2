#pragma once

#include "../support/table.hpp"
#include "tasks.hpp"
#include "transformer.hpp"

#include <heed/heatmap.hpp>

#include <cstddef>
#include <iostream>
#include <string>
#include <vector>

// What a model makes of segments that come twice (batches of repeated_segments::halves).

namespace training {

/// How much of its attention a head spends, where the segment comes the second time, on the token
/// before, and on the token that followed the first time.
struct habit {
  double previous = 0, induction = 0;
};

inline habit habit_of(transformer<float>& model, size_type layer, size_type head,
                      const batch& halves) {
  habit mean;
  const size_type n = halves.length, half = n / 2;
  for (size_type s = 0; s < halves.sequences(); ++s) {
    const matrix<float> weights = model.attention(layer, head, s);
    mean.previous += double(weights.diagonal(-1).tail(half).mean());
    mean.induction += double(weights.diagonal(1 - half).tail(half).mean());
  }
  mean.previous /= double(halves.sequences());
  mean.induction /= double(halves.sequences());
  return mean;
}

/// The mean loss of the targets of the first and of the second half of the sequences.
struct two_losses {
  double first = 0, second = 0;
};

inline two_losses losses_of(transformer<float>& model, const batch& halves) {
  model.forward(halves);
  const vector<float> loss = model.losses(halves);
  const matrix<float> table =
      Eigen::Map<const matrix<float>>(loss.data(), halves.sequences(), halves.length);
  const size_type half = halves.length / 2;  // the target of its last token is the first repeat
  return {double(table.leftCols(half - 1).mean()), double(table.rightCols(half).mean())};
}

/// A token as one letter.
inline std::string letter(int token) {
  return std::string(1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-"[token]);
}

/// A segment that the model has never seen, and what it predicts when it comes again.
inline void predict(transformer<float>& model, const batch& unseen) {
  const matrix<float>& logits = model.forward(unseen);
  const size_type half = unseen.length / 2;
  std::string segment, guesses, marks;
  int right = 0;
  for (size_type i = half - 1; i < 2 * half - 1; ++i) {
    int guess = 0;
    logits.row(i).maxCoeff(&guess);
    const int target = unseen.targets[std::size_t(i)];
    segment += letter(target), guesses += letter(guess), marks += guess == target ? '^' : ' ';
    right += guess == target;
  }
  std::cout
      << "\nA segment that it has never seen, and what it expects when it comes again (at the "
         "first token it cannot know yet\nthat it does):\n\n  "
      << segment << "\n  " << guesses << "\n  " << marks << "  " << right << " of " << half
      << " right\n";
}

/// The attention of every head to one sequence, at one moment of the training.
struct moment {
  std::string name;
  size_type step;
  std::vector<matrix<float>> maps;  // layer by layer, head by head
};

inline moment moment_of(const std::string& name, size_type step, transformer<float>& model,
                        const batch& input) {
  moment m{name, step, {}};
  const model_size& size = model.size();
  model.forward(input);
  for (size_type i = 0; i < size.layers * size.heads; ++i)
    m.maps.push_back(model.attention(i / size.heads, i % size.heads, 0));
  return m;
}

/// One page with every head at every moment, the last layer first.
inline std::string page_of(const std::vector<moment>& moments, const model_size& size,
                           const batch& b) {
  std::vector<std::string> labels;
  for (size_type i = 0; i < b.length; ++i) labels.push_back(letter(b.tokens[std::size_t(i)]));
  heed::heatmap_options options;
  options.title = "A transformer learns to repeat";
  options.note =
      "A random segment of " + std::to_string(b.length / 2) +
      " tokens, twice. Layer 1 looks at what layer 0 made of it. The diagonal of an "
      "induction head begins halfway down, at the left: each token looks at what followed it "
      "the first time.";
  for (const moment& m : moments) {
    options.note += &m == &moments.front() ? " Drawn" : ",";
    options.note += " " + m.name + " (step " + std::to_string(m.step) + ")";
  }
  options.note += ".";
  options.row_name = options.col_name = "token";
  heed::heatmap_page page(labels, labels, options);
  for (size_type layer = size.layers; layer-- > 0;)
    for (size_type head = 0, number = 0; head < size.heads; ++head)
      for (const moment& m : moments)
        page.add(
            m.maps[std::size_t(layer * size.heads + head)], layer, number++,
            "layer " + std::to_string(layer) + ", head " + std::to_string(head) + ", " + m.name);
  return page.html();
}

}  // namespace training
