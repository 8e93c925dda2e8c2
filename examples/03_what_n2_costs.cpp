// What n^2 costs. The formula as it is written makes a matrix of n x n weights: time grows as n^2,
// and so does memory, which runs out first. The fused form needs the same operations and O(n)
// memory: it takes 131,072 tokens, whose matrix would be 64 GiB.

#include <heed/heed.hpp>

#include "support/command_line.hpp"
#include "support/points.hpp"
#include "support/progress.hpp"
#include "support/table.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#if defined(__linux__)
#include <unistd.h>
#endif

namespace {

using heed::size_type;
using matrix = heed::rows<float>;
using support::bytes;
using support::point;
using support::seconds;
constexpr size_type d = 64;

struct sequence {
  explicit sequence(size_type n)
      : query(matrix::Random(n, d)), key(matrix::Random(n, d)), value(matrix::Random(n, d)) {}
  matrix query, key, value;
};

/// The formula as it is written; the weights take the place of the scores, so there is one n x n
/// matrix and no second.
matrix naive_attention(const sequence& s) {
  matrix weights = s.query * s.key.transpose();
  weights *= 1 / std::sqrt(float(d));
  for (size_type i = 0; i < weights.rows(); ++i) {
    weights.row(i) = (weights.row(i).array() - weights.row(i).maxCoeff()).exp();
    weights.row(i) /= weights.row(i).sum();
  }
  return weights * s.value;
}

double matrix_bytes(size_type n) { return double(n) * double(n) * sizeof(float); }

template <typename Call>
double time_of(const Call& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Bytes of the process that are in memory now; 0 where the system does not say.
double resident_bytes() {
#if defined(__linux__)
  std::ifstream file("/proc/self/statm");
  double pages = 0, resident = 0;
  if (file >> pages >> resident) return resident * double(sysconf(_SC_PAGESIZE));
#endif
  return 0;
}

// Scores are at most d / sqrt(d) = 8 with a rounding error of at most d eps 8 = 3e-5; a weight has
// twice that, and values are at most 1.
constexpr double tolerance = 1e-4;

/// Row i of causal attention, directly and in double.
double error_of_row(const sequence& s, const matrix& out, size_type i) {
  const heed::rows<double> query = s.query.row(i).cast<double>(),
                           key = s.key.topRows(i + 1).cast<double>(),
                           value = s.value.topRows(i + 1).cast<double>();
  return (heed::reference_attention(query, key, value) - out.row(i).cast<double>())
      .cwiseAbs()
      .maxCoeff();
}

/// Both forms from n = 256 up, the naive one as long as its matrix has room. The largest difference
/// between the two.
double compare(size_type longest, double room, const heed::attention_options& options,
               std::vector<point>& points) {
  support::table table({"n", "naive", "its matrix", "fused", "its memory", "naive / fused"});
  int steps = 0;
  for (size_type n = 256; n <= longest; n *= 2) ++steps;
  support::progress progress(steps);
  double difference = 0;
  for (size_type n = 256; n <= longest; n *= 2) {
    progress.step("n = " + std::to_string(n));
    const sequence s(n);
    matrix out(n, d), naive;
    heed::workspace memory;
    const auto fused_call = [&] {
      heed::attention_into(s.query, s.key, s.value, out, {}, options, memory);
    };
    fused_call();  // the first call grows the workspace
    const double fused = time_of(fused_call);
    points.push_back({"fused", n, fused, double(memory.capacity())});
    std::string naive_time = "does not fit", ratio = "-";
    if (matrix_bytes(n) <= room) {
      const double time = time_of([&] { naive = naive_attention(s); });
      points.push_back({"naive", n, time, matrix_bytes(n)});
      difference = (std::max)(difference, double((naive - out).cwiseAbs().maxCoeff()));
      naive_time = seconds(time);
      ratio = support::fixed(time / fused, 1) + " x";
    }
    table.add({std::to_string(n), naive_time, bytes(matrix_bytes(n)), seconds(fused),
               bytes(double(memory.capacity())), ratio});
  }
  progress.clear();
  table.print(std::cout);
  if (matrix_bytes(longest) > room)
    std::cout << "\nA matrix of more than " << bytes(room) << " does not fit: see --memory.\n";
  return difference;
}

/// One causal call over n tokens, a block of queries after the other so that there is progress to
/// see: rows [first, end) against keys [0, end), aligned bottom right, are the same rows of the
/// whole. The largest error of some rows.
double long_context(size_type n, heed::attention_options options, std::vector<point>& points) {
  options.causal = heed::causal::bottom_right;
  const double before = resident_bytes();
  const sequence s(n);
  matrix out(n, d);
  heed::workspace memory;
  const size_type block = (std::max)(size_type(1024), n / 32);
  support::progress progress(int((n + block - 1) / block));
  double time = 0, resident = 0;
  for (size_type first = 0; first < n; first += block) {
    const size_type end = (std::min)(first + block, n);
    progress.step("tokens " + std::to_string(first) + " to " + std::to_string(end) + ", " +
                  seconds(time) + " so far");
    time += time_of([&] {
      heed::attention_into(s.query.middleRows(first, end - first), s.key.topRows(end),
                           s.value.topRows(end), out.middleRows(first, end - first), {}, options,
                           memory);
    });
    resident = (std::max)(resident, resident_bytes());
  }
  progress.clear();
  points.push_back({"fused, causal", n, time, double(memory.capacity())});

  const double pairs = 0.5 * double(n) * double(n + 1);
  std::cout << "\nA context of " << n << " tokens, causal, d = " << d << ":\n";
  support::table table(
      {"time",
       seconds(time) + " (" + support::fixed(4e-9 * pairs * double(d) / time, 0) + " GFLOP/s)"});
  table.add(
      {"memory of queries, keys, values and output", bytes(4.0 * double(n * d) * sizeof(float))});
  table.add({"memory of the call besides", bytes(double(memory.capacity()))});
  if (resident > 0)
    table.add(
        {"resident memory of the process grew by", bytes((std::max)(0.0, resident - before))});
  table.add({"the matrix that was never made", bytes(matrix_bytes(n))});
  table.print(std::cout);

  double error = 0;
  for (const size_type i : {size_type(0), n / 3, n / 2, n - 1})
    error = (std::max)(error, error_of_row(s, out, i));
  return error;
}

}  // namespace

int main(int argc, char** argv) {
  using heed::size_type;  // not the one of <strings.h>
  bool quick = false;
  std::string json;
  int gib = 6, threads = 1;
  support::command_line command(
      "03_what_n2_costs",
      "time and memory of naive and fused attention over n, and a context of 131,072 tokens");
  command.flag("--quick", "up to n = 2048, and a context of 8192", quick);
  command.option("--memory", "GIB", "the largest matrix that the naive form may make (6)", gib);
  command.option("--threads", "N", "threads of the fused form (1)", threads);
  command.option("--json", "FILE", "write the measurements for bench/plot.py --filter .", json);
  if (const auto status = command.parse(argc, argv)) return *status;
  heed::attention_options options;
  options.execution.threads = threads;
  const double room = double(gib) * 1024 * 1024 * 1024;

  std::vector<point> points;
  std::cout << "\nOne head, d = " << d
            << ". Naive: softmax(Q K^T / sqrt(d)) V as it is written, with Eigen. Fused: "
               "heed::attention.\n\n";
  const double difference = compare(quick ? 2048 : 65536, room, options, points);
  const double error = long_context(quick ? 8192 : 131072, options, points);
  std::cout << "\nLargest difference between naive and fused: " << support::scientific(difference)
            << "; of four rows of the long context from the reference in double: "
            << support::scientific(error) << ".\n";
  if (!json.empty() && !support::write_points(json, points)) {
    std::cerr << "03_what_n2_costs: cannot write the file that --json names\n";
    return 1;
  }
  return difference < tolerance && error < tolerance ? 0 : 1;
}
