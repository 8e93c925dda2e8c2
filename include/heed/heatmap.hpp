#pragma once

#include <heed/detail/check.hpp>
#include <heed/detail/heatmap_page.hpp>
#include <heed/detail/number.hpp>
#include <heed/detail/utf8.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <locale>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

// Pictures of attention: weights and labels in, a page or an SVG out. Not part of heed.hpp: include
// it where you need it.
//
// A weight is a finite number, 0 or more. Anything else (NaN, infinity, a negative number) is drawn
// as a marked cell that says "not a weight". Labels and titles are UTF-8 and may hold anything:
// they reach the output as text, never as markup or program, and bytes that are not UTF-8 become
// U+FFFD.

HEED_NAMESPACE_BEGIN

/// The words of a heat map, and how much it keeps.
struct heatmap_options {
  /// The heading of the page and the title of the picture.
  std::string title = "Attention";
  /// A sentence under the title.
  std::string note{};
  /// The word for a row.
  std::string row_name = "query";
  /// The word for a column.
  std::string col_name = "key";
  /// A row with more columns than this stores only so many of its largest weights (a page, not an
  /// SVG); 0 stores every weight. One takes 3 to 5 bytes, a weight of 0 none. Set it to 16 or so
  /// for a page with every head of a model. Of the others the page knows, and shows, a bound: the
  /// largest in each of 64 x 64 blocks.
  size_type keep_per_row = 2048;
};

namespace detail {

inline bool is_weight(double x) { return is_finite(x) && x >= 0; }

/// Inside a JSON string that stands in a <script> block: no quote, no line end, and nothing that
/// HTML could take for a tag.
inline std::string json_text(const std::string& text) {
  static const char* const hex = "0123456789abcdef";
  std::string out = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    const bool escape = c < 0x20 || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' ||
                        c == 0x7F || c == 0x2028 || c == 0x2029;
    if (!escape) {
      append_utf8(out, c);
      continue;
    }
    out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out += hex[(c >> shift) & 15];
  }
  return out + "\"";
}

/// Inside HTML or XML text or a quoted attribute. Control characters are no text there: they become
/// U+FFFD.
inline std::string markup_text(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default: {
        const bool is_text = c >= 0x20 && (c < 0x7F || c > 0x9F) && c != 0xFFFE && c != 0xFFFF;
        append_utf8(out, is_text || c == '\t' || c == '\n' ? c : replacement_character);
      }
    }
  }
  return out;
}

/// A number in C's locale, whatever the program's: JSON and SVG want a point.
inline std::string number_text(double x) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out.precision(9);
  out << x;
  return out.str();
}

inline std::string base64(const std::vector<unsigned char>& bytes) {
  static const char* const digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::size_t n = bytes.size();
  const auto byte = [&](std::size_t i) { return i < n ? unsigned(bytes[i]) : 0u; };
  std::string out;
  out.reserve((n + 2) / 3 * 4);
  for (std::size_t i = 0; i < n; i += 3) {
    const unsigned group = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
    for (unsigned d = 0; d < 4; ++d) out += i + d > n ? '=' : digits[(group >> (18 - 6 * d)) & 63u];
  }
  return out;
}

/// Seven bits a byte, the low ones first; a byte that is not the last has its high bit set
/// (LEB128).
inline void append_number(std::vector<unsigned char>& bytes, unsigned n) {
  for (; n > 127; n >>= 7) bytes.push_back(static_cast<unsigned char>((n & 127u) | 128u));
  bytes.push_back(static_cast<unsigned char>(n));
}

template <typename Derived>
void check_weights(const char* function, const Eigen::DenseBase<Derived>& weights,
                   std::size_t row_labels, std::size_t col_labels) {
  check_memory(function, "weights", weights);
  check_equal(function, "row_labels: size", static_cast<size_type>(row_labels), "weights' rows",
              weights.rows());
  check_equal(function, "col_labels: size", static_cast<size_type>(col_labels), "weights' columns",
              weights.cols());
}
inline void check_page(const char* function, std::size_t row_labels, std::size_t col_labels,
                       const heatmap_options& options) {
  const std::size_t most = 65535, longest = (std::max)(row_labels, col_labels);
  if (longest > most)
    fail_with("heed::", function, ": ", longest, " labels are more than the page can index, ",
              most);
  if (options.keep_per_row < 0)
    fail_with("heed::", function, ": keep_per_row must be 0 or more, but is ",
              options.keep_per_row);
}

}  // namespace detail

/// One page for any number of heads of one pair of sequences: self-contained HTML that needs no
/// network.
///
/// Each head's map is packed when it is added, so a model's maps never stand in memory together: a
/// weight becomes the code round(65534 weight / max), max being the map's largest weight, so what
/// the page says is right to max / 131068. 65535 is "not a weight".
///
/// @code
/// const Eigen::MatrixXf weights = heed::scaled_softmax(Eigen::MatrixXf::Random(3, 3));
/// const std::vector<std::string> words{"who", "attends", "whom"};
/// heed::heatmap_page page(words, words);
/// for (int head = 0; head < 2; ++head) page.add(weights, 0, head);
/// std::ofstream("attention.html") << page.html();
/// @endcode
class heatmap_page {
 public:
  /// row_labels: n_q tokens; col_labels: n_kv tokens. Throws std::invalid_argument for more than
  /// 65,535 of either.
  heatmap_page(std::vector<std::string> row_labels, std::vector<std::string> col_labels,
               heatmap_options options = {})
      : row_labels_(std::move(row_labels)),
        col_labels_(std::move(col_labels)),
        options_(std::move(options)) {
    detail::check_page("heatmap_page", row_labels_.size(), col_labels_.size(), options_);
  }

  /// A copy has memory of its own.
  heatmap_page(const heatmap_page&) = default;
  /// A page that was moved from has no labels and no maps.
  heatmap_page(heatmap_page&&) = default;
  /// A copy for which memory runs out changes nothing.
  heatmap_page& operator=(heatmap_page other) noexcept {
    std::swap(row_labels_, other.row_labels_);
    std::swap(col_labels_, other.col_labels_);
    std::swap(options_, other.options_);
    std::swap(maps_, other.maps_);
    return *this;
  }

  /// Adds the map of one head: weights n_q x n_kv, any real scalar. An empty title reads "layer L,
  /// head H". Throws std::invalid_argument where the weights do not have the labels' sizes.
  template <typename Derived>
  void add(const Eigen::DenseBase<Derived>& weights, size_type layer = 0, size_type head = 0,
           const std::string& title = {}) {
    detail::check_weights("heatmap_page::add", weights, row_labels_.size(), col_labels_.size());
    const rows<double> values = weights.derived().template cast<double>();
    const summary of_map = summarise(values);
    packed_map packed = pack(values, of_map);
    maps_.push_back({"{\"layer\":" + std::to_string(layer) + ",\"head\":" + std::to_string(head) +
                         ",\"title\":" + detail::json_text(title) +
                         ",\"max\":" + detail::number_text(of_map.max) + ",\"entropy\":" +
                         (of_map.whole_rows > 0 ? detail::number_text(of_map.entropy) : "null") +
                         ",\"band\":[" + std::to_string(of_map.lowest) + "," +
                         std::to_string(of_map.highest) +
                         "],\"kept\":" + std::to_string(packed.kept) +
                         ",\"block\":" + std::to_string(packed.block) + "}",
                     std::move(packed.json)});
  }

  /// The page. Throws std::invalid_argument where no map was added.
  std::string html() const {
    if (maps_.empty())
      detail::fail_with("heed::heatmap_page::html: there is no map to show; add one first");
    std::string page = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
    page += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
    // Makes the browser refuse whatever this page might load or connect to.
    page +=
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
        "'unsafe-inline'; script-src "
        "'unsafe-inline'\">\n";
    page += "<title>" + detail::markup_text(options_.title) + "</title>\n<style>" +
            detail::heatmap_style + "</style>\n</head>\n<body>";
    page += detail::heatmap_body;
    page += "<script type=\"application/json\" id=\"data\">{\"title\":" +
            detail::json_text(options_.title);
    page += ",\"note\":" + detail::json_text(options_.note) +
            ",\"row_name\":" + detail::json_text(options_.row_name);
    page += ",\"col_name\":" + detail::json_text(options_.col_name) +
            ",\n\"rows\":" + labels_json(row_labels_);
    page += ",\n\"cols\":" + labels_json(col_labels_) + ",\n\"maps\":[";
    for (std::size_t m = 0; m < maps_.size(); ++m) page += (m ? ",\n" : "\n") + maps_[m].head;
    page += "]}</script>\n";
    // A block of its own for each map: a browser reads those faster than one of many megabytes, and
    // the page unpacks only the maps that are shown.
    for (const added_map& map : maps_)
      page += "<script type=\"application/json\" class=\"cells\">" + map.cells + "</script>\n";
    page += "<script>";
    for (const char* part : {detail::heatmap_data_program, detail::heatmap_view_program,
                             detail::heatmap_input_program})
      page += part;
    return page + "</script>\n</body>\n</html>\n";
  }

 private:
  static constexpr std::uint16_t full = 65534, invalid = 65535;

  struct summary {
    double max = 0;
    // In nats, the mean over the whole rows, each divided by its sum: one with a cell that is no
    // weight, or with nothing in it, has none.
    double entropy = 0;
    size_type whole_rows = 0;
    size_type lowest = 0, highest = -1;  // column - row of every cell that is not 0 is between
                                         // these: all that a mask lets through
  };

  static summary summarise(const rows<double>& values) {
    summary s;
    double entropy = 0;
    for (size_type r = 0; r < values.rows(); ++r) {
      double largest = 0, sum = 0;  // the sum in units of the largest, so that it is a number
                                    // whatever the weights are
      bool all_weights = true;
      size_type first = values.cols(), last = -1;
      for (size_type c = 0; c < values.cols(); ++c) {
        const double w = values(r, c);
        if (w == 0 && detail::is_weight(w)) continue;
        first = (std::min)(first, c);
        last = c;
        if (!detail::is_weight(w)) {
          all_weights = false;
          continue;
        }
        largest = (std::max)(largest, w);
      }
      s.max = (std::max)(s.max, largest);
      if (last >= 0) {
        const bool none_before = s.highest < s.lowest;
        s.lowest = none_before ? first - r : (std::min)(s.lowest, first - r);
        s.highest = none_before ? last - r : (std::max)(s.highest, last - r);
      }
      if (!all_weights || last < 0) continue;
      for (size_type c = first; c <= last; ++c) sum += values(r, c) / largest;
      for (size_type c = first; c <= last; ++c) {
        const double share = values(r, c) / largest / sum;
        if (share > 0) entropy -= share * std::log(share);
      }
      ++s.whole_rows;
    }
    if (s.whole_rows > 0) s.entropy = entropy / double(s.whole_rows);
    return s;
  }

  static unsigned code_of(double w, double max) {
    if (!detail::is_weight(w)) return invalid;
    return max > 0 ? static_cast<unsigned>(w / max * full + 0.5) : 0u;
  }

  struct added_map {
    std::string head, cells;  // what the page says about it; its weights
  };
  struct packed_map {
    size_type kept;   // codes a row, where rows are shortened; else 0
    size_type block;  // cells on the side of a block of `rest`
    std::string json;
  };
  /// `data`: row by row how many codes are kept, then each with the step from the column before it.
  /// `rest`, where rows are shortened: of the codes left out in each block of `block` x `block`
  /// cells the largest, as a byte. It is a bound: the square of that byte over 255 is at least the
  /// code's share of the largest one.
  packed_map pack(const rows<double>& values, const summary& of_map) const {
    constexpr size_type blocks_a_side = 64;
    const bool shortened = options_.keep_per_row > 0 && values.cols() > options_.keep_per_row;
    const size_type keep = shortened ? options_.keep_per_row : values.cols(),
                    longest = (std::max)(values.rows(), values.cols());
    const size_type block = (longest + blocks_a_side - 1) / blocks_a_side,
                    across = shortened ? (values.cols() + block - 1) / block : 0;
    std::vector<unsigned char> bytes;
    std::vector<std::uint32_t> most_left_out(static_cast<std::size_t>(
        across * ((values.rows() + block - 1) / (std::max)(block, size_type{1}))));

    // Code and column as one number: the largest codes first, the first columns among equals. A
    // cell that is no weight outdoes every weight, so that none is hidden.
    constexpr std::uint32_t last_column = 0xFFFF;
    const auto column_of = [](std::uint32_t cell) { return last_column - (cell & last_column); };
    std::vector<std::uint32_t> cells;
    for (size_type r = 0; r < values.rows(); ++r) {
      cells.clear();
      for (size_type c = (std::max)(size_type{0}, r + of_map.lowest);
           c < (std::min)(values.cols(), r + of_map.highest + 1); ++c)
        if (const unsigned code = code_of(values(r, c), of_map.max))
          cells.push_back(code << 16 | (last_column - static_cast<std::uint32_t>(c)));
      const std::size_t count = (std::min)(cells.size(), static_cast<std::size_t>(keep));
      const auto left_out = cells.begin() + static_cast<std::ptrdiff_t>(count);
      std::nth_element(cells.begin(), left_out, cells.end(), std::greater<std::uint32_t>());
      std::sort(cells.begin(), left_out,
                [&](std::uint32_t a, std::uint32_t b) { return column_of(a) < column_of(b); });
      detail::append_number(bytes, static_cast<unsigned>(count));
      unsigned before = 0;
      for (std::size_t i = 0; i < count; ++i) {
        detail::append_number(bytes, column_of(cells[i]) - before);
        detail::append_number(bytes, cells[i] >> 16);
        before = column_of(cells[i]);
      }
      for (auto cell = left_out; cell != cells.end(); ++cell) {
        std::uint32_t& most = most_left_out[static_cast<std::size_t>(
            r / block * across + static_cast<size_type>(column_of(*cell)) / block)];
        most = (std::max)(most, *cell >> 16);
      }
    }
    std::vector<unsigned char> rest;
    for (const std::uint32_t code : most_left_out)
      rest.push_back(static_cast<unsigned char>(
          std::ceil(255 * std::sqrt((std::min)(1.0, double(code) / full)))));
    return {
        shortened ? keep : 0, block,
        "{\"rest\":\"" + detail::base64(rest) + "\",\"data\":\"" + detail::base64(bytes) + "\"}"};
  }

  static std::string labels_json(const std::vector<std::string>& labels) {
    std::string out = "[";
    for (std::size_t i = 0; i < labels.size(); ++i)
      out += (i ? "," : "") + detail::json_text(labels[i]);
    return out + "]";
  }

  std::vector<std::string> row_labels_, col_labels_;
  heatmap_options options_;
  std::vector<added_map> maps_;
};

/// A page for one matrix of weights, n_q x n_kv, with a label for each row and column:
/// self-contained HTML. Throws std::invalid_argument where labels and weights do not have the same
/// sizes.
///
/// @code
/// const Eigen::MatrixXf weights = heed::scaled_softmax(Eigen::MatrixXf::Random(3, 3));
/// const std::vector<std::string> words{"who", "attends", "whom"};
/// std::ofstream("attention.html") << heed::heatmap_html(weights, words, words);
/// @endcode
template <typename Derived>
std::string heatmap_html(const Eigen::DenseBase<Derived>& weights,
                         const std::vector<std::string>& row_labels,
                         const std::vector<std::string>& col_labels,
                         const heatmap_options& options = {}) {
  detail::check_weights("heatmap_html", weights, row_labels.size(), col_labels.size());
  detail::check_page("heatmap_html", row_labels.size(), col_labels.size(), options);
  heatmap_page page(row_labels, col_labels, options);
  page.add(weights);
  return page.html();
}

/// A still picture of one matrix of weights, n_q x n_kv: SVG for light and dark ground. More than
/// 160 rows or columns are drawn in blocks, each with its largest weight. Throws
/// std::invalid_argument where labels and weights do not have the same sizes.
///
/// @code
/// const Eigen::MatrixXf weights = heed::scaled_softmax(Eigen::MatrixXf::Random(3, 3));
/// const std::vector<std::string> words{"who", "attends", "whom"};
/// std::ofstream("attention.svg") << heed::heatmap_svg(weights, words, words);
/// @endcode
template <typename Derived>
std::string heatmap_svg(const Eigen::DenseBase<Derived>& weights,
                        const std::vector<std::string>& row_labels,
                        const std::vector<std::string>& col_labels,
                        const heatmap_options& options = {}) {
  detail::check_weights("heatmap_svg", weights, row_labels.size(), col_labels.size());
  const rows<double> values = weights.derived().template cast<double>();
  const size_type n_q = values.rows(), n_kv = values.cols(),
                  longest = (std::max)((std::max)(n_q, n_kv), size_type{1});
  const size_type block = (longest + 159) / 160, side = (longest + block - 1) / block;
  const size_type cell = (std::max)(size_type{5}, (std::min)(size_type{22}, 760 / side)),
                  every = (12 + cell - 1) / cell;  // pixels; blocks a label
  const size_type left = 120, top = 150, width = left + cell * ((n_kv + block - 1) / block) + 10,
                  height = top + cell * ((n_q + block - 1) / block) + 10;

  double max = 0;
  for (size_type r = 0; r < n_q; ++r)
    for (size_type c = 0; c < n_kv; ++c)
      if (detail::is_weight(values(r, c))) max = (std::max)(max, values(r, c));

  const auto label_of = [](const std::vector<std::string>& labels, size_type i) {
    return detail::markup_text(labels[static_cast<std::size_t>(i)]);
  };
  const auto short_label = [&](const std::vector<std::string>& labels, size_type i) {
    std::string text;
    const std::string& all = labels[static_cast<std::size_t>(i)];
    std::size_t at = 0;
    for (int letters = 0; at < all.size(); ++letters) {
      if (letters == 15) return detail::markup_text(text) + "\xE2\x80\xA6";
      detail::append_utf8(text, detail::next_code_point(all, at));
    }
    return detail::markup_text(text);
  };

  std::ostringstream svg;
  svg.imbue(std::locale::classic());
  svg.precision(3);
  svg << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << width << " " << height
      << "\" width=\"" << width << "\" height=\"" << height << "\" role=\"img\">\n<title>"
      << detail::markup_text(options.title) << "</title>\n<desc>"
      << detail::markup_text(options.note) << " Rows: " << detail::markup_text(options.row_name)
      << ". Columns: " << detail::markup_text(options.col_name) << ". The strongest cell is " << max
      << ".</desc>\n"
      << "<style>text{font:11px system-ui,'DejaVu "
         "Sans',sans-serif;fill:#57535f}.t{font-size:15px;font-weight:600}.w{fill:#b0155f}"
      << ".x{fill:#00a3a3}@media(prefers-color-scheme:dark){text{fill:#b5b0c0}.w{fill:#ff8f5a}}</"
         "style>\n"
      << "<text class=\"t\" x=\"10\" y=\"22\">" << detail::markup_text(options.title)
      << "</text>\n";
  for (size_type r = 0; r * block < n_q; r += every)
    svg << "<text x=\"" << left - 6 << "\" y=\"" << top + r * cell + cell / 2 + 4
        << "\" text-anchor=\"end\">" << short_label(row_labels, r * block) << "</text>\n";
  for (size_type c = 0; c * block < n_kv; c += every)
    svg << "<text transform=\"translate(" << left + c * cell + cell / 2 + 4 << " " << top - 6
        << ") rotate(-90)\">" << short_label(col_labels, c * block) << "</text>\n";

  for (size_type r = 0; r < n_q; r += block) {
    for (size_type c = 0; c < n_kv; c += block) {
      size_type at_r = r,
                at_c = c;  // the block's largest weight; a cell that is no weight outdoes them all
      for (size_type i = r; i < (std::min)(n_q, r + block); ++i) {
        for (size_type j = c; j < (std::min)(n_kv, c + block); ++j) {
          const double best = values(at_r, at_c), w = values(i, j);
          if (detail::is_weight(best) && (!detail::is_weight(w) || w > best)) at_r = i, at_c = j;
        }
      }
      const double w = values(at_r, at_c),
                   ink = detail::is_weight(w) ? (max > 0 ? std::sqrt(w / max) : 0) : 1;
      if (ink < 0.02) continue;  // looks like the background
      svg << "<rect class=\"" << (detail::is_weight(w) ? 'w' : 'x') << "\" x=\""
          << left + c / block * cell << "\" y=\"" << top + r / block * cell << "\" width=\""
          << cell - (cell > 8) << "\" height=\"" << cell - (cell > 8) << "\" fill-opacity=\"" << ink
          << "\"><title>" << label_of(row_labels, at_r) << " \xE2\x86\x92 "
          << label_of(col_labels, at_c) << ": ";
      if (detail::is_weight(w)) {
        svg << w;
      } else {
        svg << "not a weight";
      }
      svg << "</title></rect>\n";
    }
  }
  svg << "</svg>\n";
  return svg.str();
}

HEED_NAMESPACE_END
