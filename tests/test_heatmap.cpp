#include <heed/heatmap.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <locale>
#include <string>
#include <utility>
#include <vector>

namespace {

using matrix = heed::rows<float>;
using labels = std::vector<std::string>;

labels numbered(heed::size_type count) {
  labels result;
  for (heed::size_type i = 0; i < count; ++i) result.push_back("t" + std::to_string(i));
  return result;
}

std::string between(const std::string& text, const std::string& before, const std::string& after) {
  const std::size_t start = text.find(before);
  REQUIRE(start != std::string::npos);
  const std::size_t from = start + before.size(), to = text.find(after, from);
  REQUIRE(to != std::string::npos);
  return text.substr(from, to - from);
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + part.size()))
    ++count;
  return count;
}

std::string data_of(const std::string& page) { return between(page, "id=\"data\">", "</script>"); }

/// What stands between `"name":"` and the quote, read by the definition of base64 (RFC 4648).
std::vector<unsigned> bytes_of(const std::string& page, const std::string& name) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<unsigned> bytes;
  unsigned bits = 0, held = 0;
  for (const char c : between(page, "\"" + name + "\":\"", "\"")) {
    if (c == '=') break;
    bits = (bits << 6 | static_cast<unsigned>(digits.find(c))) & 0xFFFFFFu;
    held += 6;
    if (held >= 8) bytes.push_back((bits >> (held -= 8)) & 0xFFu);
  }
  return bytes;
}

/// The codes of the first map of a page, row by row, 0 where none is kept: numbers in LEB128, for
/// each row how many it keeps, then the step to the column and the code of each.
std::vector<unsigned> codes_of(const std::string& page, heed::size_type n_q, heed::size_type n_kv) {
  const std::vector<unsigned> bytes = bytes_of(page, "data");
  std::size_t at = 0;
  const auto next = [&] {
    unsigned number = 0;
    for (unsigned shift = 0;; shift += 7) {
      REQUIRE(at < bytes.size());
      number |= (bytes[at] & 127u) << shift;
      if (!(bytes[at++] & 128u)) return number;
    }
  };
  std::vector<unsigned> codes(std::size_t(n_q * n_kv));
  for (heed::size_type r = 0; r < n_q; ++r) {
    heed::size_type column = 0;
    for (unsigned left = next(); left > 0; --left) {
      column += next();
      REQUIRE(column < n_kv);
      codes[std::size_t(r * n_kv + column)] = next();
    }
  }
  CHECK(at == bytes.size());
  return codes;
}

}  // namespace

TEST_CASE("A page holds every weight to the resolution it promises") {
  const heed::size_type n_q = GENERATE(1, 2, 3, 7), n_kv = GENERATE(1, 4, 5);
  matrix weights(n_q, n_kv);
  for (heed::size_type i = 0; i < weights.size(); ++i)
    weights.data()[i] = float(1 + (7919 * i) % 101) / 131.0f;
  const double max = double(weights.maxCoeff());

  const std::string page = heed::heatmap_html(weights, numbered(n_q), numbered(n_kv));
  const std::vector<unsigned> codes = codes_of(page, n_q, n_kv);
  for (std::size_t i = 0; i < codes.size(); ++i)
    CHECK(std::abs(codes[i] * max / 65534 - double(weights.data()[i])) <=
          max / 131068 * (1 + 1e-9));
  CHECK(std::stod(between(page, "\"max\":", ",")) == Approx(max).epsilon(1e-8));
}

TEST_CASE("What is no weight is marked, and does not disturb the others") {
  const float inf = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  matrix weights(2, 4);
  weights << nan, inf, -0.5f, -inf, 0.25f, 0.5f, 0, 0.25f;
  const std::string page = heed::heatmap_html(weights, numbered(2), numbered(4));
  CHECK(codes_of(page, 2, 4) ==
        std::vector<unsigned>{65535, 65535, 65535, 65535, 32767, 65534, 0, 32767});
  CHECK(between(page, "\"max\":", ",") == "0.5");
  // Entropy is that of the whole row alone: 1/4, 1/2, 0, 1/4.
  CHECK(std::stod(between(page, "\"entropy\":", ",")) == Approx(1.5 * std::log(2.0)).epsilon(1e-8));

  const std::string svg = heed::heatmap_svg(weights, numbered(2), numbered(4));
  CHECK(count_of(svg, "not a weight</title>") == 4);
  CHECK(count_of(svg, "class=\"w\"") == 3);
  CHECK(svg.find("t1 → t1: 0.5</title>") != std::string::npos);
}

TEST_CASE("The entropy of weights that do not sum to 1 is that of their shares") {
  const double size = GENERATE(1e-320, 1e-3, 1.0, 40.0, 1e300);
  heed::rows<double> weights(3, 40);
  weights.row(0).setConstant(size);  // ln 40
  weights.row(1).setZero();          // a row of nothing has none
  weights.row(2).setZero();
  weights(2, 3) = size, weights(2, 9) = 3 * size;  // that of 1/4 and 3/4
  const std::string page = heed::heatmap_html(weights, numbered(3), numbered(40));
  const double two = -(0.25 * std::log(0.25) + 0.75 * std::log(0.75));
  CAPTURE(size);
  CHECK(std::stod(between(page, "\"entropy\":", ",")) ==
        Approx((std::log(40.0) + two) / 2).epsilon(1e-3 * (size < 1e-300) + 1e-8));
}

TEST_CASE("A page of one map refuses by the name of the call") {
  heed::heatmap_options options;
  options.keep_per_row = -1;
  const auto refuse = [](const auto& call, const std::string& words) {
    CHECK_THROWS_WITH(call(), ContainsSubstring(words));
  };
  refuse([&] { heed::heatmap_html(matrix::Zero(1, 1), {"a"}, {"b"}, options); },
         "heed::heatmap_html: keep_per_row must be 0 or more, but is -1");
  refuse([&] { heed::heatmap_html(matrix::Zero(1, 65536), {"a"}, labels(65536)); },
         "heed::heatmap_html: 65536 labels");
  const Eigen::Map<const matrix> nowhere(nullptr, 1, 1);
  refuse([&] { heed::heatmap_html(nowhere, {"a"}, {"b"}); },
         "heed::heatmap_html: weights: a null pointer");
  refuse([&] { heed::heatmap_svg(nowhere, {"a"}, {"b"}); },
         "heed::heatmap_svg: weights: a null pointer");
}

TEST_CASE("Weights so large that sums of them are no number leave the page's data whole") {
  const double most = std::numeric_limits<double>::max();
  for (const double w : {1e307, most}) {
    const heed::rows<double> weights = heed::rows<double>::Constant(2, 40, w);
    const std::string page = heed::heatmap_html(weights, numbered(2), numbered(40));
    CHECK(codes_of(page, 2, 40) == std::vector<unsigned>(80, 65534));
    CHECK(std::stod(between(page, "\"entropy\":", ",")) == Approx(std::log(40.0)).epsilon(1e-8));
    CHECK(std::stod(between(page, "\"max\":", ",")) == Approx(w).epsilon(1e-8));
    const std::string svg = heed::heatmap_svg(weights, numbered(2), numbered(40));
    CHECK(count_of(svg, "fill-opacity=\"1\"") == 80);
    CHECK(count_of(svg, "inf") == 0);
    CHECK(count_of(svg, "nan") == 0);
  }
}

TEST_CASE(
    "Rows longer than keep_per_row keep their largest weights and every cell that is no weight") {
  matrix weights(2, 5);
  weights << 0.1f, 0.5f, 0, 0.4f, 0, 0, 0, std::numeric_limits<float>::quiet_NaN(), 0, 1;
  heed::heatmap_options options;
  options.keep_per_row = 2;
  const std::string page = heed::heatmap_html(weights, numbered(2), numbered(5), options);
  CHECK(between(page, "\"kept\":", ",") == "2");
  CHECK(codes_of(page, 2, 5) ==
        std::vector<unsigned>{0, 32767, 0, 26214, 0, 0, 0, 65535, 0, 65534});
  for (const heed::size_type enough : {heed::size_type(5), heed::size_type(0)}) {
    options.keep_per_row = enough;
    const std::string all = heed::heatmap_html(weights, numbered(2), numbered(5), options);
    CHECK(between(all, "\"kept\":", ",") == "0");
    CHECK(codes_of(all, 2, 5) ==
          std::vector<unsigned>{6553, 32767, 0, 26214, 0, 0, 0, 65535, 0, 65534});
    CHECK(bytes_of(all, "rest").empty());
  }
}

TEST_CASE(
    "What a shortened row leaves out is bounded, block by block, and no bound is wider than a byte "
    "makes it") {
  const heed::size_type n_q = 130, n_kv = 200, block = 4,
                        across = 50;  // 64 blocks of 4 cells hold 200
  matrix weights(n_q, n_kv);
  for (heed::size_type i = 0; i < weights.size(); ++i)
    weights.data()[i] = float((7919 * i * i + 13 * i) % 1009) / 1009.0f;
  heed::heatmap_options options;
  options.keep_per_row = 7;
  const std::string page = heed::heatmap_html(weights, numbered(n_q), numbered(n_kv), options);
  CHECK(between(page, "\"block\":", "}") == "4");
  const std::vector<unsigned> codes = codes_of(page, n_q, n_kv), rest = bytes_of(page, "rest");
  REQUIRE(rest.size() == 33 * 50);
  const double max = double(weights.maxCoeff()), resolution = 0.5 / 65534;
  std::vector<double> largest(rest.size());  // left out, as a share of the map's largest weight
  for (heed::size_type r = 0; r < n_q; ++r) {
    double least_kept = 1, most_left = 0;
    for (heed::size_type c = 0; c < n_kv; ++c) {
      const double share = double(weights(r, c)) / max;
      if (codes[std::size_t(r * n_kv + c)] > 0) {
        least_kept = (std::min)(least_kept, share);
        continue;
      }
      most_left = (std::max)(most_left, share);
      double& of_block = largest[std::size_t(r / block * across + c / block)];
      of_block = (std::max)(of_block, share);
    }
    CHECK(least_kept >= most_left - 2 * resolution);
  }
  for (std::size_t b = 0; b < rest.size(); ++b) {
    const double root = rest[b] / 255.0;
    CHECK(root * root >= largest[b] - resolution);
    CHECK(root - std::sqrt(largest[b] + resolution) < 1.0 / 255);
  }
}

TEST_CASE("A map says how far from the diagonal it has anything") {
  const auto band = [](const matrix& weights) {
    return between(heed::heatmap_html(weights, numbered(weights.rows()), numbered(weights.cols())),
                   "\"band\":[", "]");
  };
  const matrix causal = matrix::NullaryExpr(
      4, 6, [](heed::size_type i, heed::size_type j) { return j <= i + 2 ? 0.25f : 0.0f; });
  CHECK(band(causal) == "-3,2");  // the last row looks at the first column; each row at most two
                                  // columns past its own number
  const matrix window = matrix::NullaryExpr(9, 9, [](heed::size_type i, heed::size_type j) {
    return j <= i && j >= i - 1 ? 0.5f : 0.0f;
  });
  CHECK(band(window) == "-1,0");
  CHECK(band(matrix::Ones(2, 3)) == "-1,2");
  CHECK(band(matrix::Zero(2, 3)) == "0,-1");
  matrix far = matrix::Zero(3, 3);
  far(0, 2) = 1e-30f;  // not 0, however small
  CHECK(band(far) == "2,2");
  far(2, 0) = std::numeric_limits<float>::quiet_NaN();
  CHECK(band(far) == "-2,2");
}

TEST_CASE("Labels cannot leave the place they are written in") {
  const std::string attack = "</script><script>alert(1)</script>\"'&\\\n\t\x01\xE2\x80\xA8\x1b[2J";
  const std::string plain = heed::heatmap_html(matrix::Ones(1, 1), {"a"}, {"a"});
  heed::heatmap_options options;
  options.title = options.note = options.row_name = options.col_name = attack;
  const std::string page = heed::heatmap_html(matrix::Ones(1, 1), {attack}, {attack}, options);

  // Not one tag more than on a harmless page, and no raw control or line separator in the data.
  for (const char* tag : {"<script", "</script", "<"})
    CHECK(count_of(page, tag) == count_of(plain, tag));
  const std::string data = data_of(page);
  CHECK(data.find("\\u003c/script\\u003e\\u003cscript\\u003ealert(1)") != std::string::npos);
  CHECK(data.find("\\u0022'\\u0026\\u005c\\u000a\\u0009\\u0001\\u2028\\u001b[2J") !=
        std::string::npos);
  CHECK(data.find("\xE2\x80\xA8") == std::string::npos);
  CHECK(page.find("<title>&lt;/script&gt;&lt;script&gt;alert(1)&lt;/"
                  "script&gt;&quot;&#39;&amp;\\\n\t\xEF\xBF\xBD") != std::string::npos);

  const std::string plain_svg = heed::heatmap_svg(matrix::Ones(1, 1), {"a"}, {"a"});
  const std::string svg = heed::heatmap_svg(matrix::Ones(1, 1), {attack}, {attack}, options);
  CHECK(count_of(svg, "<") == count_of(plain_svg, "<"));
  CHECK(count_of(svg, "\"") == count_of(plain_svg, "\""));
  for (const char c : svg) CHECK((static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t'));
}

TEST_CASE("Bytes that are not UTF-8 become U+FFFD, and UTF-8 stays as it is") {
  const std::string bad = "\xEF\xBF\xBD";
  const auto shown = [](const std::string& label) {
    return between(heed::heatmap_html(matrix::Ones(1, 1), {label}, {"x"}), "\"rows\":[\"", "\"]");
  };
  CHECK(shown("na\xC3\xAFve \xE2\x80\x9C\xE6\xB0\xB4\xF0\x9F\x90\x87") ==
        "na\xC3\xAFve \xE2\x80\x9C\xE6\xB0\xB4\xF0\x9F\x90\x87");
  CHECK(shown("\xFF") == bad);
  CHECK(shown("a\x80z") == "a" + bad + "z");
  CHECK(shown("\xC0\xAF") == bad + bad);                      // overlong
  CHECK(shown("\xE0\x80\xAF") == bad + bad + bad);            // overlong
  CHECK(shown("\xED\xA0\x80") == bad + bad + bad);            // a surrogate
  CHECK(shown("\xF4\x90\x80\x80") == bad + bad + bad + bad);  // past U+10FFFF
  CHECK(shown("\xE6\xB0") == bad);                            // cut off at the end
  CHECK(shown("\xE6\xB0q") == bad + "q");                     // cut off before another character
  CHECK(shown("\xF4\x8F\xBF\xBF") == "\xF4\x8F\xBF\xBF");     // the last one
}

TEST_CASE("Sizes that do not fit are refused, with both named") {
  const matrix weights = matrix::Ones(3, 4);
  CHECK_THROWS_WITH(heed::heatmap_html(weights, numbered(2), numbered(4)),
                    "heed::heatmap_html: row_labels: size 2 does not match weights' rows 3");
  CHECK_THROWS_WITH(heed::heatmap_svg(weights, numbered(3), numbered(5)),
                    "heed::heatmap_svg: col_labels: size 5 does not match weights' columns 4");
  heed::heatmap_page page(numbered(3), numbered(4));
  CHECK_THROWS_WITH(page.add(matrix::Ones(4, 4)),
                    "heed::heatmap_page::add: row_labels: size 3 does not match weights' rows 4");
  CHECK_THROWS_WITH(page.html(),
                    "heed::heatmap_page::html: there is no map to show; add one first");
  CHECK_THROWS_WITH(heed::heatmap_page(numbered(65536), {}),
                    "heed::heatmap_page: 65536 labels are more than the page can index, 65535");
  heed::heatmap_options options;
  options.keep_per_row = -1;
  CHECK_THROWS_WITH(heed::heatmap_page({}, {}, options),
                    "heed::heatmap_page: keep_per_row must be 0 or more, but is -1");
}

TEST_CASE("A page of several heads names each and reaches nothing outside itself") {
  heed::heatmap_page page({"a", "b"}, {"a", "b"});
  page.add(Eigen::Matrix2d::Identity().eval(), 0, 0);
  page.add(0.5 * Eigen::Matrix2f::Ones(), 0, 1, "the even one");
  page.add(Eigen::Matrix2f::Zero(), 1, 0);
  const std::string html = page.html(), data = data_of(html);
  CHECK(count_of(data, "\"layer\":0,") == 2);
  CHECK(count_of(data, "\"head\":1,\"title\":\"the even one\"") == 1);
  CHECK(count_of(data, "\"entropy\":0,") == 1);               // one weight a row
  CHECK(count_of(data, "\"entropy\":0.693147181,") == 1);     // ln 2
  CHECK(count_of(data, "\"max\":0,\"entropy\":null,") == 1);  // nothing in it
  for (const char* outside :
       {"http:", "https:", "src=", "href=", "@import", "url(", "fetch(", "XMLHttp"})
    CHECK(html.find(outside) == std::string::npos);
  CHECK(html.find("default-src 'none'") != std::string::npos);
}

TEST_CASE("Empty maps and any storage order are drawn") {
  CHECK(heed::heatmap_html(matrix(0, 0), {}, {}).find("\"data\":\"\"") != std::string::npos);
  CHECK(heed::heatmap_html(matrix(0, 2), {}, {"a", "b"}).find("\"data\":\"\"") !=
        std::string::npos);
  CHECK(heed::heatmap_svg(matrix(0, 0), {}, {}).find("</svg>") != std::string::npos);
  CHECK(heed::heatmap_svg(matrix(2, 0), {"a", "b"}, {}).find("</svg>") != std::string::npos);

  const matrix by_rows = matrix::NullaryExpr(
      3, 5, [](heed::size_type i, heed::size_type j) { return float(i + 2 * j) / 16; });
  const Eigen::MatrixXd by_cols = by_rows.cast<double>();
  CHECK(heed::heatmap_html(by_rows, numbered(3), numbered(5)) ==
        heed::heatmap_html(by_cols, numbered(3), numbered(5)));
  CHECK(heed::heatmap_html(by_rows.topRows(2) * 1.0f, numbered(2), numbered(5)) ==
        heed::heatmap_html(by_cols.topRows(2), numbered(2), numbered(5)));
}

TEST_CASE("A large SVG shows the largest weight of each block, with its own labels") {
  matrix weights = matrix::Zero(400, 400);
  weights(101, 302) = 1;
  weights(100, 301) = 0.5f;
  const std::string svg = heed::heatmap_svg(weights, numbered(400), numbered(400));
  CHECK(count_of(svg, "<rect") ==
        1);  // blocks of three: rows 99 to 101, columns 300 to 302 hold both
  CHECK(svg.find("t101 → t302: 1</title>") != std::string::npos);
}

TEST_CASE("Numbers have a point in every locale") {
  struct comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
  };
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new comma));
  const std::string page = heed::heatmap_html(matrix::Constant(1, 1, 0.5f), {"a"}, {"a"});
  const std::string svg = heed::heatmap_svg(matrix::Constant(1, 1, 0.5f), {"a"}, {"a"});
  std::locale::global(before);
  CHECK(page.find("\"max\":0.5,") != std::string::npos);
  CHECK(svg.find("a → a: 0.5<") != std::string::npos);
}

TEST_CASE("a page that was moved from has no maps, and can be given another") {
  heed::heatmap_page page({"a", "b"}, {"c"});
  page.add(Eigen::MatrixXd::Ones(2, 1));
  const std::string before = page.html();
  const heed::heatmap_page moved(std::move(page));
  CHECK((moved.html() == before));
  CHECK_THROWS_AS(page.html(), std::invalid_argument);  // NOLINT: moved from on purpose
  CHECK_THROWS_AS(page.add(Eigen::MatrixXd::Ones(2, 1)), std::invalid_argument);
  page = moved;
  auto& same = page;
  page = std::move(same);
  CHECK((page.html() == before));
}
