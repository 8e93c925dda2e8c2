#pragma once

#include <heed/detail/check.hpp>
#include <heed/detail/heatmap_map.hpp>
#include <heed/detail/heatmap_page.hpp>
#include <heed/detail/markup.hpp>
#include <heed/detail/utf8.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstddef>
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
    const detail::map_summary of_map = detail::summary_of(values);
    detail::packed_map packed = detail::pack_map(values, of_map, options_.keep_per_row);
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
  struct added_map {
    std::string head, cells;  // what the page says about it; its weights
  };

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
