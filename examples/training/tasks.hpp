#pragma once

#include "transformer.hpp"

#include <heed/detail/utf8.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace training {

/// The random numbers of one step: they depend on no other step, so a run can be resumed anywhere.
inline std::mt19937_64 random_of(std::uint64_t seed, size_type step) {
  std::seed_seq words{std::uint32_t(seed), std::uint32_t(seed >> 32), std::uint32_t(step),
                      std::uint32_t(std::uint64_t(step) >> 32)};
  return std::mt19937_64(words);
}
inline int below(std::mt19937_64& random, size_type limit) {
  return int(random() % std::uint64_t(limit));
}

/// Appends the sequence text[0, length), where text[1, length + 1) should follow.
inline void append(batch& to, const int* text) {
  to.tokens.insert(to.tokens.end(), text, text + to.length);
  to.targets.insert(to.targets.end(), text + 1, text + 1 + to.length);
}

/// Sequences that nobody can predict but for one thing: a segment of random tokens repeats itself.
struct repeated_segments {
  size_type vocabulary = 64, length = 64, sequences = 32;

  /// Segments of different lengths: looking back a fixed number of tokens does not help.
  batch at(std::uint64_t seed, size_type step) const {
    std::mt19937_64 random = random_of(seed, step);
    batch b{length, {}, {}};
    for (size_type s = 0; s < sequences; ++s)
      append(b, text(random, length / 4 + below(random, length / 4 + 1)).data());
    return b;
  }
  /// Segments of half the length, which come twice.
  batch halves(std::uint64_t seed) const {
    std::mt19937_64 random = random_of(seed, -1);  // no step has this number
    batch b{length, {}, {}};
    for (size_type s = 0; s < sequences; ++s) append(b, text(random, length / 2).data());
    return b;
  }

 private:
  std::vector<int> text(std::mt19937_64& random, size_type segment) const {
    std::vector<int> tokens;
    for (size_type i = 0; i <= length; ++i)
      tokens.push_back(i < segment ? below(random, vocabulary) : tokens[std::size_t(i - segment)]);
    return tokens;
  }
};

/// A text as its characters, numbered in the order of their code points.
class characters {
 public:
  characters(const std::string& text, size_type length, size_type sequences)
      : length_(length), sequences_(sequences) {
    std::u32string letters;
    for (std::size_t at = 0; at < text.size();)
      letters.push_back(heed::detail::next_code_point(text, at));
    if (size_type(letters.size()) <= length)
      throw std::runtime_error("the text has " + std::to_string(letters.size()) +
                               " characters, and must have " + std::to_string(length + 1) +
                               " or more");
    const std::set<char32_t> alphabet(letters.begin(), letters.end());
    alphabet_.assign(alphabet.begin(), alphabet.end());
    for (const char32_t c : letters)
      tokens_.push_back(
          int(std::lower_bound(alphabet_.begin(), alphabet_.end(), c) - alphabet_.begin()));
  }

  size_type vocabulary() const { return size_type(alphabet_.size()); }
  const std::vector<int>& tokens() const { return tokens_; }
  std::string utf8(int token) const {
    std::string bytes;
    heed::detail::append_utf8(bytes, alphabet_[std::size_t(token)]);
    return bytes;
  }

  /// Passages from random places.
  batch at(std::uint64_t seed, size_type step) const {
    std::mt19937_64 random = random_of(seed, step);
    batch b{length_, {}, {}};
    for (size_type s = 0; s < sequences_; ++s)
      append(b, &tokens_[std::size_t(below(random, size_type(tokens_.size()) - length_))]);
    return b;
  }

  /// The least mean loss, in nats, of a model that sees the last `order` characters, 0 or 1: their
  /// entropy. What is below that of 1 has learned to look back.
  double entropy(int order) const {
    std::map<std::pair<int, int>, double> pairs;
    std::map<int, double> contexts;
    for (std::size_t i = 1; i < tokens_.size(); ++i) {
      const int context = order == 0 ? 0 : tokens_[i - 1];
      ++pairs[{context, tokens_[i]}];
      ++contexts[context];
    }
    double sum = 0;
    for (const auto& [pair, count] : pairs) sum -= count * std::log(count / contexts[pair.first]);
    return sum / double(tokens_.size() - 1);
  }

 private:
  size_type length_, sequences_;
  std::u32string alphabet_;
  std::vector<int> tokens_;
};

/// A token at random, by the softmax of its logits / temperature.
template <typename Logits>
int sample(const Logits& logits, double temperature, std::mt19937_64& random) {
  const Eigen::ArrayXd weights =
      ((logits.array().template cast<double>() - double(logits.maxCoeff())) / temperature).exp();
  double place = weights.sum() * double(random() >> 11) * 0x1p-53;
  int token = 0;
  while (token + 1 < int(weights.size()) && place >= weights(token)) place -= weights(token++);
  return token;
}

/// What the model writes: `count` tokens after `start`, each from the last `window` before it.
template <typename Scalar>
std::vector<int> write(transformer<Scalar>& model, std::vector<int> text, size_type count,
                       size_type window, double temperature, std::mt19937_64& random) {
  for (size_type i = 0; i < count; ++i) {
    const size_type seen = (std::min)(window, size_type(text.size()));
    const batch last{seen, {text.end() - seen, text.end()}, {}};
    text.push_back(sample(model.forward(last).row(seen - 1), temperature, random));
  }
  return text;
}

}  // namespace training
