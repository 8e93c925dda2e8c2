// A server without a network: requests come while others are being answered. In each step a chunk
// of one prompt is read and each answer gets a token, all sequences in one call a layer. Keys and
// values are in pages, those of the common system prompt shared. Reading the weights once for all
// is what makes a batch fast; no answer depends on who else is in it.

#include "serving/server.hpp"
#include "smollm2/chat.hpp"
#include "smollm2/decoder.hpp"
#include "smollm2/language_model.hpp"
#include "smollm2/sampler.hpp"
#include "smollm2/stopwatch.hpp"

#include "support/command_line.hpp"
#include "support/table.hpp"
#include "support/text.hpp"

#include <heed/kv_cache.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

namespace {

using namespace serving;
using serving::size_type;  // and not the one of <strings.h>
using smollm2::language_model;
using support::fixed;

/// A question, and the step before which it comes.
struct arrival {
  int step;
  std::string question;
};

std::vector<arrival> schedule(bool quick) {
  if (quick) return {{0, "Name a colour."}, {1, "What is 2 + 2?"}, {2, "Say hello."}};
  std::string page = support::read_file(HEED_EXAMPLES_DIR "/data/lighthouse.txt", 1 << 20);
  page = page.substr(0, page.find('\n'));
  return {{0, "What is the capital of France?"},
          {0, "Name three colours."},
          {2, "Who built this lighthouse? " + page},
          {4, "What is the largest planet?"},
          {6, "Write a short poem about the sea."},
          {12, "What do bees make?"},
          {14, "What is 12 plus 30?"},
          {16, "What is the opposite of hot?"},
          {30, "Why is the sky blue?"},
          {32, "Name an animal that can fly."}};
}

/// What the sequence gets alone: in a cache of its own, its prompt read at once.
std::vector<token> alone(const language_model& m, const request& r, int threads) {
  const smollm2::model_config& c = m.layers.config();
  using cache = heed::kv_cache<Eigen::bfloat16>;
  std::vector<cache> caches(std::size_t(c.layers), cache(1, c.kv_heads, c.head_dim, c.head_dim));
  smollm2::decoder decoder(m.layers, threads);
  smollm2::sampler likeliest(0, 1, 1);
  std::vector<token> answer, next = r.prompt;
  while (size_type(answer.size()) < r.longest) {
    next = {likeliest.choose(decoder.read({{0, next}}, caches).row(0).transpose())};
    if (next[0] == m.words.end()) break;
    answer.push_back(next[0]);
  }
  return answer;
}

/// A row a request, a column a step.
void draw(const std::vector<arrival>& arrivals, const server& s,
          const std::vector<size_type>& pages) {
  const auto line = [](std::string name, std::string row) {
    name.resize(18, ' ');
    row.erase(row.find_last_not_of(' ') + 1);
    std::cout << "  " << name << "  " << row << "\n";
  };
  std::cout << "  r reads a chunk of its prompt, w writes a token, . waits; a column is a step\n\n";
  for (std::size_t i = 0; i < arrivals.size(); ++i)
    line(arrivals[i].question.substr(0, 18),
         std::string(std::size_t(arrivals[i].step), ' ') + s.requests()[i].picture);
  std::string tens, ones;
  for (const size_type n : pages) {
    tens += n < 10 ? ' ' : char('0' + n / 10);
    ones += char('0' + n % 10);
  }
  line("pages in use", tens);
  line("", ones);
}

/// Serves the schedule; whether every answer is what its sequence gets alone.
bool serve(const language_model& m, bool quick, int threads) {
  const std::vector<arrival> arrivals = schedule(quick);
  const std::vector<token> beginning = smollm2::chat_opening(m.words);
  const limits limit;
  server s(m, beginning, limit, threads);
  std::vector<size_type> pages;
  const smollm2::stopwatch together;
  for (std::size_t next = 0; next < arrivals.size() || !s.idle();) {
    for (; next < arrivals.size() && arrivals[next].step <= int(pages.size()); ++next)
      s.submit(smollm2::chat_message(m.words, arrivals[next].question, true), quick ? 4 : 24);
    s.step();
    pages.push_back(s.pages_in_use());
  }
  const double batch_seconds = together.seconds();

  std::cout << arrivals.size() << " questions, one cache of " << limit.pages << " pages of "
            << limit.page_rows << " tokens a layer. The system prompt has " << beginning.size()
            << " tokens, whose pages all share.\n\n";
  draw(arrivals, s, pages);

  support::table answers({"answer", "read", "wrote", "alone"});
  size_type written = 0, differ = 0;
  double single_seconds = 0;
  for (const request& r : s.requests()) {
    const smollm2::stopwatch time;
    const bool same = alone(m, r, threads) == r.answer;
    single_seconds += time.seconds();
    if (!same) ++differ;
    written += size_type(r.answer.size());
    std::string text;
    for (const token t : r.answer) text += m.words.decode(t);
    std::replace(text.begin(), text.end(), '\n', ' ');
    answers.add({support::printable(text.substr(0, 60)), std::to_string(r.prompt.size()),
                 std::to_string(r.answer.size()), same ? "the same" : "ANOTHER"});
  }
  std::cout << "\n";
  answers.print(std::cout);
  std::cout << "\nWrote " << written << " tokens in " << pages.size() << " steps, "
            << fixed(double(written) / batch_seconds, 0)
            << " a second; one answer after the other, "
            << fixed(double(written) / single_seconds, 0) << " a second. "
            << (differ == 0
                    ? "Every answer is, token for token, the one that its sequence gets alone."
                    : "BUT an answer is not the one that its sequence gets alone.")
            << "\n";
  return differ == 0;
}

}  // namespace

int main(int argc, char** argv) {
  bool quick = false;
  int threads = 1;
  std::string model = smollm2::model_file();
  support::command_line command("11_serving",
                                "SmolLM2 answers many questions at once, as a server does");
  command.flag("--quick", "three short answers", quick);
  command.option("--threads", "N", "how many threads work (default: 1)", threads);
  command.option("--model", "FILE", "another GGUF file of the llama family", model);
  if (const auto status = command.parse(argc, argv)) return *status;
  try {
    return serve(smollm2::load(model), quick, threads) ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "11_serving: " << support::printable(error.what()) << "\n";
    return 1;
  }
}
