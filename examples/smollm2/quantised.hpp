#pragma once

#include "gguf.hpp"
#include "share_out.hpp"

#include <heed/executor.hpp>
#include <heed/types.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory_resource>
#include <string>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace smollm2 {

// A vector type of g++ and clang++, as wide as those of the machine: wider ones would go through
// memory.
#if defined(__AVX512F__)
constexpr int vector_bytes = 64;
#elif defined(__AVX2__)
constexpr int vector_bytes = 32;
#else
constexpr int vector_bytes = 16;
#endif
constexpr size_type lanes = vector_bytes / 4;
using float_lanes = float __attribute__((vector_size(vector_bytes)));
using word_lanes = std::uint32_t __attribute__((vector_size(vector_bytes)));
using int_lanes = std::int32_t __attribute__((vector_size(vector_bytes)));
using half_lanes = std::uint16_t __attribute__((vector_size(vector_bytes / 2)));

template <typename Vector>
Vector load(const void* from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
template <typename To, typename From>
To same_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bits are neither lost nor made up");
  return load<To>(&from);
}

/// Finite half floats.
inline float_lanes half_floats(const unsigned char* from) {
#if defined(__AVX512F__)
  return same_bits<float_lanes>(_mm512_cvtph_ps(load<__m256i>(from)));
#elif defined(__AVX2__) && defined(__F16C__)
  return same_bits<float_lanes>(_mm256_cvtph_ps(load<__m128i>(from)));
#else  // shifting a half's exponent and fraction to a float's places makes it too small by 2^112
  const word_lanes w = __builtin_convertvector(load<half_lanes>(from), word_lanes);
  const word_lanes magnitude = (w & 0x7FFFu) << 13, sign = (w & 0x8000u) << 16;
  return same_bits<float_lanes>(
      same_bits<word_lanes>(same_bits<float_lanes>(magnitude) * 0x1p112f) | sign);
#endif
}

/// A weight matrix whose numbers stay quantised in memory, Q4_1 or Q8_0, made for y = W x.
///
/// The file has a row (the weights of one output) after the other. Here as many rows as a vector
/// has lanes make a panel: a block of 32 columns holds their scales (and for Q4_1 their offsets),
/// and then words in which a row has the numbers of its next columns, eight nibbles or four bytes.
/// No sum across lanes is ever needed. The sums are float.
class quantised_matrix {
 public:
  /// The numbers are in `memory`, which must live as long.
  quantised_matrix(size_type cols, std::pmr::memory_resource& memory)
      : cols_(cols), memory_(&memory) {}

  size_type rows() const { return rows_; }
  size_type cols() const { return cols_; }

  /// Puts the rows of a tensor under those that are there. Throws std::runtime_error for other
  /// sizes or types than fit.
  void add(const gguf_file& file, const std::string& name, size_type rows) {
    const gguf_tensor& tensor = file.tensor(name);
    if (tensor.type == tensor_type::f32)
      file.fail("stores matrix '" + name + "' as F32; supported are Q4_1 and Q8_0");
    if (size_type(tensor.rows) != rows || size_type(tensor.cols) != cols_)
      file.fail("has a tensor '" + name + "' of " + std::to_string(tensor.rows) + " x " +
                std::to_string(tensor.cols) + " where " + std::to_string(rows) + " x " +
                std::to_string(cols_) + " are needed");
    const std::size_t bytes = std::size_t(cols_ / block) * block_bytes(tensor.type),
                      panels = std::size_t((rows + lanes - 1) / lanes);
    unsigned char* data = static_cast<unsigned char*>(memory_->allocate(panels * bytes, 64));
    std::memset(data, 0, panels * bytes);
    for (size_type first = 0; first < rows; first += lanes, data += bytes) {
      const size_type count = (std::min)(rows - first, lanes);
      pack_panel(tensor, first, count, data);
      panels_.push_back({tensor.type, data, rows_ + first, count});
    }
    rows_ += rows;
  }

  /// y[rows] = W x[cols] for n vectors x that follow one another, as the n results do. What comes
  /// of a vector does not depend on the others: they share the weights' way from memory.
  void multiply(const float* x, size_type n, float* y, heed::executor& pool) const {
    if (n == 0) return;
    const product p(*this, x, n, y);
    constexpr size_type portion = 8;  // panels
    const size_type panels = size_type(panels_.size());
    share_out(pool, (panels + portion - 1) / portion, [&](size_type i, int) {
      for (size_type j = i * portion; j < (std::min)(panels, (i + 1) * portion); ++j)
        multiply_panel(panels_[std::size_t(j)], p);
    });
  }

  /// Writes rows [first, first + count) as floats in columns: element (column, row - first) to
  /// out[column * out_row + row - first]. A panel begins at `first`, and out_row leaves room for
  /// whole panels.
  void dequantise(size_type first, size_type count, float* out, size_type out_row) const {
    for (auto p = panel_of(first); p != panels_.end() && p->first < first + count; ++p)
      for (size_type b = 0; b < cols_ / block; ++b)
        dequantise_block(*p, b, out + b * block * out_row + p->first - first, out_row);
  }
  /// One row as floats.
  void row(size_type r, float* out) const {
    const panel& p = *panel_of(r);
    float values[block * lanes];
    for (size_type b = 0; b < cols_ / block; ++b) {
      dequantise_block(p, b, values, lanes);
      for (size_type c = 0; c < block; ++c) out[b * block + c] = values[c * lanes + r - p.first];
    }
  }

 private:
  static constexpr size_type block = 32;
  static constexpr size_type ahead =
      2048;  // bytes; asking for what comes next early makes a product 7 % faster on a Zen 3
  struct panel {
    tensor_type type;
    const unsigned char* data;
    size_type first, count;  // its rows
  };

  /// What the workers share while they multiply.
  struct product {
    product(const quantised_matrix& m, const float* from, size_type vectors, float* to)
        : x(from),
          y(to),
          n(vectors),
          shrunk(std::size_t(vectors * m.cols_)),
          sums(std::size_t(vectors * m.cols_ / block)) {
      for (size_type i = 0; i < size_type(shrunk.size()); ++i)
        shrunk[std::size_t(i)] = x[i] * (1.0f / float(1 << place(i)));
      for (size_type b = 0; b < size_type(sums.size()); ++b)
        sums[std::size_t(b)] = Eigen::Map<const Eigen::ArrayXf>(x + b * block, block).sum();
    }
    const float* x;
    float* y;
    size_type n;
    std::vector<float> shrunk;  // x, each number times 2^-place: what a nibble that is too large by
                                // 2^place is multiplied by
    std::vector<float> sums;    // of x over each block: what an offset is multiplied by
  };

  /// Where in its half of a word the nibble of a column is, in bits. It is not shifted down, that
  /// would take time: it is taken as it is.
  static constexpr int place(size_type column) { return int(column % 4) * 4; }

  std::vector<panel>::const_iterator panel_of(size_type row) const {
    return std::prev(std::upper_bound(panels_.begin(), panels_.end(), row,
                                      [](size_type r, const panel& p) { return r < p.first; }));
  }

  static std::size_t block_bytes(tensor_type type) { return lanes * block_of(type).bytes; }

  /// Lanes past the last row stay 0.
  static void pack_panel(const gguf_tensor& tensor, size_type first, size_type count,
                         unsigned char* to) {
    const std::size_t file_block = block_of(tensor.type).bytes, blocks = tensor.cols / block;
    const std::size_t head = tensor.type == tensor_type::q4_1 ? 4 : 2;
    for (std::size_t b = 0; b < blocks; ++b, to += block_bytes(tensor.type)) {
      for (std::size_t r = 0; r < std::size_t(count); ++r) {
        const unsigned char* const from =
            tensor.data + ((std::size_t(first) + r) * blocks + b) * file_block;
        for (std::size_t h = 0; h < head; h += 2)
          std::memcpy(to + h * lanes + 2 * r, from + h, 2);  // d, and m
        unsigned char* const quants = to + head * lanes;
        for (std::size_t c = 0; c < std::size_t(block); ++c) {
          if (tensor.type == tensor_type::q8_0) {
            quants[(c / 4 * lanes + r) * 4 + c % 4] = from[head + c];
          } else {  // in the file the low nibbles are columns 0 to 15, here they alternate: word c
                    // / 8, nibble c % 8
            const unsigned q = c < 16 ? from[head + c] & 15u : unsigned(from[head + c - 16]) >> 4;
            unsigned char& byte = quants[(c / 8 * lanes + r) * 4 + c % 8 / 2];
            byte = static_cast<unsigned char>(byte | (q << (c % 2 * 4)));
          }
        }
      }
    }
  }

  /// Calls use(c, q) for the columns of a block in ascending order, q being the quantised numbers
  /// of column c; those of Q4_1 come times 2^place(c).
  template <tensor_type Type, typename Use>
  [[gnu::always_inline]] static void for_each_column(const unsigned char* words, const Use& use) {
    constexpr size_type in_word = Type == tensor_type::q4_1 ? 8 : 4;
#pragma GCC unroll 8
    for (size_type c = 0; c < block; c += in_word, words += vector_bytes) {
      const word_lanes w = load<word_lanes>(words);
#pragma GCC unroll 8
      for (size_type i = 0; i < in_word; ++i) {
        if constexpr (Type == tensor_type::q4_1) {
          const word_lanes half = i < 4 ? w : w >> 16;
          use(c, i,
              __builtin_convertvector(same_bits<int_lanes>(half & (15u << place(i))), float_lanes));
        } else {
          use(c, i,
              __builtin_convertvector(same_bits<int_lanes>(w << unsigned(24 - 8 * i)) >> 24,
                                      float_lanes));
        }
      }
    }
  }

  /// As many vectors together as the registers have room for the sums of.
  void multiply_panel(const panel& p, const product& with) const {
    size_type i = 0;
    if constexpr (vector_bytes == 64)
      for (; i + 4 <= with.n; i += 4) multiply_panel<4>(p, with, i);
    for (; i + 2 <= with.n; i += 2) multiply_panel<2>(p, with, i);
    for (; i < with.n; ++i) multiply_panel<1>(p, with, i);
  }
  template <std::size_t Vectors>
  void multiply_panel(const panel& p, const product& with, size_type first) const {
    const auto sums = p.type == tensor_type::q4_1
                          ? panel_sums<tensor_type::q4_1, Vectors>(p, with, first)
                          : panel_sums<tensor_type::q8_0, Vectors>(p, with, first);
    for (std::size_t v = 0; v < Vectors; ++v)
      std::memcpy(with.y + (first + size_type(v)) * rows_ + p.first, &sums[v],
                  sizeof(float) * std::size_t(p.count));
  }
  template <tensor_type Type, std::size_t Vectors>
  std::array<float_lanes, Vectors> panel_sums(const panel& p, const product& with,
                                              size_type first) const {
    constexpr bool nibbles = Type == tensor_type::q4_1;
    constexpr size_type bytes = nibbles ? 20 * lanes : 34 * lanes,
                        head = nibbles ? 4 * lanes : 2 * lanes;
    const std::size_t cols = std::size_t(cols_), blocks = cols / block;
    const unsigned char* data = p.data;
    const float* x = (nibbles ? with.shrunk.data() : with.x) + first * cols_;
    const float* block_sums = with.sums.data() + std::size_t(first) * blocks;
    std::array<float_lanes, Vectors> totals{};
    for (std::size_t b = 0; b < blocks; ++b, data += bytes, x += block) {
      for (size_type line = 0; line < bytes; line += 64) __builtin_prefetch(data + ahead + line);
      // Four chains of additions for each vector, so that none waits for the one before.
      float_lanes sums[Vectors][4] = {};
      for_each_column<Type>(data + head, [&](size_type c, size_type i, const float_lanes& q) {
#pragma GCC unroll 4
        for (std::size_t v = 0; v < Vectors; ++v)
          sums[v][i % 4] += q * x[v * cols + std::size_t(c + i)];
      });
#pragma GCC unroll 4
      for (std::size_t v = 0; v < Vectors; ++v) {
        totals[v] += half_floats(data) * ((sums[v][0] + sums[v][1]) + (sums[v][2] + sums[v][3]));
        if (nibbles) totals[v] += half_floats(data + 2 * lanes) * block_sums[v * blocks + b];
      }
    }
    return totals;
  }

  void dequantise_block(const panel& p, size_type b, float* out, size_type out_row) const {
    const unsigned char* const data = p.data + std::size_t(b) * block_bytes(p.type);
    const float_lanes d = half_floats(data);
    const auto put = [&](size_type c, const float_lanes& values) {
      std::memcpy(out + c * out_row, &values, sizeof values);
    };
    if (p.type == tensor_type::q4_1) {
      const float_lanes m = half_floats(data + 2 * lanes);
      for_each_column<tensor_type::q4_1>(data + 4 * lanes,
                                         [&](size_type c, size_type i, const float_lanes& q) {
                                           put(c + i, d * (q * (1.0f / float(1 << place(i)))) + m);
                                         });
    } else {
      for_each_column<tensor_type::q8_0>(
          data + 2 * lanes,
          [&](size_type c, size_type i, const float_lanes& q) { put(c + i, d * q); });
    }
  }

  size_type rows_ = 0, cols_;
  std::pmr::memory_resource* memory_;
  std::vector<panel> panels_;
};

}  // namespace smollm2
