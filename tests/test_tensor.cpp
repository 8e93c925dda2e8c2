#include <heed/tensor.hpp>

#include <array>
#include <numeric>
#include <vector>

#include "catch.hpp"
#include "support/refusal.hpp"

using heed::bhnd;
using heed::bnhd;
using heed::split_heads;
using heed::view;
using heed::writable_view;

namespace {
constexpr heed::size_type B = 2, H = 3, N = 4, D = 5;
}

TEST_CASE("bhnd and bnhd find the element that their names say") {
  std::vector<int> numbers(B * H * N * D);
  std::iota(numbers.begin(), numbers.end(), 0);
  const auto heads_first = bhnd(numbers.data(), B, H, N, D);
  const auto rows_first = bnhd(numbers.data(), B, N, H, D);
  for (heed::size_type b = 0; b < B; ++b)
    for (heed::size_type h = 0; h < H; ++h)
      for (heed::size_type i = 0; i < N; ++i)
        for (heed::size_type c = 0; c < D; ++c) {
          CHECK(heads_first(b, h, i, c) == ((b * H + h) * N + i) * D + c);
          CHECK(rows_first(b, h, i, c) == ((b * N + i) * H + h) * D + c);
        }
  CHECK(rows_first.batch == B);
  CHECK(rows_first.heads == H);
  CHECK(rows_first.rows == N);
  CHECK(rows_first.cols == D);
}

TEST_CASE("head cuts rows out of one head") {
  std::vector<int> numbers(B * H * N * D);
  std::iota(numbers.begin(), numbers.end(), 0);
  const auto tensor = bnhd(numbers.data(), B, N, H, D);
  const auto head = tensor.head(1, 2, 1, 2);
  CHECK(head.rows == 2);
  CHECK(head.cols == D);
  for (heed::size_type i = 0; i < 2; ++i)
    for (heed::size_type c = 0; c < D; ++c) CHECK(head(i, c) == tensor(1, 2, i + 1, c));
}

TEST_CASE("view is of any Eigen object that has memory, in place") {
  Eigen::MatrixXd columns = Eigen::MatrixXd::Random(6, 7);
  const heed::rows<double> rows = columns;
  Eigen::VectorXd vector = Eigen::VectorXd::Random(9);
  const auto check = [](const auto& object) {
    const auto v = view(object);
    CHECK(v.batch == 1);
    CHECK(v.heads == 1);
    REQUIRE(v.rows == object.rows());
    REQUIRE(v.cols == object.cols());
    for (heed::size_type i = 0; i < v.rows; ++i)
      for (heed::size_type c = 0; c < v.cols; ++c) CHECK(&v(0, 0, i, c) == &object.coeffRef(i, c));
  };
  check(columns);
  check(rows);
  check(columns.transpose());
  check(columns.block(1, 2, 3, 4));
  check(columns.row(2));
  check(columns.col(3));
  check(vector.head(4));
  check(vector.transpose());
  check(Eigen::Map<const Eigen::Matrix<double, 2, 3>, 0, Eigen::Stride<20, 2>>(columns.data()));
}

TEST_CASE("writable_view writes to a matrix, and to a block or map made on the spot") {
  Eigen::MatrixXf m = Eigen::MatrixXf::Zero(4, 5);
  writable_view(m)(0, 0, 1, 2) = 1;
  writable_view(m.block(2, 2, 2, 2))(0, 0, 1, 1) = 2;
  writable_view(Eigen::Map<Eigen::MatrixXf>(m.data(), 4, 5))(0, 0, 0, 4) = 3;
  writable_view(m.col(0).tail(2))(0, 0, 0, 0) = 4;
  Eigen::MatrixXf want = Eigen::MatrixXf::Zero(4, 5);
  want(1, 2) = 1;
  want(3, 3) = 2;
  want(0, 4) = 3;
  want(2, 0) = 4;
  CHECK(m == want);
}

TEST_CASE("split_heads finds head h of token i of sequence b in packed columns") {
  const heed::rows<double> packed = heed::rows<double>::Random(B * N, H * D);
  const Eigen::MatrixXd columns = packed;
  for (const auto& heads : {split_heads(view(packed), H, B), split_heads(view(columns), H, B)}) {
    CHECK(heads.batch == B);
    CHECK(heads.heads == H);
    CHECK(heads.rows == N);
    CHECK(heads.cols == D);
    for (heed::size_type b = 0; b < B; ++b)
      for (heed::size_type h = 0; h < H; ++h)
        for (heed::size_type i = 0; i < N; ++i)
          for (heed::size_type c = 0; c < D; ++c)
            CHECK(heads(b, h, i, c) == packed(b * N + i, h * D + c));
  }
}

TEST_CASE("a writable view is also a readable one") {
  float number = 3;
  const heed::tensor_view<const float> readable =
      bhnd(&number, heed::size_type(1), heed::size_type(1), heed::size_type(1), heed::size_type(1));
  CHECK(readable(0, 0, 0, 0) == 3);
}

TEST_CASE("index_list looks at vectors, arrays and Eigen vectors") {
  const std::vector<heed::size_type> vector{1, 2, 3};
  const std::array<heed::size_type, 3> array{1, 2, 3};
  const Eigen::Matrix<heed::size_type, 3, 1> eigen(1, 2, 3);
  for (const heed::index_list& list :
       {heed::index_list(vector), heed::index_list(array), heed::index_list(eigen)}) {
    CHECK(list.size == 3);
    CHECK(list[2] == 3);
    CHECK(std::accumulate(list.begin(), list.end(), heed::size_type(0)) == 6);
  }
  CHECK(heed::index_list().size == 0);
}

TEST_CASE("index_list reads integers of 32 bits and of 64 by any name, in place") {
  const std::vector<std::int32_t> narrow{7, -2, 1 << 30};
  const Eigen::Matrix<std::int32_t, 1, 3> eigen(7, -2, 1 << 30);
  const std::vector<long long> wide{7, -2, 1 << 30};
  const std::array<long, 3> other{7, -2, 1 << 30};
  for (const heed::index_list& list : {heed::index_list(narrow), heed::index_list(eigen),
                                       heed::index_list(wide), heed::index_list(other)}) {
    CHECK(list.size == 3);
    CHECK(list[0] == 7);
    CHECK(list[1] == -2);
    CHECK(list[2] == 1 << 30);
  }
  CHECK(heed::index_list(narrow).data == narrow.data());
}

TEST_CASE("split_heads refuses columns and rows that do not come out even") {
  const heed::rows<double> packed = heed::rows<double>::Zero(6, 8);
  testing::check_refused([&] { split_heads(view(packed), 3); },
                         {"heed::split_heads:", "8 columns", "heads 3"});
  testing::check_refused([&] { split_heads(view(packed), 0); },
                         {"heed::split_heads:", "heads", "0"});
  testing::check_refused([&] { split_heads(view(packed), -2); }, {"heads", "-2"});
  testing::check_refused([&] { split_heads(view(packed), 2, 4); }, {"6 rows", "batch 4"});
  testing::check_refused([&] { split_heads(view(packed), 2, 0); }, {"batch", "0"});
}

TEST_CASE("dense tensors of more numbers than an index can count are refused, with their sizes") {
  constexpr heed::size_type half = heed::size_type(1) << 32;
  float number = 0;
  testing::check_refused([&] { bhnd(&number, half, half, 3, 1); },
                         {"heed::bhnd:", std::to_string(half), " * 3 * 1"});
  testing::check_refused([&] { bnhd(&number, 1, half, half, 2); },
                         {"heed::bnhd:", std::to_string(half)});
  CHECK(bhnd(&number, half, half, 0, 3).rows == 0);
}
