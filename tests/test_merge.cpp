#include <heed/merge.hpp>
#include <heed/reference.hpp>

#include <limits>
#include <vector>

#include "support/example.hpp"
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
