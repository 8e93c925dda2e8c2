#include <heed/executor.hpp>
#include <heed/isa.hpp>
#include <heed/projection.hpp>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "support/example.hpp"
#include "support/isas.hpp"
#include "support/refusal.hpp"

namespace {

std::atomic<long> allocations{0};

template <typename Scalar>
using columns = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;

/// X W as it is written down, every sum in ascending order, rounded to To once.
template <typename Acc, typename To, typename X, typename W>
heed::rows<To> plain_product(const X& x, const W& w) {
  heed::rows<To> y(x.rows(), w.cols());
  for (heed::size_type i = 0; i < x.rows(); ++i)
    for (heed::size_type c = 0; c < w.cols(); ++c) {
      Acc sum = 0;
      for (heed::size_type k = 0; k < x.cols(); ++k) sum += Acc(x(i, k)) * Acc(w(k, c));
      y(i, c) = To(sum);
    }
  return y;
}

/// A matrix inside a larger one that is NaN wherever the matrix is not: what is read beside the
/// elements shows, what is written too.
template <typename Scalar>
class surrounded {
 public:
  surrounded(heed::size_type rows, heed::size_type cols, heed::size_type row_stride,
             heed::size_type col_stride)
      : memory_(3 + (rows + 1) * row_stride + (cols + 1) * col_stride, 1),
        view(memory_.data() + 3, rows, cols,
             Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(col_stride, row_stride)) {
    memory_.setConstant(std::numeric_limits<Scalar>::quiet_NaN());
  }
  /// How many numbers the memory holds: rows * cols when all elements and nothing else were
  /// written.
  heed::size_type numbers() const {
    heed::size_type count = 0;
    for (heed::size_type i = 0; i < memory_.size(); ++i)
      count += !std::isnan(static_cast<float>(memory_(i)));
    return count;
  }

 private:
  columns<Scalar> memory_;

 public:
  Eigen::Map<columns<Scalar>, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>> view;
};

/// Row-major, column-major, or neither.
template <typename Scalar>
surrounded<Scalar> place(heed::size_type rows, heed::size_type cols, int order) {
  switch (order) {
    case 0:
      return {rows, cols, cols + 5, 1};
    case 1:
      return {rows, cols, 1, rows + 3};
    default:
      return {rows, cols, 2 * cols + 1, 2};
  }
}

struct shape {
  heed::size_type n, depth, cols;
};

/// Both kernels (few rows and many), every remainder of the register tiles (8 x 48, 4 x 24, 4 x 8
/// and so on) and of the blocks of depth.
const shape shapes[] = {{0, 5, 7},     {3, 0, 7},   {3, 5, 0},    {1, 1, 1},      {1, 17, 49},
                        {2, 40, 600},  {4, 9, 15},  {4, 300, 47}, {5, 8, 48},     {5, 513, 16},
                        {7, 16, 17},   {8, 31, 31}, {9, 33, 8},   {16, 15, 33},   {17, 64, 64},
                        {23, 7, 97},   {31, 48, 3}, {64, 513, 5}, {20, 1025, 60}, {257, 3, 50},
                        {300, 20, 24}, {513, 2, 2}};

template <typename Scalar>
void check_every_order(heed::isa target) {
  using acc = heed::accumulator_t<Scalar>;
  heed::attention_options options;
  options.execution.target = target;
  heed::workspace memory;
  for (const shape& s : shapes) {
    const heed::rows<Scalar> x = testing::random_rows<Scalar>(s.n, s.depth, 1),
                             w = testing::random_rows<Scalar>(s.depth, s.cols, 2);
    const auto same = plain_product<acc, Scalar>(x, w);
    const auto exact = plain_product<testing::wider_t<Scalar>, testing::wider_t<Scalar>>(x, w);
    for (int order = 0; order < 27; ++order) {
      CAPTURE(testing::name_of(target), s.n, s.depth, s.cols, order);
      auto x_in = place<Scalar>(s.n, s.depth, order % 3),
           w_in = place<Scalar>(s.depth, s.cols, order / 3 % 3);
      auto out = place<Scalar>(s.n, s.cols, order / 9);
      x_in.view = x;
      w_in.view = w;
      heed::project_into(x_in.view, w_in.view, out.view, options, memory);
      CHECK(out.numbers() == s.n * s.cols);
      testing::check_as_exact_as(heed::rows<Scalar>(out.view), same, exact);
    }
  }
}

template <typename Scalar>
bool same_bits(const heed::rows<Scalar>& a, const heed::rows<Scalar>& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() &&
         (a.size() == 0 || std::memcmp(a.data(), b.data(),
                                       sizeof(Scalar) * static_cast<std::size_t>(a.size())) == 0);
}

}  // namespace

void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

TEMPLATE_TEST_CASE("project is as exact as the plain product, in every order of every operand", "",
                   float, double, Eigen::half, Eigen::bfloat16) {
  for (const heed::isa target : testing::isas()) check_every_order<TestType>(target);
}

TEST_CASE("project_qkv is three products, bitwise, at every number of threads") {
  for (const heed::isa target : testing::isas())
    for (const heed::size_type n : {1, 4, 5, 70, 600}) {
      CAPTURE(testing::name_of(target), n);
      const auto x = testing::random_rows<float>(n, 40, 1),
                 w_q = testing::random_rows<float>(40, 100, 2);
      const columns<float> w_k = testing::random_rows<float>(40, 7, 3),
                           w_v = testing::random_rows<float>(40, 64, 4);
      heed::attention_options options;
      options.execution.target = target;
      const auto q = heed::project(x, w_q, options), k = heed::project(x, w_k, options),
                 v = heed::project(x, w_v, options);
      for (const int threads : {1, 2, 3, 8}) {
        options.execution.threads = threads;
        const auto all = heed::project_qkv(x, w_q, w_k, w_v, options);
        CHECK(same_bits(all.query, q));
        CHECK(same_bits(all.key, k));
        CHECK(same_bits(all.value, v));
      }
      heed::thread_executor pool(3);
      options.execution.threads = 1;
      options.execution.executor = &pool;
      CHECK(same_bits(heed::project(x, w_q, options), q));
    }
}

TEST_CASE("NaN and infinity in a row of x reach that row, in a column of the weight that column") {
  const float inf = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  for (const heed::isa target : testing::isas())
    for (const heed::size_type n : {3, 21})
      for (const bool column_major : {false, true}) {
        CAPTURE(testing::name_of(target), n, column_major);
        heed::attention_options options;
        options.execution.target = target;
        heed::rows<float> x = testing::random_rows<float>(n, 37, 1),
                          w = testing::random_rows<float>(37, 53, 2);
        const auto project = [&] {
          return column_major ? heed::project(x, columns<float>(w), options)
                              : heed::project(x, w, options);
        };
        const heed::rows<float> clean = project();
        x(0, 36) = nan;
        x(n - 1, 5) = inf;
        w(36, 52) = nan;
        const heed::rows<float> got = project();
        for (heed::size_type i = 0; i < n; ++i)
          for (heed::size_type c = 0; c < 53; ++c) {
            if (i == 0 || c == 52) {
              CHECK(std::isnan(got(i, c)));
            } else if (i == n - 1) {
              CHECK(got(i, c) == (w(5, c) > 0 ? inf : -inf));
            } else {
              CHECK(got(i, c) == clean(i, c));
            }
          }
      }
}

TEST_CASE("A row of many does not depend on the others") {
  for (const heed::isa target : testing::isas()) {
    heed::attention_options options;
    options.execution.target = target;
    const auto x = testing::random_rows<float>(300, 130, 1),
               w = testing::random_rows<float>(130, 77, 2);
    const auto whole = heed::project(x, w, options);
    for (const heed::size_type n : {1, 4, 5, 13})
      CHECK(same_bits(heed::project(x.middleRows(11, n), w, options),
                      heed::rows<float>(whole.middleRows(11, n))));
  }
}

TEST_CASE("project_into allocates nothing once the workspace has grown") {
  const auto x = testing::random_rows<Eigen::half>(50, 40, 1),
             w = testing::random_rows<Eigen::half>(40, 30, 2);
  columns<Eigen::half> out(50, 30);
  heed::workspace memory;
  heed::project_into(x, w, out, {}, memory);
  const long before = allocations;
  heed::project_into(x, w, out, {}, memory);
  heed::project_into(x.topRows(2), w.leftCols(7), out.block(3, 4, 2, 7), {}, memory);
  CHECK(allocations == before);
}

TEST_CASE("Scalars without a kernel use Eigen's product") {
  const auto x = testing::random_rows<long double>(9, 20, 1),
             w = testing::random_rows<long double>(20, 11, 2);
  testing::check_as_exact_as(heed::project(x, w), plain_product<long double, long double>(x, w),
                             plain_product<long double, long double>(x, w), 20);
}

TEST_CASE("project_into refuses sizes that do not fit, and writes nothing") {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(3, 4), w = Eigen::MatrixXf::Ones(4, 5);
  Eigen::MatrixXf out = Eigen::MatrixXf::Constant(3, 5, 7), small(2, 5), narrow(3, 6);
  heed::workspace memory;
  testing::check_refused([&] { heed::project_into(x, w.topRows(3), out, {}, memory); },
                         {"heed::project_into:", "weight: rows 3", "x's d_model 4"});
  testing::check_refused([&] { heed::project_into(x, w, small, {}, memory); },
                         {"out: rows 2", "x's rows 3"});
  testing::check_refused([&] { heed::project_into(x, w, narrow, {}, memory); },
                         {"out: columns 6", "weight's columns 5"});
  heed::attention_options options;
  options.execution.threads = 0;
  testing::check_refused([&] { heed::project_into(x, w, out, options, memory); },
                         {"heed::project_into:", "execution.threads", "0"});
  CHECK(out == Eigen::MatrixXf::Constant(3, 5, 7));
}

TEST_CASE("project_into refuses a d_model whose scratch no index can count, and writes nothing") {
  using any_strides = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
  using matrix = Eigen::Map<const Eigen::MatrixXf, 0, any_strides>;
  const float number = 1;
  for (const int shift : {62, 61, 50}) {
    const heed::size_type d_model = heed::size_type{1} << shift;
    const matrix x(&number, 1, d_model, any_strides(0, 0)),
        w(&number, d_model, 1, any_strides(0, 0));
    Eigen::MatrixXf out = Eigen::MatrixXf::Constant(1, 1, 7);
    heed::workspace memory;
    const std::string scratch = "scratch for x's d_model, in bytes: " + std::to_string(d_model);
    testing::check_refused([&] { heed::project_into(x, w, out, {}, memory); },
                           {"heed::project_into: " + scratch});
    testing::check_refused([&] { heed::project_qkv(x, w, w, w); },
                           {"heed::project_qkv: " + scratch});
    CHECK(out(0, 0) == 7);
  }
}
