#pragma once

#include "gguf.hpp"
#include "unicode_ranges.hpp"

#include <heed/detail/utf8.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <iterator>
#include <queue>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace smollm2 {

/// A token's number in the vocabulary.
using token = int;

/// A byte-level BPE tokenizer with the `smollm` pre-tokenizer (Sennrich, Haddow and Birch 2016; the
/// byte alphabet is GPT-2's).
///
/// Text is bytes. Special tokens are found first; the text between them is cut into pre-tokens, and
/// each of these is merged from single bytes up, the merge that training found first before all
/// others.
class tokenizer {
 public:
  /// Throws std::runtime_error where the file holds another kind of tokenizer.
  explicit tokenizer(const gguf_file& file)
      : tokens_(file.get<std::vector<std::string>>("tokenizer.ggml.tokens")) {
    const std::string model = file.get<std::string>("tokenizer.ggml.model"),
                      pre = file.get<std::string>("tokenizer.ggml.pre");
    if (model != "gpt2" || pre != "smollm")
      file.fail("has a tokenizer '" + model + "' with pre-tokenizer '" + pre +
                "'; supported is 'gpt2' with 'smollm'");
    make_alphabet();
    for (std::size_t i = 0; i < tokens_.size(); ++i) ids_.emplace(tokens_[i], token(i));

    const auto& types = file.get<std::vector<std::int64_t>>("tokenizer.ggml.token_type");
    if (types.size() != tokens_.size())
      file.fail("has " + std::to_string(types.size()) + " token types for " +
                std::to_string(tokens_.size()) + " tokens");
    is_special_.resize(tokens_.size());
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      constexpr std::int64_t control = 3;
      is_special_[i] = types[i] == control;
      if (is_special_[i] && !tokens_[i].empty()) specials_.push_back(token(i));
    }
    // The longest first, so that the first one that fits is the longest.
    std::stable_sort(specials_.begin(), specials_.end(),
                     [&](token a, token b) { return spelling(a).size() > spelling(b).size(); });

    const auto& merges = file.get<std::vector<std::string>>("tokenizer.ggml.merges");
    for (std::size_t rank = 0; rank < merges.size(); ++rank) ranks_.emplace(merges[rank], rank);

    const std::int64_t end = file.get<std::int64_t>("tokenizer.ggml.eos_token_id");
    if (end < 0 || std::size_t(end) >= tokens_.size())
      file.fail("names " + std::to_string(end) + " as its last token, which does not exist");
    end_ = token(end);
  }

  std::size_t size() const { return tokens_.size(); }
  /// The token that ends an answer.
  token end() const { return end_; }

  /// The tokens of a text. With parse_special the names of special tokens in it (`<|im_end|>`)
  /// become those tokens; without, which is right for what a user typed, they are text like any
  /// other.
  std::vector<token> encode(const std::string& text, bool parse_special = true) const {
    std::vector<token> out;
    std::size_t begin = 0;
    for (std::size_t at = 0; at < text.size() && parse_special;) {
      const auto found = std::find_if(specials_.begin(), specials_.end(), [&](token t) {
        return text.compare(at, spelling(t).size(), spelling(t)) == 0;
      });
      if (found == specials_.end()) {
        ++at;
        continue;
      }
      encode_plain(text.substr(begin, at - begin), out);
      out.push_back(*found);
      begin = at += spelling(*found).size();
    }
    encode_plain(text.substr(begin), out);
    return out;
  }

  /// The bytes of a token. A character may be spread over several tokens: join them before they are
  /// taken for UTF-8.
  std::string decode(token t) const {
    const std::string& text = tokens_.at(std::size_t(t));
    if (is_special_[std::size_t(t)]) return text;
    std::string bytes;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t from = at;
      const auto byte = bytes_.find(heed::detail::next_code_point(text, at));
      if (byte != bytes_.end()) {
        bytes.push_back(byte->second);
      } else {
        bytes += text.substr(from, at - from);
      }
    }
    return bytes;
  }
  std::string decode(const std::vector<token>& tokens) const {
    std::string bytes;
    for (const token t : tokens) bytes += decode(t);
    return bytes;
  }

  /// The pieces of a text without special tokens that are merged each on its own.
  static std::vector<std::string> pre_tokens(const std::string& text) {
    std::vector<std::string> out;
    std::size_t begin = 0;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t from = at;
      if (!is_one_of(numbers, heed::detail::next_code_point(text, at))) continue;
      split_piece(text.substr(begin, from - begin), out);
      out.push_back(text.substr(from, at - from));  // each digit alone
      begin = at;
    }
    split_piece(text.substr(begin), out);
    return out;
  }

 private:
  const std::string& spelling(token t) const { return tokens_[std::size_t(t)]; }

  /// GPT-2's alphabet: a printable character for each byte. 188 bytes stand for themselves, the
  /// others for U+0100 and on.
  void make_alphabet() {
    char32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      const char32_t letter = printable ? char32_t(byte) : next++;
      heed::detail::append_utf8(letters_[byte], letter);
      bytes_.emplace(letter, static_cast<char>(static_cast<unsigned char>(byte)));
    }
  }

  template <std::size_t Count>
  static bool is_one_of(const code_point_range (&ranges)[Count], char32_t c) {
    const auto after =
        std::upper_bound(std::begin(ranges), std::end(ranges), c,
                         [](char32_t x, const code_point_range& r) { return x < r.first; });
    return after != std::begin(ranges) && c <= std::prev(after)->last;
  }
  static bool is_space(char32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
  }

  /// Cuts a piece that has no number in it as this pattern does, the first alternative that fits
  /// first:
  ///   's|'t|'re|'ve|'m|'ll|'d | ?\p{L}+ | ?[^\s\p{L}\p{N}]+ | \s+(?!\S) | \s+
  static void split_piece(const std::string& piece, std::vector<std::string>& out) {
    enum class kind { letter, space, other };
    std::vector<kind> kinds;
    std::vector<std::size_t> starts;  // of each character, and the end
    for (std::size_t at = 0; at < piece.size();) {
      starts.push_back(at);
      const char32_t c = heed::detail::next_code_point(piece, at);
      kinds.push_back(is_one_of(letters, c) ? kind::letter
                      : is_space(c)         ? kind::space
                                            : kind::other);
    }
    starts.push_back(piece.size());
    const std::size_t n = kinds.size();
    const auto run_end = [&](std::size_t i) {
      const kind k = kinds[i];
      while (i < n && kinds[i] == k) ++i;
      return i;
    };
    const auto contraction = [&](std::size_t at) -> std::size_t {
      for (const char* const ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
        if (piece.compare(at, std::char_traits<char>::length(ending), ending) == 0)
          return std::char_traits<char>::length(ending);
      return 0;
    };
    for (std::size_t i = 0; i < n;) {
      std::size_t end = i + contraction(starts[i]);  // of ASCII, so characters are bytes
      const bool leading_space =
          piece[starts[i]] == ' ' && i + 1 < n && kinds[i + 1] != kind::space;
      if (end == i && (leading_space || kinds[i] != kind::space)) end = run_end(i + leading_space);
      if (end == i) {
        end = run_end(i);
        if (end < n && end > i + 1) --end;  // the last space belongs to what follows
      }
      out.push_back(piece.substr(starts[i], starts[end] - starts[i]));
      i = end;
    }
  }

  void encode_plain(const std::string& text, std::vector<token>& out) const {
    for (const std::string& piece : pre_tokens(text)) merge(piece, out);
  }

  /// Merges the bytes of a pre-token: always the pair of the lowest rank, of equals the leftmost. A
  /// queue of candidates keeps this O(n log n); those that an earlier merge has overtaken are
  /// recognised by their spelling and passed over.
  void merge(const std::string& piece, std::vector<token>& out) const {
    struct symbol {
      std::string text;  // empty once merged into its left neighbour
      std::size_t before, after;
    };
    const std::size_t n = piece.size(), none = n;
    std::vector<symbol> symbols(n);
    for (std::size_t i = 0; i < n; ++i)
      symbols[i] = {letters_[static_cast<unsigned char>(piece[i])], i == 0 ? none : i - 1, i + 1};

    using candidate = std::tuple<std::size_t, std::size_t,
                                 std::string>;  // rank, left symbol, the pair as `merges` spells it
    std::priority_queue<candidate, std::vector<candidate>, std::greater<candidate>> queue;
    const auto pair_at = [&](std::size_t i) {
      return symbols[i].text + " " + symbols[symbols[i].after].text;
    };
    const auto propose = [&](std::size_t i) {
      if (i == none || symbols[i].after == none) return;
      const auto rank = ranks_.find(pair_at(i));
      if (rank != ranks_.end()) queue.emplace(rank->second, i, rank->first);
    };
    for (std::size_t i = 0; i < n; ++i) propose(i);
    while (!queue.empty()) {
      const auto [rank, i, pair] = queue.top();
      queue.pop();
      if (symbols[i].text.empty() || symbols[i].after == none || pair_at(i) != pair) continue;
      symbol& right = symbols[symbols[i].after];
      symbols[i].text += right.text;
      right.text.clear();
      symbols[i].after = right.after;
      if (right.after != none) symbols[right.after].before = i;
      propose(symbols[i].before);
      propose(i);
    }
    for (std::size_t i = 0; i < n; i = symbols[i].after) append(symbols[i].text, out);
  }
  /// A symbol that is no token falls back to its bytes, and a byte that is no token is dropped.
  void append(const std::string& symbol, std::vector<token>& out) const {
    const auto whole = ids_.find(symbol);
    if (whole != ids_.end()) return out.push_back(whole->second);
    for (std::size_t at = 0; at < symbol.size();) {
      const std::size_t from = at;
      heed::detail::next_code_point(symbol, at);
      const auto byte = ids_.find(symbol.substr(from, at - from));
      if (byte != ids_.end()) out.push_back(byte->second);
    }
  }

  std::vector<std::string> tokens_;
  std::vector<bool> is_special_;
  std::vector<token> specials_;
  token end_ = 0;
  std::array<std::string, 256> letters_;      // by byte
  std::unordered_map<char32_t, char> bytes_;  // by letter
  std::unordered_map<std::string, token> ids_;
  std::unordered_map<std::string, std::size_t> ranks_;  // by "left right"
};

}  // namespace smollm2
