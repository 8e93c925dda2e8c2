#include <heed/backward.hpp>
#include <heed/merge.hpp>
#include <heed/reference.hpp>

#include <unsupported/Eigen/AutoDiff>

#include <limits>
#include <vector>

#include "support/differences.hpp"
#include "support/refusal.hpp"

namespace {

/// The attention of an example's queries to its keys [first, end).
heed::attention_result<double> part_of(const testing::example<double>& e, heed::size_type first,
                                       heed::size_type end) {
  return heed::reference_attention_with_lse(e.query, e.key.middleRows(first, end - first),
                                            e.value.middleRows(first, end - first));
}

void check_same(const heed::attention_result<double>& got,
                const heed::attention_result<double>& whole) {
  CHECK(testing::max_error(got.out, whole.out) <=
        1e-15L * 8);  // some roundings of numbers of size 1
  CHECK(testing::max_error(got.lse, whole.lse) <= 1e-15L * 8);
}

}  // namespace

TEST_CASE("keys cut anywhere and merged are the whole") {
  const testing::example<double> e(5, 17, 8, 4);
  const auto whole = part_of(e, 0, 17);
  for (heed::size_type cut = 0; cut <= 17; ++cut) {
    CAPTURE(cut);
    check_same(heed::merge(part_of(e, 0, cut), part_of(e, cut, 17)), whole);
    check_same(heed::merge(part_of(e, cut, 17), part_of(e, 0, cut)), whole);
  }
}

TEST_CASE("many parts merge to the whole, some of them empty") {
  const testing::example<double> e(5, 40, 8, 4);
  std::vector<heed::attention_result<double>> parts;
  const heed::size_type cuts[] = {0, 0, 1, 9, 9, 9, 33, 40, 40};
  for (int n = 0; n + 1 < 9; ++n) parts.push_back(part_of(e, cuts[n], cuts[n + 1]));
  check_same(heed::merge(parts.begin(), parts.end()), part_of(e, 0, 40));
}

TEST_CASE("whatever the output of a part that saw no key holds does no harm") {
  const testing::example<double> e(3, 6, 8, 4);
  const auto whole = part_of(e, 0, 6);
  auto empty = part_of(e, 0, 0);
  empty.out.setConstant(std::numeric_limits<double>::quiet_NaN());
  for (const auto& merged : {heed::merge(whole, empty), heed::merge(empty, whole)}) {
    CHECK(merged.out == whole.out);
    CHECK(merged.lse == whole.lse);
  }
  const auto nothing = heed::merge(empty, empty);
  CHECK((nothing.out.array() == 0).all());
  CHECK((nothing.lse.array() == -std::numeric_limits<double>::infinity()).all());
}

TEST_CASE("parts whose scores are far apart neither overflow nor vanish") {
  heed::attention_result<float> low(1, 1), high(1, 1);
  low.out << 1;
  low.lse << -500;
  high.out << 2;
  high.lse << 500;
  CHECK(heed::merge(low, high).out(0, 0) == 2);
  CHECK(heed::merge(low, high).lse(0) == 500);
  high.lse << -500;
  CHECK(heed::merge(low, high).out(0, 0) == 1.5f);
  CHECK(heed::merge(low, high).lse(0) == Approx(-500 + std::log(2.0)));
}

TEST_CASE("parts of other sizes are refused") {
  const heed::attention_result<double> two_rows(2, 4), three_rows(3, 4), narrow(2, 3);
  testing::check_refused([&] { heed::merge(two_rows, three_rows); }, {"heed::merge", "n_q 3", "2"});
  testing::check_refused([&] { heed::merge(two_rows, narrow); },
                         {"heed::merge", "head_dim 3", "4"});
  testing::check_refused([&] { heed::attention_result<double>(-1, 4); },
                         {"heed::attention_result: n_q", "-1"});
  std::vector<heed::attention_result<double>> none;
  testing::check_refused([&] { heed::merge(none.begin(), none.end()); },
                         {"heed::merge", "part", "0"});
}

TEST_CASE(
    "an lse of +infinity or NaN makes the row NaN where another part saw keys, and only that row") {
  heed::attention_result<float> a(3, 2), b(3, 2);
  a.out.setOnes();
  b.out.setOnes();
  a.lse << std::numeric_limits<float>::infinity(), 0, std::numeric_limits<float>::quiet_NaN();
  b.lse << 0, 0, 1;
  for (const auto& merged : {heed::merge(a, b), heed::merge(b, a)})
    for (heed::size_type i = 0; i < 3; ++i) {
      CHECK(std::isnan(merged.lse(i)) == (i != 1));
      CHECK(std::isnan(merged.out(i, 0)) == (i != 1));
    }
}

namespace {

/// Parts of random numbers, with a row that some and a row that all have not seen.
template <typename Scalar>
std::vector<heed::attention_result<Scalar>> random_parts(std::size_t count) {
  std::vector<heed::attention_result<Scalar>> parts;
  for (unsigned n = 0; n < count; ++n) {
    parts.emplace_back(5, 3);
    parts.back().out = testing::random_rows<Scalar>(5, 3, 2 * n);
    parts.back().lse = testing::random_rows<heed::accumulator_t<Scalar>>(5, 1, 2 * n + 1);
    if (n % 2 == 1) parts.back().lse(2) = -std::numeric_limits<float>::infinity();
    parts.back().lse(4) = -std::numeric_limits<float>::infinity();
  }
  return parts;
}
template <typename To, typename From>
heed::attention_result<To> cast(const heed::attention_result<From>& from) {
  heed::attention_result<To> to(from.out.rows(), from.out.cols());
  to.out = from.out.template cast<To>();
  to.lse = from.lse.template cast<heed::accumulator_t<To>>();
  return to;
}

}  // namespace

TEST_CASE("merge_backward is the gradient of merge, by differences") {
  const auto count = GENERATE(std::size_t(1), std::size_t(2), std::size_t(5));
  const auto parts = random_parts<double>(count);
  const auto grad = random_parts<double>(1).front();  // of out, and of lse: of rows that see a key
  heed::attention_result<double> grads = grad;
  grads.lse(4) = 0.5;
  const auto got = heed::merge_backward(parts.begin(), parts.end(), grads);
  REQUIRE(got.size() == count);
  std::vector<heed::attention_result<long double>> wide;
  for (const auto& part : parts) wide.push_back(cast<long double>(part));
  const auto loss = [&] {
    const auto merged = heed::merge(wide.begin(), wide.end());
    return testing::inner(merged.out, grads.out) +
           testing::inner(merged.lse.head(4), grads.lse.head(4));
  };
  for (std::size_t n = 0; n < count; ++n) {
    CAPTURE(n);
    heed::rows<long double> out = wide[n].out, lse = wide[n].lse;
    testing::check_differences(got[n].out, out, [&] {
      wide[n].out = out;
      return loss();
    });
    wide[n].out = out;
    heed::rows<long double> seen = lse.topRows(n % 2 == 1 ? 2 : 4);
    testing::check_differences(got[n].lse.head(seen.rows()), seen, [&] {
      wide[n].lse.head(seen.rows()) = seen;
      return loss();
    });
    wide[n].lse = lse;
    CHECK(got[n].lse(4) == 0);
    CHECK(got[n].out.row(4).isZero(0));
    if (n % 2 == 1) {
      CHECK(got[n].lse(2) == 0);
      CHECK(got[n].out.row(2).isZero(0));
    }
  }
}

TEST_CASE("the gradients of merged parts are those of attention over all keys") {
  const testing::example<double> e(5, 17, 8, 4);
  const heed::rows<double> grad_out = testing::random_rows<double>(5, 4, 9);
  const heed::row_vector<double> grad_lse = testing::random_rows<double>(5, 1, 10);
  const auto whole = part_of(e, 0, 17), a = part_of(e, 0, 6), b = part_of(e, 6, 11);
  const auto want = heed::reference_attention_backward(
      e.query, e.key, e.value, whole.out, whole.lse, grad_out, {}, heed::grad_lse(grad_lse));
  heed::attention_result<double> grad(5, 4);
  grad.out = grad_out;
  grad.lse = grad_lse;
  const auto c = part_of(e, 11, 17), ab = heed::merge(a, b);
  const auto top = heed::merge_backward(ab, c, grad);  // parts of parts
  const auto of_ab = heed::merge_backward(a, b, top[0]);
  heed::rows<double> query = heed::rows<double>::Zero(5, 8);
  const auto check = [&](const auto& part, const auto& g, heed::size_type first,
                         heed::size_type count) {
    const auto got = heed::reference_attention_backward(e.query, e.key.middleRows(first, count),
                                                        e.value.middleRows(first, count), part.out,
                                                        part.lse, g.out, {}, heed::grad_lse(g.lse));
    // some tens of roundings of numbers of about 1
    CHECK(testing::max_error(got.key, want.key.middleRows(first, count)) <= 64 * 0x1p-53L);
    CHECK(testing::max_error(got.value, want.value.middleRows(first, count)) <= 64 * 0x1p-53L);
    query += got.query;
  };
  check(a, of_ab[0], 0, 6);
  check(b, of_ab[1], 6, 5);
  check(c, top[1], 11, 6);
  CHECK(testing::max_error(query, want.query) <= 64 * 0x1p-53L);
}

TEST_CASE("merge_backward agrees with derivatives that merge carries") {
  using dual = Eigen::AutoDiffScalar<Eigen::Vector3d>;
  const auto parts = random_parts<double>(2);
  auto a = cast<dual>(parts[0]), b = cast<dual>(parts[1]);
  a.out(1, 2).derivatives() = Eigen::Vector3d::Unit(0);
  a.lse(1).derivatives() = Eigen::Vector3d::Unit(1);
  b.lse(1).derivatives() = Eigen::Vector3d::Unit(2);
  const auto grad = random_parts<double>(1).front();
  const auto merged = heed::merge(a, b);
  Eigen::Vector3d sum = merged.lse(1).derivatives() * grad.lse(1);
  for (heed::size_type c = 0; c < 3; ++c) sum += merged.out(1, c).derivatives() * grad.out(1, c);
  const auto got = heed::merge_backward(parts[0], parts[1], grad);
  CHECK(got[0].out(1, 2) == Approx(sum(0)).epsilon(1e-14));
  CHECK(got[0].lse(1) == Approx(sum(1)).epsilon(1e-13));
  CHECK(got[1].lse(1) == Approx(sum(2)).epsilon(1e-13));
  CHECK(heed::merge_backward(a, b, cast<dual>(grad))[1].lse(1).value() == Approx(sum(2)));
}

TEMPLATE_TEST_CASE("merge_backward is as exact as its sums", "", float, Eigen::half,
                   Eigen::bfloat16) {
  const auto parts = random_parts<TestType>(3);
  const auto grad = random_parts<TestType>(1).front();
  std::vector<heed::attention_result<double>> wide;
  for (const auto& part : parts) wide.push_back(cast<double>(part));
  const auto exact = heed::merge_backward(wide.begin(), wide.end(), cast<double>(grad));
  const auto got = heed::merge_backward(parts.begin(), parts.end(), grad);
  for (std::size_t n = 0; n < 3; ++n) {
    // a share is wrong by some six units: of a difference of up to 4, an exp, two sums, a quotient;
    // out has its rounding on top, an lse the roundings of 3 products of up to 3 and of their mean
    CHECK(testing::max_error(got[n].out, exact[n].out) <=
          testing::magnitude(grad.out) * (8 * 0x1p-24L + testing::unit_roundoff<TestType>));
    CHECK(testing::max_error(got[n].lse, exact[n].lse) <= 9 * 2 * (8 + 6) * 0x1p-24L);
  }
}

TEST_CASE("merge_backward: a part that saw no key is not read; NaN reaches its row alone") {
  auto parts = random_parts<double>(2);
  const auto grad = random_parts<double>(1).front();
  const auto clean = heed::merge_backward(parts[0], parts[1], grad);
  parts[1].out.row(2).setConstant(std::numeric_limits<double>::quiet_NaN());
  const auto same = heed::merge_backward(parts[0], parts[1], grad);
  for (std::size_t n = 0; n < 2; ++n) {
    CHECK(same[n].out == clean[n].out);
    CHECK(same[n].lse.head(4) == clean[n].lse.head(4));
  }
  CHECK(same[0].out.row(2) == grad.out.row(2));  // the whole share
  CHECK(same[0].lse(2) == grad.lse(2));
  for (const double x :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
    for (const std::size_t which : {0u, 1u}) {
      auto bad = random_parts<double>(2);
      bad[which].lse(1) = x;
      const auto got = heed::merge_backward(bad[0], bad[1], grad);
      for (std::size_t n = 0; n < 2; ++n)
        for (heed::size_type i = 0; i < 4; ++i) {
          CHECK(std::isnan(got[n].lse(i)) == (i == 1));
          CHECK(std::isnan(got[n].out(i, 0)) == (i == 1));
        }
    }
}

TEST_CASE("merge_backward refuses what does not fit") {
  const heed::attention_result<double> two_rows(2, 4), three_rows(3, 4), narrow(2, 3);
  testing::check_refused([&] { heed::merge_backward(two_rows, three_rows, two_rows); },
                         {"heed::merge_backward: part: n_q 3", "2"});
  testing::check_refused([&] { heed::merge_backward(two_rows, two_rows, narrow); },
                         {"heed::merge_backward: part: head_dim 4", "3"});
  heed::attention_result<double> odd(2, 4);
  odd.lse.resize(3);
  testing::check_refused([&] { heed::merge_backward(two_rows, two_rows, odd); },
                         {"heed::merge_backward: grad: lse 3", "2"});
  std::vector<heed::attention_result<double>> none;
  testing::check_refused([&] { heed::merge_backward(none.begin(), none.end(), two_rows); },
                         {"heed::merge_backward", "part", "0"});
}

TEMPLATE_TEST_CASE("merge_into: parts of batches and heads, in place", "", double,
                   Eigen::bfloat16) {
  using Acc = heed::accumulator_t<TestType>;
  const heed::size_type rows = 2 * 3 * 5;
  // each head is a part of five rows, of which some saw nothing
  std::vector<heed::attention_result<TestType>> parts;
  for (unsigned seed = 1; seed <= 3; ++seed) {
    heed::attention_result<TestType> part(rows, 4);
    part.out = testing::random_rows<TestType>(rows, 4, seed);
    part.lse = testing::random_rows<Acc>(rows, 1, 10 + seed);
    for (heed::size_type i = 0; i < rows; ++i)
      if (i % 5 == 0 || (unsigned(i) + seed) % 4 == 0)
        part.lse(i) = -std::numeric_limits<Acc>::infinity();
    parts.push_back(part);
  }
  const auto want = heed::merge(parts.begin(), parts.end());
  const auto nan = std::numeric_limits<Acc>::quiet_NaN();
  heed::rows<TestType> out = heed::rows<TestType>::Constant(rows, 4, TestType(nan));
  heed::row_vector<Acc> lse =
      heed::row_vector<Acc>::Constant(rows, -std::numeric_limits<Acc>::infinity());
  heed::rows<Acc> wide = heed::rows<Acc>::Constant(rows, 4, nan);
  heed::row_vector<Acc> wide_lse = lse;
  const auto all = [](auto* data, heed::size_type d) { return heed::bnhd(data, 2, 5, 3, d); };
  for (const auto& part : parts) {
    heed::merge_into(all(part.out.data(), 4), all(part.lse.data(), 1), all(out.data(), 4),
                     all(lse.data(), 1));
    heed::merge_into(all(part.out.data(), 4), all(part.lse.data(), 1), all(wide.data(), 4),
                     all(wide_lse.data(), 1));
  }
  CHECK(out == want.out);
  CHECK(lse == want.lse);
  CHECK(wide_lse == want.lse);
  std::vector<heed::attention_result<Acc>> of_wide;
  for (const auto& part : parts) {
    heed::attention_result<Acc> cast(rows, 4);
    cast.out = part.out.template cast<Acc>();
    cast.lse = part.lse;
    of_wide.push_back(cast);
  }
  CHECK(wide == heed::merge(of_wide.begin(), of_wide.end()).out);

  const auto part = all(parts[0].out.data(), 4);
  const auto part_lse = all(parts[0].lse.data(), 1);
  testing::check_refused(
      [&] {
        heed::merge_into(part, part_lse, heed::bnhd(out.data(), 1, 10, 3, 4), all(lse.data(), 1));
      },
      {"heed::merge_into: part_out: batch 2", "out's batch 1"});
  testing::check_refused(
      [&] {
        heed::merge_into(part, heed::bnhd(parts[0].lse.data(), 2, 3, 5, 1), all(out.data(), 4),
                         all(lse.data(), 1));
      },
      {"heed::merge_into: part_lse: num_heads 5"});
  testing::check_refused(
      [&] {
        heed::merge_into(all(out.data(), 4), part_lse, all(out.data(), 4), all(lse.data(), 1));
      },
      {"heed::merge_into: out (", "overlaps part_out"});
  CHECK(out == want.out);
}
