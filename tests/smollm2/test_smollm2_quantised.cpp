#include "../catch.hpp"
#include "gguf_bytes.hpp"
#include "quantised.hpp"

#include <heed/types.hpp>

#include <Eigen/Core>

#include <cmath>
#include <memory_resource>
#include <random>
#include <string>
#include <vector>

namespace smollm2 {
namespace {

using Eigen::MatrixXd;

/// Two tensors of random blocks, `tops` rows of Q4_1 and `bottoms` of Q8_0, and what they mean, one
/// below the other: `scaled` d q, `offset` m.
struct example {
  example(size_type tops, size_type bottoms, size_type cols)
      : scaled(tops + bottoms, cols), offset(MatrixXd::Zero(tops + bottoms, cols)) {
    const std::size_t rows = std::size_t(tops),
                      top_bytes = (rows * std::size_t(cols) / 32 * 20 + 31) / 32 * 32;
    bytes.head(2, 0);
    bytes.tensor("top", {std::uint64_t(cols), rows}, 3, 0)
        .tensor("bottom", {std::uint64_t(cols), std::uint64_t(bottoms)}, 8, top_bytes);
    bytes.data(0);
    const auto half = [&] {
      const Eigen::half h(std::ldexp(float(int(random() % 2048)) - 1024, -14));
      bytes.put(h.x);
      return double(float(h));
    };
    for (size_type r = 0; r < tops; ++r)
      for (size_type b = 0; b < cols; b += 32) {
        const double d = half(), m = half();
        for (size_type c = 0; c < 16; ++c) {
          const unsigned byte = random() % 256;
          bytes.put(static_cast<unsigned char>(byte));
          scaled(r, b + c) = d * (byte & 15);
          scaled(r, b + c + 16) = d * (byte >> 4);
        }
        offset.row(r).segment(b, 32).setConstant(m);
      }
    bytes.data(0);
    for (size_type r = tops; r < tops + bottoms; ++r)
      for (size_type b = 0; b < cols; b += 32) {
        const double d = half();
        for (size_type c = 0; c < 32; ++c) {
          const int q = int(random() % 256) - 128;
          bytes.put(static_cast<signed char>(q));
          scaled(r, b + c) = d * q;
        }
      }
  }

  std::mt19937 random{11};
  gguf_bytes bytes;
  MatrixXd scaled, offset;
};

}  // namespace

TEST_CASE("Quantised weights mean and multiply what the file format says") {
  for (const size_type cols : {size_type(32), size_type(160)})
    for (const size_type tops : {size_type(1), size_type(21)})
      for (const size_type bottoms :
           {size_type(16), size_type(37)}) {  // the last panels of a tensor are whole, or not
        CAPTURE(cols, tops, bottoms);
        example e(tops, bottoms, cols);
        const gguf_file file(e.bytes.bytes(), "test");
        quantised_matrix w(cols, *std::pmr::new_delete_resource());
        w.add(file, "top", tops);
        w.add(file, "bottom", bottoms);
        const size_type rows = tops + bottoms;
        REQUIRE(w.rows() == rows);
        constexpr double u = 0x1p-24;

        for (size_type r = 0; r < rows; ++r) {
          std::vector<float> row(static_cast<std::size_t>(cols));
          w.row(r, row.data());
          for (size_type c = 0; c < cols; ++c) {  // d q and the sum, each rounded once
            const double d_q = e.scaled(r, c), m = e.offset(r, c);
            CHECK(std::abs(double(row[std::size_t(c)]) - (d_q + m)) <=
                  u * (std::abs(d_q) + std::abs(d_q + m)));
          }
        }

        const Eigen::VectorXf x = Eigen::VectorXf::NullaryExpr(
            cols, [&] { return float(int(e.random() % 4001) - 2000) / 1000; });
        const Eigen::VectorXd right = (e.scaled + e.offset) * x.cast<double>();
        const Eigen::VectorXd size =
            (e.scaled.cwiseAbs() + e.offset.cwiseAbs()) * x.cast<double>().cwiseAbs();
        heed::thread_executor one(1), three(3);
        Eigen::VectorXf y(rows), y_three(rows);
        w.multiply(x.data(), 1, y.data(), one);
        w.multiply(x.data(), 1, y_three.data(), three);
        CHECK(y == y_three);
        for (size_type r = 0; r < rows;
             ++r) {  // no term is rounded more often than the sum has terms, and three products
          CAPTURE(r);
          CHECK(std::abs(double(y(r)) - right(r)) <= double(cols + 4) * u * size(r));
        }
      }
}

TEST_CASE("Vectors that are multiplied together get what each gets alone, to the bit") {
  using matrix = heed::rows<float>;
  example e(21, 37, 160);
  const gguf_file file(e.bytes.bytes(), "test");
  quantised_matrix w(160, *std::pmr::new_delete_resource());
  w.add(file, "top", 21);
  w.add(file, "bottom", 37);
  heed::thread_executor pool(2);
  matrix x = matrix::NullaryExpr(9, 160, [&] { return float(int(e.random() % 4001) - 2000); });
  matrix alone(9, 58);
  for (size_type i = 0; i < 9; ++i) w.multiply(x.row(i).data(), 1, alone.row(i).data(), pool);
  for (size_type n = 0; n <= 9; ++n) {
    matrix together = matrix::Constant(9, 58, -1);
    w.multiply(x.data(), n, together.data(), pool);
    CHECK((together.topRows(n) == alone.topRows(n)));
    CHECK((together.bottomRows(9 - n).array() == -1).all());
  }
}

TEST_CASE("Blocks of rows come in columns, as a product takes them") {
  example e(48, 32, 64);
  const gguf_file file(e.bytes.bytes(), "test");
  quantised_matrix w(64, *std::pmr::new_delete_resource());
  w.add(file, "top", 48);
  w.add(file, "bottom", 32);
  std::vector<float> block(64 * 32, -1), row(64);
  w.dequantise(32, 32, block.data(), 32);  // the end of one tensor and the beginning of the other
  for (size_type r = 0; r < 32; ++r) {
    w.row(32 + r, row.data());
    for (size_type c = 0; c < 64; ++c) CHECK(block[std::size_t(c * 32 + r)] == row[std::size_t(c)]);
  }
}

TEST_CASE("A weight of another size is refused") {
  example e(16, 16, 32);
  const gguf_file file(e.bytes.bytes(), "test");
  quantised_matrix w(64, *std::pmr::new_delete_resource());
  CHECK_THROWS_WITH(w.add(file, "top", 16),
                    "'test' has a tensor 'top' of 16 x 32 where 16 x 64 are needed");
}

}  // namespace smollm2
