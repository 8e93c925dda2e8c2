// SmolLM2-135M-Instruct on heed: answers a question, chats, shows what it looks at, or measures how fast it is.

#include "attention_page.hpp"
#include "chat.hpp"
#include "gguf.hpp"
#include "model.hpp"
#include "model_file.hpp"
#include "sampler.hpp"
#include "tokenizer.hpp"

#include "../support/command_line.hpp"
#include "../support/table.hpp"
#include "../support/terminal.hpp"
#include "../support/text.hpp"

#include <algorithm>
#include <chrono>
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

struct settings {
  std::string question, model = model_file(), cache = "float", attention, threads = "1", seed = "1", temperature = "0.2", most = "512";
  bool bench = false;
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
    throw std::runtime_error(name + " takes a number from " + support::fixed(low, 0) + " to " + support::fixed(high, 0) + ", not '" + text + "'");
  return value;
}

cache_type cache_named(const std::string& name) {
  if (name == "float") return cache_type::float32;
  if (name == "bfloat16") return cache_type::bfloat16;
  if (name == "int8") return cache_type::int8;
  throw std::runtime_error("--cache takes float, bfloat16 or int8, not '" + name + "'");
}

class stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// A model with its tokenizer.
struct language_model {
  explicit language_model(const gguf_file& file) : words(file), layers(file) {
    if (heed::index(words.size()) != layers.config().vocabulary)
      file.fail("has " + std::to_string(words.size()) + " tokens, but vectors for " + std::to_string(layers.config().vocabulary));
  }
  explicit language_model(const std::string& path) : language_model(gguf_file(gguf_file::read(path), support::printable(path))) {}

  tokenizer words;
  model layers;
};

/// A conversation: what was said stays in the cache, so that each turn reads only what is new.
class conversation {
 public:
  conversation(const language_model& m, const settings& s, sampler choose)
      : model_(m), session_(m.layers, cache_named(s.cache), int(number("--threads", s.threads, 1, 1024))),
        choose_(std::move(choose)), most_(int(number("--tokens", s.most, 1, 1e9))) {}

  session& reader() { return session_; }
  const std::vector<token>& tokens() const { return tokens_; }

  /// Answers a message on standard output, word by word as they come, and says below how long it took.
  void answer(const std::string& message) {
    const std::vector<token> prompt = chat_message(model_.words, message, tokens_.empty());
    const stopwatch reading;
    Eigen::VectorXf logits = read(prompt);
    const double read_seconds = reading.seconds();

    const stopwatch writing;
    text_stream text;
    int count = 0;
    for (; count < most_; ++count) {
      const token next = choose_.choose(logits);
      if (next == model_.words.end() || session_.position() == session_.context()) break;
      std::cout << text.add(model_.words.decode(next)) << std::flush;
      logits = read({next});
    }
    std::cout << text.finish() << "\n\n";
    const double write_seconds = writing.seconds();
    std::cout << "read " << prompt.size() << " tokens at " << support::fixed(double(prompt.size()) / read_seconds, 0) << " a second, wrote " << count
              << " at " << support::fixed(count / write_seconds, 0) << " a second; the cache holds " << session_.position() << " tokens in "
              << support::bytes(double(session_.cache_bytes())) << std::endl;
  }

 private:
  const Eigen::VectorXf& read(const std::vector<token>& tokens) {
    const Eigen::VectorXf& logits = session_.read(tokens);
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    return logits;
  }

  const language_model& model_;
  session session_;
  sampler choose_;
  int most_;
  std::vector<token> tokens_;
};

void write_page(std::ofstream& file, const std::string& path, const language_model& m, const conversation& talk, const attention_recorder& recorder) {
  std::cout << "Writing down what it looked at, in every layer and head ..." << std::flush;  // seconds, for a long text
  file << recorder.html(m.words, talk.tokens());
  if (!file.flush()) throw std::runtime_error("cannot write '" + path + "'");
  std::cout << " open " << support::printable(path) << " in a browser." << std::endl;
}

int chat(const settings& s) {
  std::ofstream page;
  if (!s.attention.empty()) {
    page.open(s.attention, std::ios::binary);  // before the chat, which would be lost
    if (!page) throw std::runtime_error("cannot write '" + s.attention + "'");
  }
  sampler choose(number("--temperature", s.temperature, 0, 100), 0.9, std::uint64_t(number("--seed", s.seed, 0, 1e15)));
  const language_model m(s.model);
  conversation talk(m, s, std::move(choose));
  attention_recorder recorder(m.layers.config());
  if (!s.attention.empty()) talk.reader().watch([&](const attention_step& step) { recorder.add(step); });

  if (!s.question.empty()) {
    talk.answer(s.question);
  } else {
    const bool prompt = support::is_terminal(stdin);
    if (prompt) std::cout << "SmolLM2, 135 million parameters: it is quick, friendly and often wrong. An empty line or Ctrl-D ends the chat.\n";
    for (std::string line; (prompt ? std::cout << "\n> " << std::flush : std::cout), std::getline(std::cin, line) && !line.empty();) talk.answer(line);
  }
  if (!s.attention.empty() && !talk.tokens().empty()) write_page(page, s.attention, m, talk, recorder);
  return 0;
}

/// Reads a prompt of 893 tokens and writes 64 more, once for each number of threads.
int bench(const settings& s) {
  const language_model m(s.model);
  std::string text;
  for (int i = 1; i <= 60; ++i) text += "Line " + std::to_string(i) + ": the keeper wrote down the wind and the height of the tide. ";
  std::vector<token> prompt = chat_message(m.words, text, true);
  prompt.resize(893);
  support::table table({"threads", "read, tokens/s", "attention", "write, tokens/s", "attention", "cache"});
  for (int threads = 1; threads <= (std::max)(1, int(number("--threads", s.threads, 1, 1024))); threads *= 2) {
    double best_read = 1e300, best_write = 1e300, read_attention = 0, write_attention = 0, cache = 0;
    for (int run = 0; run < 3; ++run) {
      session reader(m.layers, cache_named(s.cache), threads);
      const stopwatch reading;
      Eigen::VectorXf logits = reader.read(prompt);
      const double read = reading.seconds(), in_reading = reader.attention_seconds();
      const stopwatch writing;
      for (int i = 0; i < 64; ++i) {
        Eigen::Index best = 0;
        logits.maxCoeff(&best);
        logits = reader.read({token(best)});
      }
      const double write = writing.seconds();
      if (read < best_read) best_read = read, read_attention = in_reading;
      if (write < best_write) best_write = write, write_attention = reader.attention_seconds() - in_reading;
      cache = double(reader.cache_bytes());
    }
    const auto share = [](double part, double of) { return support::fixed(100 * part / of, 1) + " %"; };
    table.add({std::to_string(threads), support::fixed(893 / best_read, 0), share(read_attention, best_read), support::fixed(64 / best_write, 0),
               share(write_attention, best_write), support::bytes(cache)});
  }
  std::cout << "A prompt of 893 tokens, then 64 new ones; the best of three runs. Cache: " << s.cache << "\n\n";
  table.print(std::cout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  support::command_line options("chat", "SmolLM2 answers a question; without one it chats, line by line");
  options.words("QUESTION", "what to ask", s.question);
  options.option("--attention", "FILE", "writes a page that shows what each head of each layer looked at", s.attention);
  options.option("--cache", "TYPE", "how keys and values are kept: float, bfloat16 or int8 (default: float)", s.cache);
  options.option("--threads", "N", "how many threads work (default: 1)", s.threads);
  options.option("--temperature", "T", "0 always takes the likeliest token (default: 0.2)", s.temperature);
  options.option("--seed", "N", "what chance begins with (default: 1)", s.seed);
  options.option("--tokens", "N", "the longest answer (default: 512)", s.most);
  options.option("--model", "FILE", "another GGUF file of the llama family, with Q4_1 and Q8_0 weights", s.model);
  options.flag("--bench", "measures reading and writing, with one thread and more, up to --threads", s.bench);
  if (const auto status = options.parse(argc, argv)) return *status;
  try {
    return s.bench ? bench(s) : chat(s);
  } catch (const std::exception& error) {
    std::cerr << "chat: " << support::printable(error.what()) << "\n";
    return 1;
  }
}
