#include <heed/backward.hpp>

#include "support/gradient.hpp"
#include "support/variations.hpp"

using heed::attention_backward;
using heed::attention_backward_into;
using testing::backward_example;
using testing::example;
using testing::gradients;

namespace {

/// Nothing, one, and one less, as many and one more than the sides of tiles and panels (8 to 48)
/// and than a block of queries or keys (48, 96); d_v that is not d_k.
std::vector<testing::sizes> gradient_sizes() {
  return {{0, 5, 8, 8},     {3, 0, 8, 8},     {1, 1, 1, 1},     {7, 9, 7, 5},    {8, 8, 1, 7},
          {9, 7, 64, 65},   {23, 25, 65, 33}, {24, 24, 7, 64},  {25, 23, 16, 1}, {47, 49, 64, 64},
          {48, 48, 65, 31}, {49, 47, 128, 8}, {95, 97, 8, 128}, {96, 96, 7, 7},  {97, 95, 16, 24},
          {97, 193, 17, 9}, {1, 130, 64, 16}, {130, 1, 16, 16}};
}

template <typename Scalar>
void check_same(const char* what, const heed::attention_gradients<Scalar>& got,
                const heed::attention_gradients<Scalar>& want) {
  INFO(what);
  CHECK(got.query == want.query);
  CHECK(got.key == want.key);
  CHECK(got.value == want.value);
}

}  // namespace

TEMPLATE_TEST_CASE("gradients are as exact as those of the reference", "", float, double,
                   Eigen::bfloat16, Eigen::half) {
  for (const testing::sizes& s : gradient_sizes())
    testing::for_each_variation<TestType>(
        s, [&](const example<TestType>& forward, const std::string& name) {
          CAPTURE(name, s.n_q, s.n_kv, s.d_k, s.d_v);
          const backward_example<TestType> e(forward);
          const testing::judged_gradients<TestType> right(e);
          for (const heed::isa target : testing::isas()) {
            INFO(testing::name_of(target));
            right.check(e.run(testing::backward_on(target)));
          }
        });
}

TEST_CASE("gradients over lengths that no block divides, queries and keys of different lengths") {
  for (const heed::causal alignment : {heed::causal::top_left, heed::causal::bottom_right})
    for (const testing::sizes& s :
         {testing::sizes{300, 300, 32, 32}, {210, 401, 32, 16}, {401, 210, 8, 24}}) {
      example<float> forward(s.n_q, s.n_kv, s.d_k, s.d_v);
      forward.options.causal = alignment;
      for (const heed::size_type window : {-1, 110}) {
        CAPTURE(int(alignment), s.n_q, s.n_kv, window);
        forward.options.window_left = window;
        const backward_example<float> e(forward);
        const testing::judged_gradients<float> right(e);
        for (const heed::isa target : testing::isas()) {
          INFO(testing::name_of(target));
          right.check(e.run(testing::backward_on(target)));
        }
      }
    }
}

TEST_CASE("the gradient of any other scalar is that of the reference") {
  const backward_example<long double> e(example<long double>(20, 30, 8, 4));
  CHECK(same_gradients(e.run(testing::backward_on(heed::isa::automatic)), e.reference()));
}

TEMPLATE_TEST_CASE("every Eigen argument is a way in and out", "", float, Eigen::bfloat16) {
  using columns = Eigen::Matrix<TestType, Eigen::Dynamic, Eigen::Dynamic>;
  using Acc = heed::accumulator_t<TestType>;
  const backward_example<TestType> e(example<TestType>(99, 130, 33, 16));
  const auto& [query, key, value] = std::tie(e.forward.query, e.forward.key, e.forward.value);
  const columns q = query, k = key, v = value, out = e.out, g = e.grad_out;  // column-major
  for (const heed::isa target : testing::isas()) {
    INFO(testing::name_of(target));
    heed::attention_options options;
    options.execution.target = target;
    const heed::attention_gradients<TestType> want =
        attention_backward(query, key, value, e.out, e.lse, e.grad_out, options);
    check_same("column-major", attention_backward(q, k, v, out, e.lse, g, options), want);
    check_same("one of each order",
               attention_backward(query, k, value, out, e.lse, e.grad_out, options), want);
    check_same("only grad_out is column-major",
               attention_backward(query, key, value, e.out, e.lse, g, options), want);

    heed::workspace memory;
    columns dq(99, 33), dk(130, 33), dv(130, 16);
    attention_backward_into(query, key, value, e.out, e.lse, e.grad_out, dq, dk, dv, options,
                            memory);
    check_same<TestType>("column-major outputs", {dq, dk, dv}, want);

    heed::rows<TestType> packed(130, 33 + 33 + 16), to(140, 90);
    packed.setZero();
    packed.topLeftCorner(99, 33) = query;
    packed.middleCols(33, 33) = key;
    packed.rightCols(16) = value;
    to.setConstant(TestType(7));
    heed::rows<Acc> lse(130, 3);
    lse.col(1).head(99) = e.lse;
    attention_backward_into(packed.topLeftCorner(99, 33), packed.middleCols(33, 33),
                            packed.rightCols(16), e.out, lse.col(1).head(99), e.grad_out,
                            to.block(1, 1, 99, 33), to.block(2, 35, 130, 33),
                            to.block(5, 70, 130, 16), options, memory);
    check_same<TestType>(
        "blocks of wider matrices",
        {to.block(1, 1, 99, 33), to.block(2, 35, 130, 33), to.block(5, 70, 130, 16)}, want);
    to.block(1, 1, 99, 33).setConstant(TestType(7));
    to.block(2, 35, 130, 33).setConstant(TestType(7));
    to.block(5, 70, 130, 16).setConstant(TestType(7));
    CHECK((to.array() == TestType(7)).all());

    check_same("rows in reverse",
               attention_backward(columns(query.colwise().reverse()).colwise().reverse(), key,
                                  value, e.out, e.lse, e.grad_out, options),
               want);
    const heed::attention_gradients<TestType, 33, 16> fixed =
        attention_backward<TestType, 33, 16>(query, key, value, e.out, e.lse, e.grad_out, options);
    check_same<TestType>("template arguments", {fixed.query, fixed.key, fixed.value}, want);
  }
}

TEMPLATE_TEST_CASE("of 16-bit numbers out may be given in float", "", Eigen::bfloat16,
                   Eigen::half) {
  const backward_example<TestType> e(example<TestType>(50, 130, 16, 24));
  const auto forward = heed::reference_attention_with_lse(e.forward.query.template cast<float>(),
                                                          e.forward.key.template cast<float>(),
                                                          e.forward.value.template cast<float>());
  // what is exact, and what the direct formula makes of it
  const backward_example<double> wide = e.template cast<double>();
  const heed::attention_gradients<double> exact = heed::reference_attention_backward(
      wide.forward.query, wide.forward.key, wide.forward.value,
      heed::rows<double>(forward.out.template cast<double>()), wide.lse, wide.grad_out);
  const auto same = heed::reference_attention_backward(
      e.forward.query, e.forward.key, e.forward.value, forward.out, e.lse, e.grad_out);
  for (const heed::isa target : testing::isas()) {
    INFO(testing::name_of(target));
    heed::attention_options options;
    options.execution.target = target;
    const auto got = attention_backward(e.forward.query, e.forward.key, e.forward.value,
                                        forward.out, e.lse, e.grad_out, options);
    testing::check_as_exact_as(got.query, same.query, exact.query);
    testing::check_as_exact_as(got.key, same.key, exact.key);
    testing::check_as_exact_as(got.value, same.value, exact.value);
    // an output that was rounded to the 8 bits of a bfloat16 is not as good
    CHECK(got.query != attention_backward(e.forward.query, e.forward.key, e.forward.value, e.out,
                                          e.lse, e.grad_out, options)
                           .query);
  }
}

TEMPLATE_TEST_CASE("gradients do not depend on the number of threads, bit for bit", "", float,
                   Eigen::bfloat16) {
  for (const testing::sizes& s :
       {testing::sizes{1, 1000, 16, 16}, {300, 500, 32, 16}, {48, 64, 8, 8}, {0, 3, 4, 4}}) {
    const example<TestType> plain(s.n_q, s.n_kv, s.d_k, s.d_v);
    testing::for_each_variation<TestType>(
        s, [&](const example<TestType>& forward, const std::string& name) {
          const backward_example<TestType> e(forward);
          const gradients<TestType> one = e.run(testing::backward_on(heed::isa::automatic, 1));
          for (const int threads : {2, 7}) {
            CAPTURE(name, s.n_q, s.n_kv, threads);
            CHECK(same_gradients(e.run(testing::backward_on(heed::isa::automatic, threads)), one));
          }
        });
  }
}

TEMPLATE_TEST_CASE("the gradient of a row alone is that of the row in its block, bit for bit", "",
                   float, double, Eigen::bfloat16) {
  const backward_example<TestType> e(example<TestType>(110, 230, 24, 16));
  for (const heed::isa target : testing::isas()) {
    INFO(testing::name_of(target));
    const gradients<TestType> all = e.run(testing::backward_on(target));
    for (const heed::size_type i : {0, 1, 7, 8, 47, 48, 95, 96, 109}) {
      CAPTURE(i);
      backward_example<TestType> one = e;
      one.forward.query = e.forward.query.row(i);
      one.out = e.out.row(i);
      one.grad_out = e.grad_out.row(i);
      one.lse = e.lse.segment(i, 1);
      one.grad_lse = e.grad_lse.segment(i, 1);
      CHECK(one.run(testing::backward_on(target)).query == all.query.row(i));
    }
  }
}

TEST_CASE("the order of the keys is that of their gradients, and means nothing to the queries") {
  const backward_example<float> e(example<float>(50, 200, 16, 8));
  std::vector<int> order(200);
  for (int j = 0; j < 200; ++j) order[std::size_t(j)] = (j * 77 + 5) % 200;
  backward_example<float> shuffled = e;
  for (int j = 0; j < 200; ++j) {
    shuffled.forward.key.row(j) = e.forward.key.row(order[std::size_t(j)]);
    shuffled.forward.value.row(j) = e.forward.value.row(order[std::size_t(j)]);
  }
  const testing::judged_gradients<float> right(e);
  for (const heed::isa target : testing::isas()) {
    INFO(testing::name_of(target));
    const gradients<float> got = shuffled.run(testing::backward_on(target));
    gradients<float> back = got;
    for (int j = 0; j < 200; ++j) {
      back.key.row(order[std::size_t(j)]) = got.key.row(j);
      back.value.row(order[std::size_t(j)]) = got.value.row(j);
    }
    right.check(back);
  }
}

// More for all keys changes no weight. A gradient of scores is P (dP - D): each dP and D is wrong
// by d_v + 1 roundings of its terms at most, P by those of the score and of exp2, some ten.
TEST_CASE("the gradients of a row's scores sum to what comes in for its lse") {
  const heed::size_type d_k = 16, d_v = 24;
  example<float> forward(60, 230, d_k, d_v);
  forward.bias = testing::random_rows<float>(60, 230, 4);
  const backward_example<float> e(forward);
  const double size = double(testing::gradient_scales(e).bias);
  for (const heed::isa target : testing::isas()) {
    INFO(testing::name_of(target));
    const heed::rows<double> bias = e.run(testing::backward_on(target)).bias.cast<double>();
    const double bound = double(d_k + d_v + 12) * 0x1p-24 * size;
    CHECK((bias.rowwise().sum() - e.grad_lse.cast<double>()).cwiseAbs().maxCoeff() <= bound);
    CHECK(bias.norm() > 100 * bound);
  }
}

TEST_CASE("keys in parts, with the results of the whole, have the gradients of the whole") {
  const backward_example<float> e(example<float>(70, 230, 16, 24));
  const testing::judged_gradients<float> right(e);
  for (const heed::isa target : testing::isas())
    for (const heed::size_type cut : {0, 1, 96, 100, 230}) {
      CAPTURE(testing::name_of(target), cut);
      backward_example<float> left = e, rest = e;
      left.forward.key = e.forward.key.topRows(cut);
      left.forward.value = e.forward.value.topRows(cut);
      rest.forward.key = e.forward.key.bottomRows(230 - cut);
      rest.forward.value = e.forward.value.bottomRows(230 - cut);
      const gradients<float> a = left.run(testing::backward_on(target)),
                             b = rest.run(testing::backward_on(target));
      gradients<float> sum = b;
      sum.query += a.query;
      sum.key.resize(230, 16), sum.key << a.key, b.key;
      sum.value.resize(230, 24), sum.value << a.value, b.value;
      right.check(sum);
    }
}

TEST_CASE("attention_backward_into can use its workspace again for another size") {
  heed::workspace memory;
  for (const testing::sizes& s :
       {testing::sizes{100, 90, 64, 32}, {3, 200, 8, 8}, {150, 10, 128, 5}}) {
    const backward_example<double> e(example<double>(s.n_q, s.n_kv, s.d_k, s.d_v));
    heed::attention_gradients<double> got{heed::rows<double>(s.n_q, s.d_k),
                                          heed::rows<double>(s.n_kv, s.d_k),
                                          heed::rows<double>(s.n_kv, s.d_v)};
    attention_backward_into(e.forward.query, e.forward.key, e.forward.value, e.out, e.lse,
                            e.grad_out, got.query, got.key, got.value, {}, memory);
    check_same("used again", got,
               attention_backward(e.forward.query, e.forward.key, e.forward.value, e.out, e.lse,
                                  e.grad_out));
  }
}

TEST_CASE("a head of no dimensions has gradients of no columns") {
  for (const heed::size_type n : {0, 1, 100}) {
    const heed::rows<float> none(n, 0), value = testing::random_rows<float>(n, 4, 1);
    const auto forward = heed::attention_with_lse(none, none, value);
    const auto got = attention_backward(none, none, value, forward.out, forward.lse, value);
    CHECK(got.query.rows() == n);
    CHECK(got.query.cols() == 0);
    // every weight is 1 / n
    if (n > 0)
      CHECK((got.value.rowwise() - value.colwise().mean()).cwiseAbs().maxCoeff() <=
            float(n) * 0x1p-23f * value.cwiseAbs().maxCoeff());
    const auto of_values = heed::attention_with_lse(value, value, none);
    CHECK(attention_backward(value, value, none, of_values.out, of_values.lse, none).query ==
          heed::rows<float>::Zero(n, 4));
  }
}
