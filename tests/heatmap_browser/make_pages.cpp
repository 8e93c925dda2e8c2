// Writes the pages that test_pages.py looks at, into the folder that is its argument.

#include <heed/heatmap.hpp>

#include <fstream>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

namespace {

using matrix = heed::rows<float>;
using heed::index;

bool write(const std::string& file, const std::string& page) {
  std::ofstream out(file, std::ios::binary);
  out << page;
  return static_cast<bool>(out.flush());
}

/// Two layers of three heads: one looks at itself, one at the token before, one at all so far. One cell is no weight; two labels
/// attack.
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
  const index n = static_cast<index>(tokens.size());
  heed::heatmap_options options;
  options.title = "Six heads <b>of</b> twelve tokens";
  options.note = "Layer 1 has a cell that is no weight.";
  heed::heatmap_page page(tokens, tokens, options);
  for (index layer = 0; layer < 2; ++layer) {
    matrix self = 0.75f * matrix::Identity(n, n), previous = matrix::Zero(n, n), all = matrix::Zero(n, n);
    self.col(0).array() += 0.25f;
    for (index i = 0; i < n; ++i) {
      previous(i, i > 0 ? i - 1 : 0) = 1;
      for (index j = 0; j <= i; ++j) all(i, j) = 1 / float(i + 1);
    }
    if (layer == 1) self(5, 7) = std::numeric_limits<float>::quiet_NaN();
    page.add(self, layer, 0);
    page.add(previous, layer, 1);
    page.add(all, layer, 2);
  }
  return page.html();
}

/// A prompt of 2,000 tokens: row i looks at itself, at the token half way back, and a little at everything before.
std::string long_page(index keep_per_row) {
  const index n = 2000;
  std::vector<std::string> tokens;
  for (index i = 0; i < n; ++i) tokens.push_back("token" + std::to_string(i));
  matrix weights = matrix::Zero(n, n);
  for (index i = 0; i < n; ++i) {
    for (index j = 0; j < i; ++j) weights(i, j) = 0.1f / float(n);
    weights(i, i) += 0.3f;
    weights(i, i / 2) += 0.6f;
  }
  heed::heatmap_options options;
  options.title = "2,000 tokens";
  options.keep_per_row = keep_per_row;
  return heed::heatmap_html(weights, tokens, tokens, options);
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
  const bool written = write(folder + "/heads.html", heads_page()) && write(folder + "/long.html", long_page(0)) &&
                       write(folder + "/kept.html", long_page(16)) &&
                       write(folder + "/cache.html", heed::heatmap_html(tall, {"a", "b", "c"}, keys)) &&
                       write(folder + "/empty.html", heed::heatmap_html(matrix(0, 0), {}, {}));
  if (!written) std::cerr << "make_pages: cannot write to " << folder << "\n";
  return written ? 0 : 1;
}
