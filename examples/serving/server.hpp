#pragma once

#include "../smollm2/decoder.hpp"
#include "../smollm2/language_model.hpp"
#include "../smollm2/sampler.hpp"
#include "../smollm2/tokenizer.hpp"

#include <heed/paged_kv_cache.hpp>
#include <heed/types.hpp>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace serving {

using heed::size_type;
using smollm2::token;

/// A prompt on its way through the server.
struct request {
  enum class state { waiting, reading, writing, finished };

  std::vector<token> prompt;
  size_type longest = 0;  // tokens of the answer
  state now = state::waiting;
  size_type sequence = -1;    // its name in the caches
  size_type read = 0;         // tokens of the prompt
  std::vector<token> answer;  // without the end
  std::string picture;        // a character a step since it came
};

/// What a server has, and how it divides its time.
struct limits {
  size_type pages = 48, page_rows = 8;  // of each layer's cache
  size_type chunk = 32;                 // tokens of a prompt that a step reads
};

/// Answers prompts that all begin with the same tokens. In each step one prompt has a chunk read
/// and every sequence that writes gets a token, all in one call a layer. The pages of the common
/// beginning are shared. A request waits until the pages that it may need are free.
class server {
 public:
  server(const smollm2::language_model& m, const std::vector<token>& beginning, const limits& l,
         int threads)
      : end_(m.words.end()),
        limits_(l),
        shared_tokens_(size_type(beginning.size())),
        shared_pages_(pages_for(shared_tokens_)),
        promised_(shared_pages_),
        decoder_(m.layers, threads) {
    const smollm2::model_config& c = m.layers.config();
    for (size_type i = 0; i < c.layers; ++i)
      caches_.emplace_back(l.pages, l.page_rows, c.kv_heads, c.head_dim, c.head_dim);
    beginning_ = add_sequence();
    decoder_.read({{beginning_, beginning, false}}, caches_);
  }

  /// The prompt begins with the tokens that all have in common, and goes on. Throws
  /// std::invalid_argument for one that the pages have no room for.
  void submit(std::vector<token> prompt, size_type longest) {
    request r;
    r.prompt = std::move(prompt), r.longest = longest;
    if (const size_type all = pages_of(r) + shared_pages_; all > limits_.pages)
      throw std::invalid_argument("a prompt of " + std::to_string(r.prompt.size()) +
                                  " tokens and its answer need " + std::to_string(all) +
                                  " pages, but there are " + std::to_string(limits_.pages));
    requests_.push_back(std::move(r));
  }
  const std::vector<request>& requests() const { return requests_; }
  bool idle() const {
    return std::all_of(requests_.begin(), requests_.end(),
                       [](const request& r) { return r.now == request::state::finished; });
  }
  size_type pages_in_use() const { return limits_.pages - caches_[0].free_pages(); }

  /// One step of every sequence that has its pages.
  void step() {
    using state = request::state;
    std::vector<smollm2::next_tokens> batch;
    std::vector<request*> asking;
    const auto take = [&](request& r, smollm2::next_tokens next, char seen) {
      if (next.asks) asking.push_back(&r);
      batch.push_back(std::move(next));
      r.picture.back() = seen;
    };
    bool full = false, reads = false;
    for (request& r : requests_) {
      if (r.now == state::finished) continue;
      r.picture += '.';
      if (r.now == state::waiting && !full) full = !admit(r);  // who came first goes first
      if (r.now == state::reading && !reads) {
        reads = true;
        take(r, next_chunk(r), 'r');
      } else if (r.now == state::writing) {
        take(r, {r.sequence, {r.answer.back()}}, 'w');
      }
    }
    if (batch.empty()) return;
    const smollm2::matrix& logits = decoder_.read(batch, caches_);
    for (std::size_t i = 0; i < asking.size(); ++i)
      write(*asking[i], likeliest_.choose(logits.row(size_type(i)).transpose()));
  }

 private:
  using cache = heed::paged_kv_cache<Eigen::bfloat16>;

  size_type pages_for(size_type tokens) const {
    return (tokens + limits_.page_rows - 1) / limits_.page_rows;
  }
  /// Pages of its own that a request may need: all but the whole ones of the common beginning.
  size_type pages_of(const request& r) const {
    return pages_for(size_type(r.prompt.size()) + r.longest) - shared_tokens_ / limits_.page_rows;
  }
  /// Sequences have the same name in every layer.
  size_type add_sequence() {
    size_type name = 0;
    for (cache& layer : caches_) name = layer.add_sequence();
    return name;
  }

  /// Lets a request begin, if its pages are free.
  bool admit(request& r) {
    if (promised_ + pages_of(r) > limits_.pages) return false;
    promised_ += pages_of(r);
    for (cache& layer : caches_) r.sequence = layer.fork(beginning_);
    r.read = shared_tokens_;
    r.now = request::state::reading;
    return true;
  }
  smollm2::next_tokens next_chunk(request& r) const {
    const auto from = r.prompt.begin() + r.read;
    r.read = (std::min)(r.read + limits_.chunk, size_type(r.prompt.size()));
    const bool whole = r.read == size_type(r.prompt.size());
    if (whole) r.now = request::state::writing;
    return {r.sequence, {from, r.prompt.begin() + r.read}, whole};
  }
  void write(request& r, token next) {
    if (next != end_) r.answer.push_back(next);
    if (next != end_ && size_type(r.answer.size()) < r.longest) return;
    for (cache& layer : caches_) layer.remove_sequence(r.sequence);
    promised_ -= pages_of(r);
    r.now = request::state::finished;
  }

  token end_;
  limits limits_;
  size_type shared_tokens_, shared_pages_;  // of the common beginning
  size_type promised_;                      // pages
  smollm2::decoder decoder_;
  std::vector<cache> caches_;  // a layer each
  size_type beginning_;        // the sequence that all others are forks of
  std::vector<request> requests_;
  smollm2::sampler likeliest_{0, 1, 1};
};

}  // namespace serving
