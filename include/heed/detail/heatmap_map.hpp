#pragma once

#include <heed/detail/abi.hpp>
#include <heed/detail/number.hpp>
#include <heed/types.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

// A map of a page of heat maps: what the page says of it, and its weights packed. heatmap/cells.js
// unpacks them.

HEED_NAMESPACE_BEGIN
namespace detail {

inline bool is_weight(double x) { return is_finite(x) && x >= 0; }

/// Codes of a map's largest weight, and of what is no weight.
constexpr std::uint16_t full_weight = 65534, no_weight = 65535;

/// What the page says of a map as a whole.
struct map_summary {
  double max = 0;
  // In nats, the mean over the whole rows, each divided by its sum: one with a cell that is no
  // weight, or with nothing in it, has none.
  double entropy = 0;
  size_type whole_rows = 0;
  size_type lowest = 0, highest = -1;  // column - row of every cell that is not 0 is between
                                       // these: all that a mask lets through
};

inline map_summary summary_of(const rows<double>& values) {
  map_summary s;
  double entropy = 0;
  for (size_type r = 0; r < values.rows(); ++r) {
    double largest = 0, sum = 0;  // the sum in units of the largest, so that it is a number
                                  // whatever the weights are
    bool all_weights = true;
    size_type first = values.cols(), last = -1;
    for (size_type c = 0; c < values.cols(); ++c) {
      const double w = values(r, c);
      if (w == 0 && is_weight(w)) continue;
      first = (std::min)(first, c);
      last = c;
      if (!is_weight(w)) {
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

inline unsigned weight_code(double w, double max) {
  if (!is_weight(w)) return no_weight;
  return max > 0 ? static_cast<unsigned>(w / max * full_weight + 0.5) : 0u;
}

/// The weights of a map as a JSON object.
struct packed_map {
  size_type kept;   // codes a row, where rows are shortened; else 0
  size_type block;  // cells on the side of a block of `rest`
  std::string json;
};
/// `data`: row by row how many codes are kept, then each with the step from the column before it.
/// `rest`, where rows are shortened: of the codes left out in each block of `block` x `block`
/// cells the largest, as a byte. It is a bound: the square of that byte over 255 is at least the
/// code's share of the largest one.
inline packed_map pack_map(const rows<double>& values, const map_summary& of_map,
                           size_type keep_per_row) {
  constexpr size_type blocks_a_side = 64;
  const bool shortened = keep_per_row > 0 && values.cols() > keep_per_row;
  const size_type keep = shortened ? keep_per_row : values.cols(),
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
      if (const unsigned code = weight_code(values(r, c), of_map.max))
        cells.push_back(code << 16 | (last_column - static_cast<std::uint32_t>(c)));
    const std::size_t count = (std::min)(cells.size(), static_cast<std::size_t>(keep));
    const auto left_out = cells.begin() + static_cast<std::ptrdiff_t>(count);
    std::nth_element(cells.begin(), left_out, cells.end(), std::greater<std::uint32_t>());
    std::sort(cells.begin(), left_out,
              [&](std::uint32_t a, std::uint32_t b) { return column_of(a) < column_of(b); });
    append_number(bytes, static_cast<unsigned>(count));
    unsigned before = 0;
    for (std::size_t i = 0; i < count; ++i) {
      append_number(bytes, column_of(cells[i]) - before);
      append_number(bytes, cells[i] >> 16);
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
        std::ceil(255 * std::sqrt((std::min)(1.0, double(code) / full_weight)))));
  return {shortened ? keep : 0, block,
          "{\"rest\":\"" + base64(rest) + "\",\"data\":\"" + base64(bytes) + "\"}"};
}

}  // namespace detail
HEED_NAMESPACE_END
