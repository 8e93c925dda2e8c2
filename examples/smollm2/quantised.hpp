#pragma once

#include "gguf.hpp"

#include <heed/executor.hpp>
#include <heed/types.hpp>

#include <Eigen/Core>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace smollm2 {

using heed::index;

// Sixteen numbers that are worked on together: a vector type of g++ and clang++, which becomes the machine's own vectors.
constexpr index lanes = 16;
using float_lanes = float __attribute__((vector_size(64)));
using word_lanes = std::uint32_t __attribute__((vector_size(64)));
using int_lanes = std::int32_t __attribute__((vector_size(64)));
using half_lanes = std::uint16_t __attribute__((vector_size(32)));
using byte_lanes = std::int8_t __attribute__((vector_size(16)));

template <typename Vector>
Vector load(const unsigned char* from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
inline void store(const float_lanes& v, float* to) { std::memcpy(to, &v, sizeof v); }

/// Finite half floats. Shifting a half's exponent and fraction to a float's places makes it too small by 2^112.
inline float_lanes to_floats(const half_lanes& h) {
  const word_lanes w = __builtin_convertvector(h, word_lanes);
  const word_lanes magnitude = (w & 0x7FFFu) << 13, sign = (w & 0x8000u) << 16;
  const float_lanes unsigned_value = load<float_lanes>(reinterpret_cast<const unsigned char*>(&magnitude)) * 0x1p112f;
  const word_lanes value = load<word_lanes>(reinterpret_cast<const unsigned char*>(&unsigned_value)) | sign;
  return load<float_lanes>(reinterpret_cast<const unsigned char*>(&value));
}

/// A weight matrix whose numbers stay quantised in memory, Q4_1 or Q8_0, made for y = W x.
///
/// The file has a row (the weights of one output) after the other. Here sixteen rows make a panel, in which they lie along the lanes: a
/// block of 32 columns holds sixteen scales (and for Q4_1 sixteen offsets), and then column by column sixteen numbers; the nibbles of
/// eight columns share a word. No sum across lanes is ever needed. The sums are float.
class quantised_matrix {
 public:
  explicit quantised_matrix(index cols = 0) : cols_(cols) {}

  index rows() const { return rows_; }
  index cols() const { return cols_; }

  /// Puts the rows of a tensor under those that are there. Throws std::runtime_error for other sizes or types than fit.
  void add(const gguf_file& file, const std::string& name, index rows) {
    const gguf_tensor& tensor = file.tensor(name);
    if (tensor.type == tensor_type::f32) file.fail("stores matrix '" + name + "' as F32; supported are Q4_1 and Q8_0");
    if (index(tensor.rows) != rows || index(tensor.cols) != cols_)
      file.fail("has a tensor '" + name + "' of " + std::to_string(tensor.rows) + " x " + std::to_string(tensor.cols) + " where " +
                std::to_string(rows) + " x " + std::to_string(cols_) + " are needed");
    for (index first = 0; first < rows; first += lanes) {
      const index count = rows - first < lanes ? rows - first : lanes;
      panels_.push_back({tensor.type, data_.size(), rows_ + first, count});
      pack_panel(tensor, first, count);
    }
    rows_ += rows;
  }

  /// y[rows] = W x[cols].
  void multiply(const float* x, float* y, heed::executor& pool) const {
    struct work {
      const quantised_matrix& matrix;
      const float* x;
      float* y;
      std::vector<float> sums;  // of x over each block: what an offset is multiplied by
      int workers;
    } shared{*this, x, y, std::vector<float>(std::size_t(cols_ / block)), pool.workers()};
    for (index b = 0; b < cols_ / block; ++b) shared.sums[std::size_t(b)] = Eigen::Map<const Eigen::ArrayXf>(x + b * block, block).sum();
    pool.run(
        shared.workers,
        [](void* context, int worker) {
          const work& w = *static_cast<const work*>(context);
          const index n = index(w.matrix.panels_.size());
          for (index p = n * worker / w.workers; p < n * (worker + 1) / w.workers; ++p) w.matrix.multiply_panel(w.matrix.panels_[std::size_t(p)], w);
        },
        &shared);
  }

  /// Writes rows [first, first + count) as floats in columns: element (column, row - first) to out[column * out_row + row - first].
  /// `first` and `count` must be multiples of 16 but for the last rows of all, and out_row must leave room for whole panels.
  void dequantise(index first, index count, float* out, index out_row) const {
    for (const panel& p : panels_) {
      if (p.first < first || p.first >= first + count) continue;
      for (index b = 0; b < cols_ / block; ++b) dequantise_block(p, b, out + b * block * out_row + p.first - first, out_row);
    }
  }
  /// One row as floats.
  void row(index r, float* out) const {
    for (const panel& p : panels_) {
      if (r < p.first || r >= p.first + p.count) continue;
      float values[block * lanes];
      for (index b = 0; b < cols_ / block; ++b) {
        dequantise_block(p, b, values, lanes);
        for (index c = 0; c < block; ++c) out[b * block + c] = values[c * lanes + r - p.first];
      }
    }
  }

 private:
  static constexpr index block = 32;
  struct panel {
    tensor_type type;
    std::size_t at;      // where its blocks begin
    index first, count;  // its rows
  };

  static std::size_t block_bytes(tensor_type type) { return lanes * block_of(type).bytes; }
  const unsigned char* block_data(const panel& p, index b) const { return data_.data() + p.at + std::size_t(b) * block_bytes(p.type); }

  /// Lanes behind the last row stay 0.
  void pack_panel(const gguf_tensor& tensor, index first, index count) {
    const std::size_t file_block = block_of(tensor.type).bytes, blocks = tensor.cols / block;
    const std::size_t head = tensor.type == tensor_type::q4_1 ? 4 : 2, at = data_.size();
    data_.resize(at + blocks * block_bytes(tensor.type));
    for (std::size_t b = 0; b < blocks; ++b) {
      unsigned char* const to = data_.data() + at + b * block_bytes(tensor.type);
      for (std::size_t r = 0; r < std::size_t(count); ++r) {
        const unsigned char* const from = tensor.data + ((std::size_t(first) + r) * blocks + b) * file_block;
        for (std::size_t h = 0; h < head; h += 2) std::memcpy(to + h * lanes + 2 * r, from + h, 2);  // d, and m
        unsigned char* const quants = to + head * lanes;
        for (std::size_t c = 0; c < std::size_t(block); ++c) {
          if (tensor.type == tensor_type::q8_0) {
            quants[c * lanes + r] = from[head + c];
          } else {  // in the file the low nibbles are columns 0 to 15, here they alternate: word c / 8, nibble c % 8
            const unsigned q = c < 16 ? from[head + c] & 15u : unsigned(from[head + c - 16]) >> 4;
            unsigned char& byte = quants[(c / 8 * lanes + r) * 4 + c % 8 / 2];
            byte = static_cast<unsigned char>(byte | (q << (c % 2 * 4)));
          }
        }
      }
    }
  }

  /// Calls use(c, q) for the columns of a block in ascending order, q being the sixteen quantised numbers of column c.
  template <typename Use>
  static void for_each_column(tensor_type type, const unsigned char* data, const Use& use) {
    if (type == tensor_type::q4_1) {
      for (index group = 0; group < block / 8; ++group) {
        const word_lanes w = load<word_lanes>(data + 4 * lanes + group * 4 * lanes);
#pragma GCC unroll 8
        for (index j = 0; j < 8; ++j)
          use(group * 8 + j, __builtin_convertvector(__builtin_convertvector((w >> std::uint32_t(4 * j)) & 15u, int_lanes), float_lanes));
      }
    } else {
#pragma GCC unroll 8
      for (index c = 0; c < block; ++c)
        use(c, __builtin_convertvector(__builtin_convertvector(load<byte_lanes>(data + 2 * lanes + c * lanes), int_lanes), float_lanes));
    }
  }
  static float_lanes scale(const unsigned char* data) { return to_floats(load<half_lanes>(data)); }
  static float_lanes offset(tensor_type type, const unsigned char* data) {
    return type == tensor_type::q4_1 ? to_floats(load<half_lanes>(data + 2 * lanes)) : float_lanes{};
  }

  template <typename Work>
  void multiply_panel(const panel& p, const Work& w) const {
    float_lanes total{};
    for (index b = 0; b < cols_ / block; ++b) {
      const unsigned char* const data = block_data(p, b);
      const float* const x = w.x + b * block;
      float_lanes sums[4] = {};  // four chains of additions, so that none waits for the one before
      for_each_column(p.type, data, [&](index c, const float_lanes& q) { sums[c % 4] += q * x[c]; });
      total += scale(data) * ((sums[0] + sums[1]) + (sums[2] + sums[3]));
      total += offset(p.type, data) * w.sums[std::size_t(b)];
    }
    float y[lanes];
    store(total, y);
    std::memcpy(w.y + p.first, y, sizeof(float) * std::size_t(p.count));
  }

  void dequantise_block(const panel& p, index b, float* out, index out_row) const {
    const unsigned char* const data = block_data(p, b);
    const float_lanes d = scale(data), m = offset(p.type, data);
    for_each_column(p.type, data, [&](index c, const float_lanes& q) { store(d * q + m, out + c * out_row); });
  }

  index rows_ = 0, cols_;
  std::vector<panel> panels_;
  std::vector<unsigned char> data_;
};

}  // namespace smollm2
