// Training a transformer of attention alone on heed: attention and its gradient are the library's,
// the rest is a few pages in training/. It learns what nobody can predict, random tokens, until it
// finds that they repeat: two heads, one after the other, learn to look for what came after the
// last time (an induction head, Olsson et al. 2022), and the loss falls all at once. With --text it
// learns the characters of a text and writes some of its own.

#include "support/command_line.hpp"
#include "support/progress.hpp"
#include "support/table.hpp"
#include "support/text.hpp"
#include "training/checkpoint.hpp"
#include "training/induction.hpp"
#include "training/learner.hpp"
#include "training/plot.hpp"
#include "training/tasks.hpp"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace training;
using support::fixed;
using training::size_type;  // and not the one of <strings.h>

struct settings {
  std::string text, page = "training.html", checkpoint;
  int steps = 0, seed = 1, write = 600;  // steps 0: as many as the task needs
  bool alice = false, quick = false;
};

volatile std::sig_atomic_t interrupted = 0;
extern "C" void note_interrupt(int) {
  interrupted = 1;
  std::signal(SIGINT, SIG_DFL);  // a second one ends the program
}

/// Goes on from the checkpoint, if there is one.
void resume(learner<float>& l, std::uint64_t task, const std::string& path) {
  if (path.empty() || !std::ifstream(path)) return;
  load(l, task, path);
  std::cout << "Going on from step " << l.optimiser.steps << " of " << support::printable(path)
            << ".\n";
}

/// Learns the batches of a task up to step `steps`, or until Ctrl-C. Some fifty times
/// report(mean loss) says how it goes, and the checkpoint is saved.
template <typename Task, typename Report>
void train(learner<float>& l, const Task& task, const settings& s, size_type steps,
           std::uint64_t task_sum, const Report& report) {
  if (l.optimiser.steps >= steps) return;
  std::signal(SIGINT, note_interrupt);
  std::cout << "Ctrl-C ends the training early; what it has learned by then is shown"
            << (s.checkpoint.empty() ? "" : " and kept") << ".\n\n"
            << std::flush;
  const size_type every = (std::max)(size_type{1}, (std::min)(size_type{200}, steps / 50));
  support::progress progress(int((steps - l.optimiser.steps + every - 1) / every));
  while (l.optimiser.steps < steps && !interrupted) {
    const size_type first = l.optimiser.steps, last = (std::min)(first + every, steps);
    double loss = 0;
    do {
      loss += l.learn(task.at(std::uint64_t(s.seed), l.optimiser.steps));
    } while (l.optimiser.steps < last && !interrupted);
    progress.step("step " + std::to_string(l.optimiser.steps) + ", " +
                  report(loss / double(l.optimiser.steps - first)));
    if (!s.checkpoint.empty()) save(l, task_sum, s.checkpoint);
  }
  std::signal(SIGINT, SIG_DFL);
  progress.clear();
  if (interrupted) std::cout << "Stopped after step " << l.optimiser.steps << ".\n";
  if (!s.checkpoint.empty())
    std::cout << "What it learned is in " << support::printable(s.checkpoint)
              << "; the same command" << (interrupted ? "" : " with larger --steps")
              << " goes on from there.\n\n";
}

/// What both tasks say of their model.
std::string describe(const model_size& size) {
  return "The model: " + std::to_string(size.layers) + " layers of " + std::to_string(size.heads) +
         " heads of " + std::to_string(size.head_dim) + ", nothing else; " +
         std::to_string(size.parameters()) + " weights.\n\n";
}

// ---- repeated segments

int learn_to_repeat(const settings& s) {
  repeated_segments task;
  model_size size;
  size_type steps = 1000;
  if (s.quick) task = {32, 32, 16}, size.heads = 2, steps = 700;
  if (s.steps > 0) steps = s.steps;
  size.vocabulary = task.vocabulary;
  std::ofstream page(s.quick ? "" : s.page, std::ios::binary);  // before the training: it may fail
  if (!s.quick && !page) throw std::runtime_error("cannot write '" + s.page + "'");

  const size_type half = task.length / 2;
  std::cout << "\nSequences of " << task.length << " tokens out of " << task.vocabulary
            << ": a random segment, and then the same again. Nothing predicts the first time:\n"
            << "its loss cannot fall below ln " << task.vocabulary << " = "
            << fixed(std::log(double(task.vocabulary)), 2)
            << ". Who knows only that the second time brings the same " << half
            << " tokens is at ln " << half << " = " << fixed(std::log(double(half)), 2) << ".\n"
            << describe(size);

  learner<float> l(size, std::uint64_t(s.seed));
  const batch unseen = task.halves(std::uint64_t(s.seed));
  std::vector<moment> moments{moment_of("before", 0, l.model, unseen)};
  const std::uint64_t sum = checksum(&s.seed, sizeof s.seed);
  resume(l, sum, s.checkpoint);
  const size_type from = l.optimiser.steps;
  two_losses now = losses_of(l.model, unseen);
  curve first{'.', "loss of the first time", {now.first}},
      second{'#', "loss of the second time", {now.second}};
  train(l, task, s, steps, sum, [&](double) {
    const double before = now.second, midway = std::log(double(half)) / 2;
    now = losses_of(l.model, unseen);
    if (before > midway && now.second <= midway && moments.size() == 1)
      moments.push_back(moment_of("midway", l.optimiser.steps, l.model, unseen));
    first.values.push_back(now.first), second.values.push_back(now.second);
    return "loss of the first time " + fixed(now.first, 2) + ", of the second " +
           fixed(now.second, 2);
  });
  moments.push_back(moment_of("after", l.optimiser.steps, l.model, unseen));
  plot(std::cout, {first, second}, long(from), long(l.optimiser.steps));

  std::cout << "\nOf its attention during the second time, what a head spends on the token before "
               "it and on the one that followed the first time:\n\n";
  support::table table({"head", "previous", "induction"});
  double best = 0;
  for (size_type i = 0; i < size.layers * size.heads; ++i) {
    const habit h = habit_of(l.model, i / size.heads, i % size.heads, unseen);
    best = (std::max)(best, h.induction);
    table.add(
        {"layer " + std::to_string(i / size.heads) + ", head " + std::to_string(i % size.heads),
         fixed(h.previous, 2), fixed(h.induction, 2)});
  }
  table.print(std::cout);
  predict(l.model, unseen);
  // Who cannot find the same token again spends about 1 / half on any, and is at ln half.
  const bool learned = best > 0.4 && now.second < std::log(double(half)) / 4;
  if (!learned) std::cout << "\nNo induction head has formed: it needs more --steps.\n";
  if (!s.quick) {
    page << page_of(moments, size, unseen);
    if (!page.flush()) throw std::runtime_error("cannot write '" + s.page + "'");
    std::cout << "\nThe attention of every head before, midway and after: open "
              << support::printable(s.page) << " in a browser.\n";
  }
  return learned || !s.quick ? 0 : 1;
}

// ---- a text

int learn_a_text(settings s) {
  const std::string path = s.alice ? HEED_EXAMPLES_DIR "/data/passage.txt" : s.text;
  const std::string text = support::read_file(path, std::size_t(64) << 20);
  const characters task(text, 64, s.quick ? 8 : 16);
  model_size size;
  size.vocabulary = task.vocabulary();
  size_type steps = s.quick ? 300 : 2000;
  if (s.steps > 0) steps = s.steps;
  if (s.checkpoint.empty() && !s.quick)
    s.checkpoint = path.substr(path.rfind('/') + 1) + ".checkpoint";

  const double bits = 1 / std::log(2.0), alone = task.entropy(0), after_one = task.entropy(1);
  std::cout << "\n"
            << task.tokens().size() << " characters of "
            << support::printable(path.substr(path.rfind('/') + 1)) << ", " << task.vocabulary()
            << " different ones. A character takes " << fixed(bits * alone, 2)
            << " bits when only the frequencies are known,\nand " << fixed(bits * after_one, 2)
            << " when the one before it is known too: what is below has learned to look back.\n"
            << describe(size);

  learner<float> l(size, std::uint64_t(s.seed));
  const std::uint64_t sum = checksum(text.data(), text.size(), checksum(&s.seed, sizeof s.seed));
  resume(l, sum, s.checkpoint);
  curve loss{'#', "bits a character", {}};
  const size_type from = l.optimiser.steps;
  train(l, task, s, steps, sum, [&](double mean) {
    loss.values.push_back(bits * mean);
    return fixed(bits * mean, 2) + " bits a character";
  });
  if (!loss.values.empty()) plot(std::cout, {loss}, long(from), long(l.optimiser.steps));

  std::mt19937_64 random(std::uint64_t(s.seed));
  const std::vector<int> written =
      write(l.model, {task.tokens()[0]}, s.quick ? 100 : s.write, 64, 0.7, random);
  std::cout << "\nIt writes:\n\n";
  for (const int token : written) {
    const std::string c = task.utf8(token);
    std::cout << (c == "\n" ? c : support::printable(c));
  }
  std::cout << "\n";
  const bool learned = !loss.values.empty() && loss.values.back() < bits * after_one / 3;
  return learned || !s.quick ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  support::command_line options(
      "12_training",
      "trains a small transformer: on random segments that repeat, until it has an induction head");
  options.option("--text", "FILE", "learn the characters of FILE instead, and write some text",
                 s.text);
  options.flag("--alice", "the same with a passage of Alice's Adventures in Wonderland", s.alice);
  options.option("--steps", "N", "how many batches to learn from (default: 1000; a text: 2000)",
                 s.steps);
  options.option("--checkpoint", "FILE",
                 "go on from FILE if it is there, and keep in it what is learned, also at Ctrl-C "
                 "(default of a text: its name and .checkpoint)",
                 s.checkpoint);
  options.option("--page", "FILE", "where the attention is drawn (default: training.html)", s.page);
  options.option("--write", "N", "characters to write after a text is learned (default: 600)",
                 s.write);
  options.option("--seed", "N", "of the first weights and of all that is random (default: 1)",
                 s.seed);
  options.flag("--quick", "a smaller model and fewer steps; no page; checks what was learned",
               s.quick);
  if (const auto status = options.parse(argc, argv)) return *status;
  try {
    return s.alice || !s.text.empty() ? learn_a_text(s) : learn_to_repeat(s);
  } catch (const std::exception& error) {
    std::cerr << "12_training: " << support::printable(error.what()) << "\n";
    return 1;
  }
}
