// A state instead of a cache: linear attention and its gated kin keep one d x d matrix of the past,
// whatever its length, where softmax attention keeps every key and value. What that costs and saves
// over n, that the chunked form is the recurrence, and what the decays forget.

#include <heed/heed.hpp>

#include "support/command_line.hpp"
#include "support/progress.hpp"
#include "support/table.hpp"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>
#include <vector>

namespace {

constexpr heed::size_type d = 64;

struct sequence {
  heed::rows<float> query, key, value, gate;
  heed::row_vector<float> beta;

  explicit sequence(heed::size_type n)
      : query(n, d),
        key(n, d),
        value(n, d),
        gate(n, 1),
        beta(heed::row_vector<float>::Constant(n, 0.5f)) {
    query.setRandom();
    key.setRandom();
    key.rowwise().normalize();
    value.setRandom();
    gate.setConstant(-0.02f);
  }
};

/// The fastest of a few calls, in seconds.
template <typename Call>
double time_of(const Call& call) {
  double best = 1e9;
  for (int r = 0; r < 5; ++r) {
    const auto start = std::chrono::steady_clock::now();
    call();
    best = (std::min)(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

/// Softmax attention against linear attention and the delta rule: time for a whole sequence, memory
/// for its past.
void compare(heed::size_type longest, heed::size_type longest_softmax) {
  heed::attention_options causal;
  causal.causal = heed::causal::bottom_right;
  support::table table(
      {"n", "softmax", "gated linear", "gated delta", "softmax keeps", "the others keep"});
  int steps = 0;
  for (heed::size_type n = 64; n <= longest; n *= 2) ++steps;
  support::progress progress(steps);
  heed::size_type crossover = 0;
  for (heed::size_type n = 64; n <= longest; n *= 2) {
    progress.step("n = " + std::to_string(n));
    const sequence s(n);
    heed::rows<float> out;
    const double linear = time_of(
        [&] { out = heed::linear_attention(s.query, s.key, s.value, {}, heed::log_gate(s.gate)); });
    const double delta = time_of([&] {
      out = heed::delta_rule(s.query, s.key, s.value, s.beta, {}, heed::log_gate(s.gate));
    });
    std::string softmax = "-";
    if (n <= longest_softmax) {
      const double seconds =
          time_of([&] { out = heed::attention(s.query, s.key, s.value, causal); });
      if (linear >= seconds) {
        crossover = 0;
      } else if (crossover == 0) {
        crossover = n;
      }
      softmax = support::seconds(seconds);
    }
    table.add({std::to_string(n), softmax, support::seconds(linear), support::seconds(delta),
               support::bytes(2.0 * double(n * d) * sizeof(float)),
               support::bytes(double(d * d) * sizeof(float))});
  }
  progress.clear();
  table.print(std::cout);
  std::cout << "\nA doubling of n doubles the time of the linear forms and quadruples that of "
               "softmax attention";
  if (crossover > 0)
    std::cout << "; of the lengths here, gated linear\nattention is the faster one from n = "
              << crossover << " on";
  std::cout << ".\n";
}

/// A sequence token by token, as when generating, against the whole at once.
void stream(heed::size_type n) {
  const sequence s(n);
  heed::rows<float> whole_state = heed::rows<float>::Zero(d, d), state = whole_state, out(n, d);
  const heed::rows<float> whole = heed::delta_rule(
      s.query, s.key, s.value, s.beta, {}, heed::log_gate(s.gate), heed::carry(whole_state));
  for (heed::size_type t = 0; t < n; ++t) {
    const heed::row_vector<float> beta = s.beta.segment(t, 1);
    out.row(t) = heed::delta_rule(s.query.row(t), s.key.row(t), s.value.row(t), beta, {},
                                  heed::log_gate(s.gate.row(t)), heed::carry(state));
  }
  std::cout << "\nThe delta rule on " << n
            << " tokens in chunks, and again token by token from a carried state: outputs differ "
               "by at most "
            << support::scientific(double((out - whole).cwiseAbs().maxCoeff())) << ", states by "
            << support::scientific(double((state - whole_state).cwiseAbs().maxCoeff())) << ".\n";
}

/// One pair is stored, then read again after some silence.
void forget() {
  std::cout << "\nOne value of 1 stored under a key, and what RetNet's heads still read of it:\n";
  support::table table({"tokens ago", "head 0", "head 2", "head 4", "head 7"});
  const heed::row_vector<double> gates = heed::retention_log_gates<double>(8);
  const heed::rows<double> one = heed::rows<double>::Ones(1, 1);
  for (const heed::size_type ago : {1, 10, 100, 1000}) {
    std::vector<std::string> row{std::to_string(ago)};
    for (const heed::size_type h : {0, 2, 4, 7}) {
      heed::rows<double> query = heed::rows<double>::Ones(ago + 1, 1),
                         key = heed::rows<double>::Zero(ago + 1, 1);
      key(0, 0) = 1;
      const heed::rows<double> gate = one * gates(h);
      row.push_back(support::fixed(
          heed::linear_attention(query, key, key, {}, heed::log_gate(gate))(ago, 0), 3));
    }
    table.add(row);
  }
  table.print(std::cout);
}

}  // namespace

int main(int argc, char** argv) {
  bool quick = false;
  support::command_line line(
      "07_linear_attention",
      "linear attention and the delta rule: time and memory over n, streaming, forgetting");
  line.flag("--quick", "short sequences only", quick);
  if (const auto status = line.parse(argc, argv)) return *status;
  std::cout << "\nCausal, one head, head_dim " << d
            << ", float, one thread; a gate per token. Softmax attention keeps the keys and values "
               "of all "
               "tokens,\nthe linear forms one state.\n\n";
  compare(quick ? 2048 : 65536, quick ? 2048 : 16384);
  stream(quick ? 200 : 2000);
  forget();
  return 0;
}
