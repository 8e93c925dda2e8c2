// The volume-weighted average price is attention: one query that scores each trade by log(volume)
// gives softmax weights volume / total volume, so the sum of prices under them is the VWAP. Causal
// attention is the running VWAP of the session, a window makes it a rolling one, and a query that
// learns how fast the past fades shows what a learned one adds.

#include <heed/heed.hpp>

#include "support/command_line.hpp"
#include "support/table.hpp"
#include "support/text.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using heed::size_type;
using matrix = heed::rows<double>;

struct session {
  std::vector<std::string> time;
  std::vector<double> price, volume;
  size_type size() const { return static_cast<size_type>(price.size()); }
};

double positive_number(const std::string& text, const std::string& what, int line) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value > 0) || value > 1e300)
    throw std::runtime_error("line " + std::to_string(line) + ": the " + what +
                             " must be a positive number, but is '" + support::printable(text) +
                             "'");
  return value;
}

/// Lines `time,price,volume`; a first line of names and lines that begin with # are passed over.
session read_session(const std::string& path) {
  std::istringstream file(support::read_file(path, std::size_t(64) << 20));
  session s;
  std::string text;
  for (int line = 1; std::getline(file, text); ++line) {
    if (!text.empty() && text.back() == '\r') text.pop_back();
    if (text.empty() || text[0] == '#' || text == "time,price,volume") continue;
    std::istringstream row(text);
    std::string time, price, volume, more;
    std::getline(row, time, ',');
    std::getline(row, price, ',');
    std::getline(row, volume, ',');
    if (std::getline(row, more))
      throw std::runtime_error("line " + std::to_string(line) +
                               ": there are more than three fields");
    s.time.push_back(time);
    s.price.push_back(positive_number(price, "price", line));
    s.volume.push_back(positive_number(volume, "volume", line));
  }
  if (s.size() == 0) throw std::runtime_error("'" + path + "' holds no trade");
  return s;
}

/// One query a trade: a key's score is its log(volume), whatever the query.
struct trades {
  matrix query, key, value;
  explicit trades(const session& s)
      : query(matrix::Ones(s.size(), 1)), key(s.size(), 1), value(s.size(), 1) {
    for (size_type i = 0; i < s.size(); ++i) {
      key(i, 0) = std::log(s.volume[std::size_t(i)]);
      value(i, 0) = s.price[std::size_t(i)];
    }
  }
};

/// sum(price volume) / sum(volume) over trades [first, last].
double direct(const session& s, size_type first, size_type last) {
  double money = 0, volume = 0;
  for (size_type i = first; i <= last; ++i) {
    money += s.price[std::size_t(i)] * s.volume[std::size_t(i)];
    volume += s.volume[std::size_t(i)];
  }
  return money / volume;
}

/// VWAP that fades with age: a trade scores log(volume) - rate * age, in trades.
matrix fading_vwap(const trades& t, const heed::attention_options& running, double rate) {
  const auto fade = [rate](double score, size_type, size_type, size_type i, size_type j) {
    return score - rate * double(i - j);
  };
  return heed::attention(t.query, t.key, t.value, running, heed::score_function(fade));
}

/// How far the averages known at trades [first, last) are from the price of the next trade, on
/// average.
double miss(const session& s, const matrix& average, size_type first, size_type last) {
  double sum = 0;
  for (size_type i = first; i < last; ++i)
    sum += std::abs(s.price[std::size_t(i + 1)] - average(i, 0));
  return sum / double(last - first);
}

int run(const std::string& path, size_type window) {
  const session s = read_session(path);
  const trades t(s);
  const size_type n = s.size();
  heed::attention_options whole, running, rolling;
  whole.scale = running.scale = rolling.scale = 1;
  running.causal = rolling.causal = heed::causal::bottom_right;
  rolling.window_left = window - 1;

  const double vwap = heed::attention(t.query.topRows(1), t.key, t.value, whole)(0, 0);
  const matrix run_vwap = heed::attention(t.query, t.key, t.value, running),
               roll_vwap = heed::attention(t.query, t.key, t.value, rolling);
  // The one number that this query has to learn: the rate that would have predicted the next price
  // best in the first half.
  double rate = 1.0 / 64;
  for (double tried = 1.0 / 256; n >= 4 && tried <= 1; tried *= 2)
    if (miss(s, fading_vwap(t, running, tried), 0, n / 2) <
        miss(s, fading_vwap(t, running, rate), 0, n / 2))
      rate = tried;
  const matrix fading = fading_vwap(t, running, rate);

  double worst = std::abs(vwap - direct(s, 0, n - 1));
  for (size_type i = 0; i < n; ++i) {
    worst = (std::max)(worst, std::abs(run_vwap(i, 0) - direct(s, 0, i)));
    worst = (std::max)(
        worst, std::abs(roll_vwap(i, 0) - direct(s, (std::max)(size_type(0), i - window + 1), i)));
  }

  std::cout << "\n"
            << n << " trades of " << support::printable(path.substr(path.rfind('/') + 1))
            << ". VWAP by attention: " << support::fixed(vwap, 6)
            << ", by its definition: " << support::fixed(direct(s, 0, n - 1), 6) << "\n\n";
  support::table table({"time", "price", "volume", "running VWAP",
                        "rolling VWAP (" + std::to_string(window) + ")", "fading VWAP"});
  const size_type lines = (std::min)(n, size_type(11));
  for (size_type line = 0; line < lines; ++line) {
    const size_type i = line * (n - 1) / (std::max)(size_type(1), lines - 1);
    table.add({support::printable(s.time[std::size_t(i)]),
               support::fixed(s.price[std::size_t(i)], 2),
               support::fixed(s.volume[std::size_t(i)], 0), support::fixed(run_vwap(i, 0), 4),
               support::fixed(roll_vwap(i, 0), 4), support::fixed(fading(i, 0), 4)});
  }
  table.print(std::cout);
  if (n >= 4) {
    const auto missed = [&](const matrix& average) {
      return support::fixed(miss(s, average, n / 2, n - 1), 4);
    };
    std::cout << "\nThe fading query learned on the first half of the session to halve a trade's "
                 "weight every "
              << support::fixed(std::log(2.0) / rate, 1)
              << " trades.\nOn the second half the next price was off the running VWAP by "
              << missed(run_vwap) << " on average, off the rolling by " << missed(roll_vwap)
              << ", off the fading by " << missed(fading) << ".\n";
    if (rate >= 1)
      std::cout << "No slower rate was better: the last price predicts the next one best, as in a "
                   "random walk.\n";
  }
  const bool right = worst < 1e-9 * s.price[0];
  std::cout
      << "\nLargest difference from direct sums in double, over every running and rolling value: "
      << support::scientific(worst) << (right ? "" : ": TOO LARGE") << "\n";
  return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::string file = HEED_EXAMPLES_DIR "/data/session.csv";
  int window = 30;
  bool quick = false;
  support::command_line options(
      "06_vwap", "the volume-weighted average price of a trading session as attention");
  options.option("--csv", "FILE", "trades as time,price,volume (default: a synthetic session)",
                 file);
  options.option("--window", "N", "trades of the rolling VWAP (default: 30)", window);
  options.flag("--quick", "the same: this example takes no time", quick);
  if (const auto status = options.parse(argc, argv)) return *status;
  try {
    return run(file, window);
  } catch (const std::exception& error) {
    std::cerr << "06_vwap: " << support::printable(error.what()) << "\n";
    return 1;
  }
}
