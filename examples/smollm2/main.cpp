// SmolLM2-135M-Instruct on heed: answers a question, chats, shows what it looks at, or measures how
// fast it is.

#include "attention_page.hpp"
#include "chat.hpp"
#include "compare_caches.hpp"
#include "conversation.hpp"
#include "language_model.hpp"
#include "model_file.hpp"
#include "sampler.hpp"
#include "session.hpp"
#include "stopwatch.hpp"
#include "tokenizer.hpp"

#include "../support/command_line.hpp"
#include "../support/table.hpp"
#include "../support/terminal.hpp"
#include "../support/text.hpp"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace smollm2;
using smollm2::size_type;  // and not the one of <strings.h>

struct settings {
  std::string question, model = model_file(), cache = "float", attention, threads = "1", seed = "1",
                        temperature = "0.2", most = "512";
  bool bench = false, compare_caches = false;
};

double number(const std::string& name, const std::string& text, double low, double high) {
  std::size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used != text.size() || !(value >= low && value <= high))
    throw std::runtime_error(name + " takes a number from " + support::fixed(low, 0) + " to " +
                             support::fixed(high, 0) + ", not '" + text + "'");
  return value;
}

/// float, bfloat16, ... or the last.
std::string all_cache_names() {
  std::string all = cache_names[0];
  for (std::size_t i = 1; i < cache_names.size(); ++i)
    all += (i + 1 < cache_names.size() ? ", " : " or ") + std::string(cache_names[i]);
  return all;
}
cache_type cache_named(const std::string& name) {
  for (std::size_t i = 0; i < cache_names.size(); ++i)
    if (name == cache_names[i]) return cache_type(i);
  throw std::runtime_error("--cache takes " + all_cache_names() + ", not '" + name + "'");
}

size_type whole_number(const std::string& name, const std::string& text, double low, double high) {
  const double value = number(name, text, low, high);
  if (value != std::floor(value))
    throw std::runtime_error(name + " takes a whole number, not '" + text + "'");
  return size_type(value);
}
int threads_of(const settings& s) { return int(whole_number("--threads", s.threads, 1, 1024)); }

std::string rate(size_type tokens, double seconds) {
  return support::fixed(double(tokens) / seconds, 0);
}

void write_page(std::ofstream& file, const std::string& path, const language_model& m,
                const conversation& talk, const attention_recorder& recorder) {
  std::cout << "Writing down what it looked at, in every layer and head ..."
            << std::flush;  // seconds, for a long text
  file << recorder.html(m.words, talk.tokens());
  if (!file.flush()) throw std::runtime_error("cannot write '" + path + "'");
  std::cout << " open " << support::printable(path) << " in a browser." << std::endl;
}

volatile std::sig_atomic_t interrupted = 0;
extern "C" void note_interrupt(int) { interrupted = 1; }

/// While it lives, Ctrl-C ends the answer and not the program.
class interrupt_guard {
 public:
  interrupt_guard() : before_(std::signal(SIGINT, note_interrupt)) { interrupted = 0; }
  interrupt_guard(const interrupt_guard&) = delete;
  interrupt_guard& operator=(const interrupt_guard&) = delete;
  ~interrupt_guard() { std::signal(SIGINT, before_); }

 private:
  void (*before_)(int);
};

/// Prints the answer word by word as it comes, and below how long it took.
void answer(conversation& talk, const std::string& message) {
  const answer_report report = talk.answer(
      message, [](const std::string& text) { std::cout << text << std::flush; },
      [] { return interrupted != 0; });
  const char* const remarks[] = {"", " [longer than --tokens]", " [the context is full]",
                                 " [stopped]"};
  std::cout << remarks[int(report.end)] << "\n\nread " << report.read << " tokens at "
            << rate(report.read, report.read_seconds) << " a second, wrote " << report.written
            << " at " << rate(report.written, report.write_seconds) << " a second; the cache holds "
            << talk.reader().position() << " tokens in "
            << support::bytes(double(talk.reader().cache_bytes())) << std::endl;
}

/// A line is a message, until the input ends. What cannot be answered is no reason to hang up on
/// somebody who types.
void chat_by_line(conversation& talk) {
  const bool somebody_types = support::is_terminal(stdin);
  if (somebody_types)
    std::cout << "SmolLM2, 135 million parameters: it is quick, friendly and often wrong. Ctrl-C "
                 "ends an answer, Ctrl-D the chat.\n";
  for (std::string line; (somebody_types ? std::cout << "\n> " << std::flush : std::cout),
                         std::getline(std::cin, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const interrupt_guard guard;
    try {
      answer(talk, line);
    } catch (const std::invalid_argument& error) {
      if (!somebody_types) throw;
      std::cout << error.what() << "\n";
    }
  }
  if (somebody_types) std::cout << "\n";
}

int chat(const settings& s) {
  std::ofstream page;
  if (!s.attention.empty()) {
    page.open(s.attention, std::ios::binary);  // before the chat, which would be lost
    if (!page) throw std::runtime_error("cannot write '" + s.attention + "'");
  }
  sampler choose(number("--temperature", s.temperature, 0, 100), 0.9,
                 std::uint64_t(whole_number("--seed", s.seed, 0, 1e15)));
  const cache_type cache = cache_named(s.cache);
  const int threads = threads_of(s);
  const size_type longest = whole_number("--tokens", s.most, 1, 1e9);
  const language_model m = load(s.model);
  conversation talk(m, cache, threads, std::move(choose), longest);
  attention_recorder recorder(m.layers.config());
  if (!s.attention.empty())
    talk.reader().watch([&](const attention_step& step) { recorder.add(step); });
  if (s.question.empty()) {
    chat_by_line(talk);
  } else {
    answer(talk, s.question);
  }
  if (!s.attention.empty() && !talk.tokens().empty())
    write_page(page, s.attention, m, talk, recorder);
  return 0;
}

/// The page of text that is measured with.
std::vector<token> page_of_text(const language_model& m) {
  std::string text = support::read_file(HEED_EXAMPLES_DIR "/data/lighthouse.txt", 1 << 20);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return chat_message(m.words, text, true);
}

int compare(const settings& s) {
  const int threads = threads_of(s);
  const language_model m = load(s.model);
  const std::vector<token> text = page_of_text(m);
  std::cout << "A text of " << text.size() << " tokens, read one by one.\n\n";
  compare_caches(m, text, threads).print(std::cout);
  return 0;
}

/// Reads a page of text and writes 64 tokens, once for each number of threads.
int bench(const settings& s) {
  constexpr size_type length = 64;
  const cache_type cache = cache_named(s.cache);
  const int most_threads = threads_of(s);
  const language_model m = load(s.model);
  const std::vector<token> prompt = page_of_text(m);
  const size_type n = size_type(prompt.size());
  std::vector<token> written;
  support::table table(
      {"threads", "read, tokens/s", "attention", "write, tokens/s", "attention", "cache"});
  for (int threads = 1; threads <= most_threads;
       threads = threads < most_threads ? (std::min)(2 * threads, most_threads) : threads + 1) {
    double best_read = 1e300, best_write = 1e300, read_attention = 0, write_attention = 0,
           bytes = 0;
    for (int run = 0; run < 3; ++run) {
      session reader(m.layers, cache, threads);
      written.clear();
      const stopwatch reading;
      const Eigen::VectorXf& logits = reader.read(prompt);
      const double read = reading.seconds(), in_reading = reader.attention_seconds();
      const stopwatch writing;
      sampler likeliest(0, 1, 1);
      while (size_type(written.size()) < length) {
        written.push_back(likeliest.choose(logits));
        reader.read({written.back()});
      }
      const double write = writing.seconds();
      if (read < best_read) best_read = read, read_attention = in_reading;
      if (write < best_write)
        best_write = write, write_attention = reader.attention_seconds() - in_reading;
      bytes = double(reader.cache_bytes());
    }
    const auto share = [](double part, double of) {
      return support::fixed(100 * part / of, 1) + " %";
    };
    table.add({std::to_string(threads), rate(n, best_read), share(read_attention, best_read),
               rate(length, best_write), share(write_attention, best_write),
               support::bytes(bytes)});
  }
  std::cout << "A prompt of " << n << " tokens, then " << length
            << " new ones; the best of three runs. Cache: " << s.cache << "\n\n";
  table.print(std::cout);
  std::cout << "\nwrote tokens";
  for (const token t : written) std::cout << " " << t;
  std::cout << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  support::command_line options("chat",
                                "SmolLM2 answers a question; without one it chats, line by line");
  options.words("QUESTION", "what to ask", s.question);
  options.option("--attention", "FILE",
                 "writes a page that shows what each head of each layer looked at", s.attention);
  options.option("--cache", "TYPE",
                 "how keys and values are kept: " + all_cache_names() + " (default: float)",
                 s.cache);
  options.option("--threads", "N", "how many threads work (default: 1)", s.threads);
  options.option("--temperature", "T", "0 always takes the likeliest token (default: 0.2)",
                 s.temperature);
  options.option("--seed", "N", "what chance begins with (default: 1)", s.seed);
  options.option("--tokens", "N", "the longest answer (default: 512)", s.most);
  options.option("--model", "FILE",
                 "another GGUF file of the llama family, with Q4_1 and Q8_0 weights", s.model);
  options.flag("--bench", "measures reading and writing, with one thread and more, up to --threads",
               s.bench);
  options.flag("--compare-caches",
               "measures what each type of cache costs, in bytes, error and time",
               s.compare_caches);
  if (const auto status = options.parse(argc, argv)) return *status;
  try {
    if ((s.bench || s.compare_caches) && !(s.question.empty() && s.attention.empty()))
      throw std::runtime_error(std::string(s.bench ? "--bench" : "--compare-caches") +
                               " takes neither a QUESTION nor --attention");
    const int status = s.bench ? bench(s) : s.compare_caches ? compare(s) : chat(s);
    if (!std::cout.flush()) throw std::runtime_error("standard output takes no more");
    return status;
  } catch (const std::exception& error) {
    std::cerr << "chat: " << support::printable(error.what()) << "\n";
    return 1;
  }
}
