// Custom attention: a score function and a mask function in ten lines, run by the fused kernels.

#include <heed/heed.hpp>

#include "support/command_line.hpp"
#include "support/table.hpp"

#include <chrono>
#include <cmath>
#include <iostream>

namespace {

using heed::size_type;
using matrix = heed::rows<float>;

/// The shortest of some runs, in seconds.
template <typename Call>
double time_of(const Call& call, int runs) {
  double best = 1e9;
  for (int run = 0; run < runs; ++run) {
    const auto start = std::chrono::steady_clock::now();
    call();
    best = (std::min)(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  using heed::size_type;  // not the one of <strings.h>
  bool quick = false;
  support::command_line command(
      "08_custom_attention",
      "your own score function and mask function, at the speed of the kernels");
  command.flag("--quick", "a shorter sequence", quick);
  if (const auto status = command.parse(argc, argv)) return *status;

  const size_type n = quick ? 1024 : 4096, d = 64;
  const matrix query = matrix::Random(n, d), key = matrix::Random(n, d),
               value = matrix::Random(n, d);
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;

  // The ten lines: weights fade with the distance, and a token sees its own document of 512 tokens
  // only.
  const auto decay = [](float score, size_type, size_type, size_type i, size_type j) {
    return score - 0.02f * float(i - j);
  };
  const auto same_document = [](size_type, size_type, size_type i, size_type j) {
    return i / 512 == j / 512;
  };
  const heed::block_mask documents = heed::block_mask::of(same_document, 1, 1, n, n);
  const auto custom = [&] {
    return heed::attention(query, key, value, options, heed::score_function(decay),
                           heed::mask_function(same_document, documents));
  };

  const matrix got = custom();
  const auto want = heed::reference_attention(
      query.cast<double>().eval(), key.cast<double>().eval(), value.cast<double>().eval(), options,
      heed::score_function([](double s, size_type, size_type, size_type i, size_type j) {
        return s - 0.02 * double(i - j);
      }),
      heed::mask_function(same_document));
  const double difference = (got.cast<double>() - want).cwiseAbs().maxCoeff();

  const int runs = quick ? 3 : 10;
  const double plain = time_of([&] { heed::attention(query, key, value, options); }, runs);
  const double decayed = time_of(
      [&] { heed::attention(query, key, value, options, heed::score_function(decay)); }, runs);
  const double masked = time_of(
      [&] { heed::attention(query, key, value, options, heed::mask_function(same_document)); },
      runs);
  const double sparse = time_of(
      [&] {
        heed::attention(query, key, value, options, heed::mask_function(same_document, documents));
      },
      runs);
  const double both = time_of(custom, runs);

  support::table table({"causal, n = " + std::to_string(n) + ", d = 64", "time", "against plain"});
  const auto row = [&](const std::string& name, double time) {
    table.add({name, support::seconds(time), support::fixed(time / plain, 2) + " x"});
  };
  row("plain", plain);
  row("score function", decayed);
  row("mask function", masked);
  row("mask function, hidden blocks skipped", sparse);
  row("both, hidden blocks skipped", both);
  std::cout << "\n";
  table.print(std::cout);
  std::cout << "\nThe last column is what it costs to call a function for every pair, and what "
               "skipping hidden blocks wins: "
            << support::fixed(100 * documents.density(), 1)
            << " % of them\nare visible. Largest difference from the reference in double: "
            << support::scientific(difference) << ".\n";
  return difference < 1e-4 ? 0 : 1;
}
