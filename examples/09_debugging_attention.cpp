// Finding out what heads do. Three heads with known habits - one that rests on the first token, one
// that looks at the token before, one that looks for what came after the last time - are made by
// hand; the weight statistics find each without the n x n matrix.

#include <heed/heed.hpp>

#include "support/command_line.hpp"
#include "support/table.hpp"

#include <iostream>
#include <string>
#include <vector>

namespace {

using heed::size_type;
using matrix = heed::rows<float>;

/// A head is its queries and keys.
struct head {
  std::string name;
  matrix query, key;
};

/// What the statistics say of a head.
struct habits {
  double entropy = 0, first_mass = 0, previous = 0, induction = 0;
};

habits look_at(const head& h, const std::vector<int>& tokens,
               const heed::attention_options& options) {
  const auto lse = heed::attention_with_lse(h.query, h.key, h.key, options).lse;
  const size_type n = h.query.rows();
  habits found;
  found.entropy = double(heed::row_entropy(h.query, h.key, lse, options).mean());
  found.first_mass = double(heed::key_mass(h.query, h.key, lse, options)(0)) / double(n);
  const auto top = heed::top_keys(h.query, h.key, lse, 1, options);
  size_type repeats = 0;
  for (size_type i = 1; i < n; ++i) {
    if (top.keys(i, 0) == i - 1) found.previous += 1.0 / double(n - 1);
    for (size_type j = i - 1; j > 0;
         --j)  // the token that came after the last time this token was seen
      if (tokens[std::size_t(j - 1)] == tokens[std::size_t(i)]) {
        ++repeats;
        if (top.keys(i, 0) == j) found.induction += 1;
        break;
      }
  }
  if (repeats > 0) found.induction /= double(repeats);
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  using heed::size_type;  // not the one of <strings.h>
  bool quick = false;
  support::command_line command(
      "09_debugging_attention",
      "finds an attention sink, a previous-token head and an induction head by their weights");
  command.flag("--quick", "the same: this example takes no time", quick);
  if (const auto status = command.parse(argc, argv)) return *status;

  // A phrase of 24 different tokens, twice.
  const size_type phrase = 24, n = 2 * phrase, d = 64;
  std::vector<int> tokens;
  for (size_type i = 0; i < n; ++i) tokens.push_back(int(i % phrase));
  const auto one_hot = [&](size_type place, float size) {
    matrix row = matrix::Zero(1, d);
    row(0, place % d) = size;
    return row;
  };

  std::vector<head> heads(4);
  for (head& h : heads) h.query = h.key = matrix::Zero(n, d);
  heads[0].name = "sink";
  heads[1].name = "previous token";
  heads[2].name = "induction";
  heads[3].name = "none (random)";
  for (size_type i = 0; i < n; ++i) {
    heads[0].query.row(i) =
        one_hot(0, 8);  // every query matches the mark that the first key alone carries
    if (i == 0) heads[0].key.row(i) = one_hot(0, 8);
    heads[1].query.row(i) = one_hot(i + d - 1, 8);  // matches the position before its own
    heads[1].key.row(i) = one_hot(i, 8);
    heads[2].query.row(i) =
        one_hot(tokens[std::size_t(i)], 8);  // matches a key whose previous token is its own token
    if (i > 0) heads[2].key.row(i) = one_hot(tokens[std::size_t(i - 1)], 8);
  }
  heads[3].query.setRandom();
  heads[3].key.setRandom();

  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  std::cout << "\nA phrase of " << phrase
            << " tokens, twice. For each head: the mean entropy of its rows (nats), the share of "
               "all weight that the first\n"
               "token receives, how often the heaviest key is the token before, and, where a token "
               "came before, how often it is the one\n"
               "that followed it then.\n\n";
  support::table table({"head", "entropy", "on the first", "previous", "induction", "verdict"});
  bool right = true;
  for (std::size_t h = 0; h < heads.size(); ++h) {
    const habits found = look_at(heads[h], tokens, options);
    const std::string verdict = found.induction > 0.9    ? "induction"
                                : found.previous > 0.9   ? "previous token"
                                : found.first_mass > 0.5 ? "sink"
                                                         : "none (random)";
    right = right && verdict == heads[h].name;
    table.add({heads[h].name, support::fixed(found.entropy, 2), support::fixed(found.first_mass, 2),
               support::fixed(found.previous, 2), support::fixed(found.induction, 2), verdict});
  }
  table.print(std::cout);
  if (!right) std::cout << "\nA verdict is not what the head was made to be.\n";
  return right ? 0 : 1;
}
