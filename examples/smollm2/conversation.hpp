#pragma once

#include "chat.hpp"
#include "language_model.hpp"
#include "sampler.hpp"
#include "session.hpp"
#include "stopwatch.hpp"
#include "tokenizer.hpp"

#include <Eigen/Core>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace smollm2 {

/// What an answer took, and what ended it.
struct answer_report {
  enum class ending { by_the_model, too_long, context_full, stopped } end = ending::by_the_model;
  size_type read = 0, written = 0;  // tokens
  double read_seconds = 0, write_seconds = 0;
};

/// A conversation: what was said stays in the cache, so that each turn reads only what is new.
class conversation {
 public:
  /// `longest` is how many tokens an answer may have.
  conversation(const language_model& m, cache_type cache, int threads, sampler choose,
               size_type longest)
      : model_(m),
        session_(m.layers, cache, threads),
        choose_(std::move(choose)),
        longest_(longest) {}

  session& reader() { return session_; }
  /// All that the model has read and written so far.
  const std::vector<token>& tokens() const { return tokens_; }

  /// Answers a message: hands `say` the text piece by piece as it comes, safe to print, and calls
  /// `stop` before each token whether that is enough. Throws std::invalid_argument, and has heard
  /// nothing then, where the message does not fit into what is left of the context.
  answer_report answer(
      const std::string& message, const std::function<void(const std::string&)>& say,
      const std::function<bool()>& stop = [] { return false; }) {
    using ending = answer_report::ending;
    answer_report report;
    const std::vector<token> prompt = chat_message(model_.words, message, tokens_.empty());
    const stopwatch reading;
    const Eigen::VectorXf& logits = read(prompt);
    report.read = size_type(prompt.size());
    report.read_seconds = reading.seconds();

    const stopwatch writing;
    text_stream text;
    for (;; ++report.written) {
      const token next = choose_.choose(logits);
      if (next == model_.words.end()) break;
      report.end = report.written == longest_                  ? ending::too_long
                   : session_.position() == session_.context() ? ending::context_full
                   : stop()                                    ? ending::stopped
                                                               : ending::by_the_model;
      if (report.end != ending::by_the_model) break;
      say(text.add(model_.words.decode(next)));
      read({next});
    }
    say(text.finish());
    report.write_seconds = writing.seconds();
    return report;
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
  size_type longest_;
  std::vector<token> tokens_;
};

}  // namespace smollm2
