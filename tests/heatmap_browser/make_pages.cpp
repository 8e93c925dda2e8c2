// Writes the pages that test_pages.py looks at, into the folder that is its argument.

#include <heed/heatmap.hpp>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

namespace {

using matrix = heed::rows<float>;
using heed::size_type;

bool write(const std::string& file, const std::string& page) {
  std::ofstream out(file, std::ios::binary);
  out << page;
  return static_cast<bool>(out.flush());
}

/// Two layers of three heads: one looks at itself, one at the token before, one at all so far. One
/// cell is no weight; two labels attack.
std::string heads_page() {
  const std::vector<std::string> tokens = {"Alice",
                                           "was",
                                           "beginning",
                                           "to",
                                           "get",
                                           "</script><script>window.hacked = 1</script>",
                                           "<img src=x onerror=\"window.hacked = 1\">",
                                           "of",
                                           "sitting",
                                           "by",
                                           "h\xC3\xA9r",
                                           "line\nend"};
  const size_type n = static_cast<size_type>(tokens.size());
  heed::heatmap_options options;
  options.title = "Six heads <b>of</b> twelve tokens";
  options.note = "Layer 1 has a cell that is no weight.";
  heed::heatmap_page page(tokens, tokens, options);
  for (size_type layer = 0; layer < 2; ++layer) {
    matrix self = 0.75f * matrix::Identity(n, n), previous = matrix::Zero(n, n),
           all = matrix::Zero(n, n);
    self.col(0).array() += 0.25f;
    for (size_type i = 0; i < n; ++i) {
      previous(i, i > 0 ? i - 1 : 0) = 1;
      for (size_type j = 0; j <= i; ++j) all(i, j) = 1 / float(i + 1);
    }
    if (layer == 1) self(5, 7) = std::numeric_limits<float>::quiet_NaN();
    page.add(self, layer, 0);
    page.add(previous, layer, 1);
    page.add(all, layer, 2);
  }
  return page.html();
}

/// A prompt of 2,000 tokens: row i looks at itself, at the token half way back, and a little at
/// everything before.
std::string long_page(size_type keep_per_row) {
  const size_type n = 2000;
  std::vector<std::string> tokens;
  for (size_type i = 0; i < n; ++i) tokens.push_back("token" + std::to_string(i));
  matrix weights = matrix::Zero(n, n);
  for (size_type i = 0; i < n; ++i) {
    for (size_type j = 0; j < i; ++j) weights(i, j) = 0.1f / float(n);
    weights(i, i) += 0.3f;
    weights(i, i / 2) += 0.6f;
  }
  heed::heatmap_options options;
  options.title = "2,000 tokens";
  options.keep_per_row = keep_per_row;
  return heed::heatmap_html(weights, tokens, tokens, options);
}

/// A model of three layers of four heads at a prompt of 2,000 tokens: head h of layer l looks, with
/// 0.5, (l + 1) (h + 1) tokens back, with 0.25 at the first token, and a little at every token so
/// far.
std::string model_page() {
  const size_type n = 2000;
  std::vector<std::string> tokens;
  for (size_type i = 0; i < n; ++i) tokens.push_back(" w" + std::to_string(i));
  heed::heatmap_options options;
  options.title = "Twelve heads, 2,000 tokens";
  options.row_name = options.col_name = "token";
  options.keep_per_row = 16;
  heed::heatmap_page page(tokens, tokens, options);
  for (size_type layer = 0; layer < 3; ++layer) {
    for (size_type head = 0; head < 4; ++head) {
      matrix weights = matrix::Zero(n, n);
      for (size_type i = 0; i < n; ++i) {
        weights.row(i).head(i + 1).setConstant(0.25f / float(i + 1));
        weights(i, 0) += 0.25f;
        weights(i, (std::max)(size_type(0), i - (layer + 1) * (head + 1))) += 0.5f;
      }
      page.add(weights, layer, head);
    }
  }
  return page.html();
}

/// Labels that cannot be seen, would turn the writing around, or are no text.
std::string odd_page() {
  const std::vector<std::string> tokens = {"\xF0\x9F",  // the first half of an emoji
                                           "\x90\x87",  // its second half
                                           "\xE2\x80\xAE"
                                           "abc",  // right to left from here
                                           "\n",
                                           "\t",
                                           "",
                                           "  ",
                                           "\x1B[2J",
                                           "\"'&amp;\\",
                                           "\xF0\x9F\x90\x87"};
  return heed::heatmap_html(matrix(matrix::Identity(10, 10)), tokens, tokens);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: make_pages FOLDER\n";
    return 1;
  }
  const std::string folder = argv[1];
  const matrix tall = matrix::Constant(3, 40, 0.025f);  // three queries over a cache of forty keys
  std::vector<std::string> keys;
  for (int i = 0; i < 40; ++i) keys.push_back(" k" + std::to_string(i));
  const bool written =
      write(folder + "/heads.html", heads_page()) && write(folder + "/long.html", long_page(0)) &&
      write(folder + "/kept.html", long_page(16)) && write(folder + "/model.html", model_page()) &&
      write(folder + "/odd.html", odd_page()) &&
      write(folder + "/cache.html", heed::heatmap_html(tall, {"a", "b", "c"}, keys)) &&
      write(folder + "/empty.html", heed::heatmap_html(matrix(0, 0), {}, {}));
  if (!written) std::cerr << "make_pages: cannot write to " << folder << "\n";
  return written ? 0 : 1;
}
