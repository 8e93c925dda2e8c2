// Which words of a page attend to which? A passage of English goes through heed::self_attention;
// the terminal and a page show the weights. Then the cost: attention as the formula is written
// against attention fused, up to 16,384 tokens.
//
// Nothing here is trained. A word's vector is made of the letters it is spelt with, so words attend
// to words that look like them; a trained model would bring vectors and projections that know what
// words mean. The attention between them is the same.

#include <heed/heatmap.hpp>
#include <heed/heed.hpp>

#include "support/command_line.hpp"
#include "support/progress.hpp"
#include "support/table.hpp"
#include "support/terminal.hpp"
#include "support/text.hpp"

#include <Eigen/QR>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using matrix = heed::rows<float>;
using heed::size_type;
using support::fixed;
using support::scientific;

constexpr size_type d_model = 128;

/// A stream of numbers that is the same on every machine (splitmix64).
struct random_bits {
  std::uint64_t state;
  std::uint64_t operator()() {
    std::uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  /// Uniform in [-1, 1).
  float number() {
    return static_cast<float>(static_cast<double>((*this)() >> 11) / 4503599627370496.0 - 1.0);
  }
};

matrix random_matrix(size_type n_rows, size_type n_cols, std::uint64_t seed) {
  random_bits bits{seed};
  return matrix::NullaryExpr(n_rows, n_cols, [&bits] { return bits.number(); });
}

matrix random_rotation(std::uint64_t seed) {
  const Eigen::HouseholderQR<Eigen::MatrixXf> qr(random_matrix(d_model, d_model, seed));
  return qr.householderQ() * Eigen::MatrixXf::Identity(d_model, d_model);
}

/// A word is the sum of its runs of three to five letters, each a fixed random vector of signs:
/// words that share runs have alike vectors.
Eigen::RowVectorXf embed(const std::string& word) {
  const std::u32string letters = U"<" + support::lower_case(word) + U">";
  Eigen::RowVectorXf sum = Eigen::RowVectorXf::Zero(d_model);
  for (std::size_t length = 3; length <= 5; ++length) {
    for (std::size_t at = 0; at + length <= letters.size(); ++at) {
      std::uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
      for (std::size_t i = at; i < at + length; ++i) hash = (hash ^ letters[i]) * 0x100000001B3u;
      random_bits bits{hash};
      for (size_type c = 0; c < d_model; ++c) sum(c) += bits.number() < 0 ? -1.0f : 1.0f;
    }
  }
  return sum.normalized();
}

/// The weights between words instead of places: a word that stands in many places counts once.
struct word_pairs {
  std::vector<std::string> words;  // each once, in the spelling of its first place
  matrix weights;  // the largest weight that one place of the row's word gives to one place of the
                   // column's
};

word_pairs pair_up(const std::vector<std::string>& tokens, const matrix& weights) {
  word_pairs pairs;
  std::map<std::u32string, size_type> numbers;
  std::vector<size_type> word_of;
  for (const std::string& token : tokens) {
    const auto [place, is_new] =
        numbers.emplace(support::lower_case(token), static_cast<size_type>(numbers.size()));
    if (is_new) pairs.words.push_back(token);
    word_of.push_back(place->second);
  }
  const size_type n_words = static_cast<size_type>(pairs.words.size());
  pairs.weights = matrix::Zero(n_words, n_words);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    for (std::size_t j = 0; j < tokens.size(); ++j) {
      float& pair = pairs.weights(word_of[i], word_of[j]);
      pair = (std::max)(pair, weights(size_type(i), size_type(j)));
    }
  }
  return pairs;
}

struct link {
  size_type from, to;
  float weight;
};

/// The pairs of two different words that spend at least a hundredth on each other, strongest first.
std::vector<link> strongest_links(const word_pairs& pairs) {
  std::vector<link> links;
  for (size_type i = 0; i < pairs.weights.rows(); ++i)
    for (size_type j = 0; j < pairs.weights.cols(); ++j)
      if (i != j && pairs.weights(i, j) >= 0.01f) links.push_back({i, j, pairs.weights(i, j)});
  std::stable_sort(links.begin(), links.end(),
                   [](const link& a, const link& b) { return a.weight > b.weight; });
  return links;
}

constexpr std::size_t longest_label = 18;

void print_map(const word_pairs& pairs, const std::vector<link>& links, support::colours depth,
               int width) {
  if (links.empty()) return;
  std::size_t label_width = 0;
  for (const std::string& word : pairs.words)
    label_width = (std::max)(label_width, support::display_width(word));
  label_width = (std::min)(label_width, longest_label);

  // The words of the strongest links, partners side by side, as many as fit.
  const size_type room =
      (std::min)(size_type(24), (size_type(width) - size_type(label_width) - 6) / 3);
  std::vector<size_type> chosen;
  for (const link& l : links)
    for (const size_type word : {l.from, l.to})
      if (size_type(chosen.size()) < room &&
          std::find(chosen.begin(), chosen.end(), word) == chosen.end())
        chosen.push_back(word);

  const support::heat_ink ink(depth);
  std::cout << std::string(label_width + 6, ' ');
  for (std::size_t c = 1; c <= chosen.size(); ++c) std::cout << (c < 10 ? "  " : " ") << c;
  std::cout << "\n";
  for (std::size_t r = 0; r < chosen.size(); ++r) {
    const std::string label = support::clip(pairs.words[std::size_t(chosen[r])], label_width);
    std::cout << "  " << std::string(label_width - support::display_width(label), ' ') << label
              << (r < 9 ? "  " : " ") << r + 1 << " ";
    for (const size_type c : chosen) std::cout << ink.cell(double(pairs.weights(chosen[r], c)));
    std::cout << "\n";
  }
}

void print_sentences(const word_pairs& pairs, const std::vector<link>& links, std::size_t count) {
  std::vector<size_type> lookers;
  for (const link& l : links)
    if (lookers.size() < count &&
        std::find(lookers.begin(), lookers.end(), l.from) == lookers.end())
      lookers.push_back(l.from);
  if (lookers.empty()) std::cout << "  No word here is drawn to another one.\n";
  const auto quoted = [&](size_type word) {
    return "'" + support::clip(pairs.words[std::size_t(word)], longest_label) + "'";
  };
  for (const size_type from : lookers) {
    std::cout << "  " << quoted(from) << " looks at";
    int shown = 0;
    for (const link& l : links) {
      if (l.from != from || shown == 3) continue;
      std::cout << (shown++ ? ", " : " ") << quoted(l.to) << " " << fixed(double(l.weight), 2);
    }
    std::cout << "\n";
  }
}

/// Attention as the formula is written: it makes the n x n matrix of weights.
matrix naive_attention(const matrix& query, const matrix& key, const matrix& value) {
  const float scale = 1 / std::sqrt(static_cast<float>(query.cols()));
  matrix weights = scale * query * key.transpose();
  const Eigen::VectorXf max = weights.rowwise().maxCoeff();
  weights = (weights.colwise() - max).array().exp();
  const Eigen::VectorXf sum = weights.rowwise().sum();
  matrix out = weights * value;
  out.array().colwise() /= sum.array();
  return out;
}

/// The processor time of one call, the shortest among as many as fit into a fifth of a second, at
/// least two: the first one may wait for memory. Everything here runs on one thread, so processor
/// time is what a machine that has nothing else to do would take.
template <typename Call>
double time_of(const Call& call) {
  double best = 1e300, total = 0;
  for (int calls = 0; calls < 2 || total < 0.2; ++calls) {
    const std::clock_t start = std::clock();
    call();
    const double took = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    best = (std::min)(best, took);
    total += took;
  }
  return best;
}

/// Free memory in bytes where Linux reports it, else no limit.
double available_memory() {
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);)
    if (line.compare(0, 13, "MemAvailable:") == 0) return 1024 * std::atof(line.c_str() + 13);
  return 1e300;
}

void print_costs(size_type longest) {
  constexpr size_type d = 64;
  support::table table(
      {"n", "naive", "GFLOP/s", "memory", "fused", "GFLOP/s", "memory", "speed-up", "difference"});
  std::vector<size_type> lengths;
  for (size_type n = 512; n <= longest; n *= 2) lengths.push_back(n);
  {
    support::progress progress(2 * static_cast<int>(lengths.size()));
    heed::workspace memory;
    for (const size_type n : lengths) {
      const matrix query = random_matrix(n, d, 1), key = random_matrix(n, d, 2),
                   value = random_matrix(n, d, 3);
      const double gflop =
          4e-9 * double(n) * double(n) *
          double(d);  // two products of n x n x d, each a multiplication and an addition
      const double naive_bytes = double(sizeof(float)) * double(n) * double(n + 2);

      matrix fused(n, d), naive;
      progress.step("fused, n = " + std::to_string(n));
      const double fused_time =
          time_of([&] { heed::attention_into(query, key, value, fused, {}, {}, memory); });

      progress.step("naive, n = " + std::to_string(n));
      std::string time = "no room", rate = "-", speed_up = "-", difference = "-";
      if (1.2 * naive_bytes < available_memory()) {
        const double naive_time = time_of([&] { naive = naive_attention(query, key, value); });
        time = support::seconds(naive_time);
        rate = fixed(gflop / naive_time, 1);
        speed_up = fixed(naive_time / fused_time, 1) + " x";
        difference = scientific((fused - naive).cwiseAbs().maxCoeff());
      }
      table.add({std::to_string(n), time, rate, support::bytes(naive_bytes),
                 support::seconds(fused_time), fixed(gflop / fused_time, 1),
                 support::bytes(double(memory.capacity())), speed_up, difference});
    }
  }
  table.print(std::cout);
}

int run(const std::string& text_file, const std::string& page_file, const std::string& colour,
        bool quick) {
  const support::colours depth = support::colours_of_stdout(colour);

  // 1. Words and their vectors.
  std::vector<std::string> tokens =
      support::words_of(support::read_file(text_file, std::size_t(1) << 20));
  if (tokens.size() < 2) throw std::runtime_error("'" + text_file + "' holds fewer than two words");
  constexpr std::size_t most_words = 2000;
  std::cout << "\nWho attends to whom? " << tokens.size() << " words of "
            << support::printable(text_file.substr(text_file.rfind('/') + 1));
  if (tokens.size() > most_words) {
    std::cout << ", the first " << most_words;
    tokens.resize(most_words);
  }
  std::cout << "\n";
  const size_type n = static_cast<size_type>(tokens.size());
  matrix x(n, d_model);
  for (size_type i = 0; i < n; ++i) x.row(i) = embed(tokens[std::size_t(i)]);

  // 2. Projections. One rotation for queries and keys leaves Q K^T = X X^T: alike words score high.
  // `sharpness` is how much that counts.
  const float sharpness = 12;
  const matrix w_k = random_rotation(1), w_q = sharpness * std::sqrt(float(d_model)) * w_k,
               w_v = random_rotation(2);

  // 3. Attention. A word always looks most like itself, so a mask keeps every word from looking at
  // its own place.
  const Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic> others =
      Eigen::MatrixXi::Identity(n, n).array() == 0;
  const matrix out = heed::self_attention(x, w_q, w_k, w_v, {}, heed::keep(others));

  // 4. The weights of that output, to look at.
  const auto projected = heed::project_qkv(x, w_q, w_k, w_v);
  const auto seen = heed::attention_with_weights(projected.query, projected.key, projected.value,
                                                 {}, heed::keep(others));
  const float difference = (out - seen.weights * projected.value).cwiseAbs().maxCoeff();

  const word_pairs pairs = pair_up(tokens, seen.weights);
  const std::vector<link> links = strongest_links(pairs);
  std::cout << "Untrained: a word's vector is made of its letters, queries and keys are one random "
               "rotation of it, and no word looks at\n"
               "its own place. So words attend to words that are spelt like them, and to their own "
               "repeats.\n\n"
            << support::bold("The most closely linked words", depth) << " (row looks at column; "
            << (depth == support::colours::none ? "denser is stronger"
                                                : "per cent of the row's weight")
            << ")\n";
  print_map(pairs, links, depth, support::terminal_width());
  std::cout << "\n" << support::bold("In words", depth) << "\n";
  print_sentences(pairs, links, 10);
  std::cout << "\n  The fused output and (these weights) x V differ by at most "
            << scientific(difference) << ".\n";

  heed::heatmap_options page;
  page.title = "Who attends to whom?";
  page.note =
      "Untrained: a word's vector is made of its letters, queries and keys are one random rotation "
      "of it, and no word looks at its "
      "own "
      "place. So words attend to words that are spelt like them.";
  std::ofstream file(page_file, std::ios::binary);
  file << heed::heatmap_html(seen.weights, tokens, tokens, page);
  if (!file.flush()) throw std::runtime_error("cannot write '" + page_file + "'");
  std::cout << "  The whole map, " << n << " x " << n << ": open " << support::printable(page_file)
            << " in a browser.\n\n";

  std::cout
      << support::bold("What it costs", depth)
      << " (one thread, processor time, float, head_dim 64; memory beside inputs and output)\n";
  print_costs(quick ? 2048 : 16384);
  std::cout << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string text_file = HEED_EXAMPLES_DIR "/data/passage.txt", page_file = "attention.html",
              colour = "auto";
  bool quick = false;
  support::command_line options(
      "01_who_attends_to_whom",
      "shows which words of a text attend to which, and what attention costs");
  options.option("--text", "FILE",
                 "the text, UTF-8 (default: the opening of Alice's Adventures in Wonderland)",
                 text_file);
  options.option("--html", "FILE", "where the page goes (default: attention.html)", page_file);
  options.option("--colour", "WHEN", "auto, always or never", colour);
  options.flag("--quick", "a few seconds: the costs only up to n = 2,048", quick);
  if (const auto status = options.parse(argc, argv)) return *status;
  try {
    return run(text_file, page_file, colour, quick);
  } catch (const std::exception& error) {
    std::cerr << "01_who_attends_to_whom: " << support::printable(error.what()) << "\n";
    return 1;
  }
}
