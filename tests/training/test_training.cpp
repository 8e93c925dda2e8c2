#include "training/checkpoint.hpp"
#include "training/learner.hpp"
#include "training/tasks.hpp"

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

using namespace training;
using training::size_type;

namespace {

const repeated_segments small_task{8, 12, 3};
const model_size small_model{8, 2, 2, 4};

/// A file that is gone after the test.
struct temporary_file {
  std::string path;
  explicit temporary_file(const std::string& name) : path(name) { std::remove(path.c_str()); }
  ~temporary_file() { std::remove(path.c_str()); }

  std::string read() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& bytes) const { std::ofstream(path, std::ios::binary) << bytes; }
};

void learn(learner<float>& l, size_type steps) {
  for (size_type s = 0; s < steps; ++s) l.learn(small_task.at(1, l.optimiser.steps));
}

template <typename Scalar>
void check_same(const learner<Scalar>& a, const learner<Scalar>& b) {
  CHECK(a.optimiser.steps == b.optimiser.steps);
  CHECK(a.model.weights.all == b.model.weights.all);
  CHECK(a.optimiser.mean == b.optimiser.mean);
  CHECK(a.optimiser.square == b.optimiser.square);
}

}  // namespace

TEST_CASE("the gradient of the whole model is the slope of its loss") {
  transformer<double> model(small_model, 3);
  const batch input = small_task.at(1, 0);
  const auto loss = [&] {
    model.forward(input);
    return model.losses(input).mean();
  };
  const double here = loss();
  model.backward(input);

  vector<double>& weights = model.weights.all;
  const auto slope = [&](size_type i, double step) {
    const double kept = weights(i);
    weights(i) = kept + step;
    const double above = loss();
    weights(i) = kept - step;
    const double below = loss();
    weights(i) = kept;
    return (above - below) / (2 * step);
  };
  // A central difference is off by c step^2, a third of its change from step to 2 step, and by the
  // rounding of two losses: the sums that follow one another (two layers of norm, projection,
  // scores, values and projection; norm, logits, softmax, mean) have some 150 terms in all.
  const double step = 1e-4, epsilon = std::numeric_limits<double>::epsilon();
  const double rounding = 150 * epsilon * here / step;
  size_type moved = 0;
  for (size_type i = 0; i < weights.size(); ++i) {
    const double near_by = slope(i, step), farther = slope(i, 2 * step);
    CAPTURE(i);
    CHECK(std::abs(model.gradient.all(i) - near_by) <= std::abs(farther - near_by) + rounding);
    moved += std::abs(near_by) > 100 * rounding;
  }
  CHECK(moved > weights.size() / 2);  // it is no comparison of zeros
}

TEST_CASE("twenty steps are ten, a checkpoint and ten more, to the bit") {
  const temporary_file file("test_training_resumed.checkpoint");
  learner<float> whole(small_model, 1), first(small_model, 1), second(small_model, 2);
  learn(whole, 20);
  learn(first, 10);
  save(first, 7, file.path);
  load(second, 7, file.path);  // another seed: what it was is gone
  check_same(first, second);
  learn(second, 10);
  check_same(whole, second);
  CHECK(whole.model.weights.all != first.model.weights.all);
}

TEST_CASE("a checkpoint that is damaged, or another's, is refused and said so") {
  const temporary_file file("test_training_refused.checkpoint");
  learner<float> l(small_model, 1), other(small_model, 1);
  learn(l, 2);
  save(l, 7, file.path);
  const std::string good = file.read();
  load(other, 7, file.path);

  for (std::size_t at = 0; at < good.size(); at += at < sizeof(checkpoint_header) ? 1 : 97) {
    CAPTURE(at);
    std::string bad = good;
    bad[at] = char(bad[at] ^ 0x10);
    file.write(bad);
    CHECK_THROWS_AS(load(other, 7, file.path), std::runtime_error);
  }
  const auto refuses = [&](const std::string& bytes, const std::string& why) {
    file.write(bytes);
    CHECK_THROWS_WITH(load(other, 7, file.path), ContainsSubstring(why));
  };
  refuses("", "is no checkpoint");
  refuses(std::string(good.size(), 'x'), "is no checkpoint");
  refuses(good.substr(0, good.size() - 1), "another length");
  refuses(good + "x", "another length");
  std::string bad = good;
  bad[bad.size() / 2] ^= 1;
  refuses(bad, "checksum");
  bad = good;
  bad[8] = 2;
  refuses(bad, "version 2");

  file.write(good);
  CHECK_THROWS_WITH(load(other, 8, file.path), ContainsSubstring("something else"));
  learner<float> wider({8, 2, 2, 8}, 1);
  CHECK_THROWS_WITH(load(wider, 7, file.path), ContainsSubstring("another size"));
  learner<double> longer(small_model, 1);
  CHECK_THROWS_WITH(load(longer, 7, file.path), ContainsSubstring("another size"));
  CHECK_THROWS_WITH(load(other, 7, "no/such/file"), ContainsSubstring("cannot read"));
  CHECK_THROWS_WITH(save(l, 7, "no/such/file"), ContainsSubstring("cannot write"));
}

TEST_CASE("the batches of a step depend on the seed and the step alone") {
  const auto same = [](const batch& a, const batch& b) {
    return a.tokens == b.tokens && a.targets == b.targets;
  };
  CHECK(same(small_task.at(1, 5), small_task.at(1, 5)));
  CHECK_FALSE(same(small_task.at(1, 5), small_task.at(1, 6)));
  CHECK_FALSE(same(small_task.at(1, 5), small_task.at(2, 5)));
  CHECK_FALSE(same(small_task.halves(1), small_task.halves(2)));
}

TEST_CASE("segments repeat, and a target is the token that follows") {
  const batch b = small_task.halves(1);
  REQUIRE(b.sequences() == 3);
  for (size_type s = 0; s < 3; ++s)
    for (size_type i = 0; i < 12; ++i) {
      const std::size_t at = std::size_t(s * 12 + i);
      if (i >= 6) CHECK(b.tokens[at] == b.tokens[at - 6]);
      if (i < 11) CHECK(b.targets[at] == b.tokens[at + 1]);
    }
}

TEST_CASE("characters are code points, and their entropies are those of counts") {
  const characters text(
      "\xE2\x80\x9C"
      "abababab",
      4, 2);  // a quotation mark of three bytes
  CHECK(text.vocabulary() == 3);
  CHECK(text.utf8(text.tokens()[0]) == "\xE2\x80\x9C");
  CHECK(text.entropy(0) == Approx(std::log(2.0)));  // four a, four b after the first
  CHECK(text.entropy(1) == Approx(0).margin(1e-12));
  CHECK_THROWS_WITH(characters("abcd", 4, 2), ContainsSubstring("4 characters"));
}
