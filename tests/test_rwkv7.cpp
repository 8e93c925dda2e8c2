#include <heed/rwkv7.hpp>

#include <limits>

#include "support/example.hpp"
#include "support/fading.hpp"
#include "support/refusal.hpp"

using testing::random_rows;

namespace {

template <typename Scalar>
struct rwkv_example {
  using accumulator = heed::accumulator_t<Scalar>;
  heed::rows<Scalar> r, k, v, a, b;
  heed::rows<accumulator> w, state;

  rwkv_example() = default;
  /// As the model makes them: a removes along a unit key, b puts back a share of it, w is in
  /// (0.545, 1).
  rwkv_example(heed::size_type length, heed::size_type d_k, heed::size_type d_v, unsigned seed)
      : r(random_rows<Scalar>(length, d_k, 7 * seed)),
        k(random_rows<Scalar>(length, d_k, 7 * seed + 1)),
        v(random_rows<Scalar>(length, d_v, 7 * seed + 2)),
        state(random_rows<accumulator>(d_v, d_k, 7 * seed + 3)) {
    const heed::rows<accumulator>
        kappa = random_rows<accumulator>(length, d_k, 7 * seed + 4).rowwise().normalized(),
        share = random_rows<accumulator>(length, d_k, 7 * seed + 5).cwiseAbs() * accumulator(0.5);
    a = (-kappa).template cast<Scalar>();
    b = kappa.cwiseProduct(share).template cast<Scalar>();
    w = (random_rows<accumulator>(length, d_k, 7 * seed + 6).cwiseAbs() * accumulator(-0.3))
            .array()
            .exp();
  }
  template <typename Other>
  rwkv_example<Other> cast() const {
    using acc = heed::accumulator_t<Other>;
    rwkv_example<Other> other;
    other.r = r.template cast<Other>();
    other.k = k.template cast<Other>();
    other.v = v.template cast<Other>();
    other.a = a.template cast<Other>();
    other.b = b.template cast<Other>();
    other.w = w.template cast<acc>();
    other.state = state.template cast<acc>();
    return other;
  }
  /// S = S diag(w) + (S a) b^T + v k^T; o = S r, as matrices. Leaves the last state behind.
  heed::rows<Scalar> exact() {
    heed::rows<Scalar> out(r.rows(), v.cols());
    for (heed::size_type t = 0; t < r.rows(); ++t) {
      const heed::rows<Scalar> old = state;
      state = old * w.row(t).asDiagonal();
      state += (old * a.row(t).transpose()) * b.row(t) + v.row(t).transpose() * k.row(t);
      out.row(t) = (state * r.row(t).transpose()).transpose();
    }
    return out;
  }
};

}  // namespace

TEMPLATE_TEST_CASE("RWKV-7 is its recurrence", "", float, double, Eigen::bfloat16, Eigen::half) {
  using wide = testing::wider_t<TestType>;
  using accumulator = heed::accumulator_t<TestType>;
  for (const heed::size_type length : {0, 1, 2, 65})
    for (const heed::size_type d : {1, 7, 64}) {
      CAPTURE(length, d);
      long double out_error = 0,
                  state_error = 0;  // of the plain recurrence in the same type, over enough tokens
      for (unsigned seed = 1; seed <= 24; ++seed) {
        const rwkv_example<TestType> e(length, d, d + 3, seed);
        rwkv_example<wide> exact = e.template cast<wide>();
        rwkv_example<accumulator> plain = e.template cast<accumulator>();
        out_error = (std::max)(
            out_error, testing::max_error(plain.exact().template cast<TestType>(), exact.exact()));
        state_error = (std::max)(state_error, testing::max_error(plain.state, exact.state));
      }
      const rwkv_example<TestType> e(length, d, d + 3, 1);
      rwkv_example<wide> exact = e.template cast<wide>();
      const heed::rows<wide> want = exact.exact();
      heed::rows<accumulator> state = e.state;
      const heed::rows<TestType> got =
          heed::rwkv7(e.r, e.w, e.k, e.v, e.a, e.b, {}, heed::carry(state));
      testing::check_error(got, want, out_error);
      testing::check_error(state, exact.state, state_error);
    }
}

TEST_CASE("RWKV-7 of a sequence in parts is that of the whole, for any scalar") {
  const rwkv_example<long double> e(30, 6, 4, 2);
  heed::rows<long double> whole = e.state, parts = e.state, out(30, 4);
  const heed::rows<long double> want =
      heed::rwkv7(e.r, e.w, e.k, e.v, e.a, e.b, {}, heed::carry(whole));
  heed::size_type first = 0;
  for (const heed::size_type count : {1, 0, 20, 9}) {
    const auto part = [&](const heed::rows<long double>& m) { return m.middleRows(first, count); };
    out.middleRows(first, count) = heed::rwkv7(part(e.r), part(e.w), part(e.k), part(e.v),
                                               part(e.a), part(e.b), {}, heed::carry(parts));
    first += count;
  }
  CHECK(out == want);
  CHECK(parts == whole);
}

TEST_CASE("heads of RWKV-7 are independent, on any number of threads") {
  const heed::size_type heads = 3, length = 12, d = 5;
  rwkv_example<float> e(length, heads * d, heads * d, 3);
  const auto run = [&](int threads) {
    heed::rows<float> out(length, heads * d);
    heed::rwkv7_options options;
    options.execution.threads = threads;
    heed::workspace memory;
    const auto split = [&](const heed::rows<float>& m) {
      return heed::split_heads(heed::view(m), heads);
    };
    heed::multi_head_rwkv7_into(split(e.r), split(e.w), split(e.k), split(e.v), split(e.a),
                                split(e.b), heed::split_heads(heed::writable_view(out), heads),
                                options, memory);
    return out;
  };
  const heed::rows<float> clean = run(1);
  CHECK(run(2) == clean);
  e.v(4, 0) = std::numeric_limits<float>::quiet_NaN();
  const heed::rows<float> out = run(2);
  CHECK(out.topRows(4) == clean.topRows(4));
  CHECK(out.rightCols(2 * d) == clean.rightCols(2 * d));
  CHECK(std::isnan(out(4, 0)));
}

TEST_CASE("RWKV-7 forgets a column of the state whose decay and removal are 0, one of NaN too") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  rwkv_example<float> e(20, 8, 5, 4);
  const heed::size_type at = 7;
  e.w.row(at).setZero();
  e.a.row(at).setZero();
  const auto tail = [&](const heed::rows<float>& m) { return m.bottomRows(20 - at); };
  heed::rows<float> want_state = heed::rows<float>::Zero(5, 8),
                    state = heed::rows<float>::Constant(5, 8, nan);
  const heed::rows<float> want = heed::rwkv7(tail(e.r), tail(e.w), tail(e.k), tail(e.v), tail(e.a),
                                             tail(e.b), {}, heed::carry(want_state));
  REQUIRE(want.allFinite());
  const heed::rows<float> out = heed::rwkv7(e.r, e.w, e.k, e.v, e.a, e.b, {}, heed::carry(state));
  CHECK((out.topRows(at).array() != out.topRows(at).array()).all());
  CHECK(out.bottomRows(20 - at) == want);
  CHECK(state == want_state);
}

TEMPLATE_TEST_CASE(
    "a state of RWKV-7 that fades becomes 0 and is nowhere near the subnormal numbers", "", float,
    double) {
  rwkv_example<TestType> e(400, 6, 5, 4);
  e.w.setConstant(sizeof(TestType) == 4 ? TestType(0.9) : TestType(0.45));
  e.v.setZero();
  e.a.setZero();
  heed::rows<TestType> state = e.state;
  for (int part = 0; part < 5; ++part) {
    heed::rwkv7(e.r, e.w, e.k, e.v, e.a, e.b, {}, heed::carry(state));
    testing::check_settled(state);
    if (part == 0) CHECK((state.array() != 0).any());
  }
  CHECK((state.array() == 0).all());
}

TEMPLATE_TEST_CASE("no token of RWKV-7 meets a subnormal number while the state fades", "", float,
                   double) {
  for (const bool removes : {false, true}) {
    CAPTURE(removes);
    rwkv_example<TestType> e(300, 6, 5, 4);
    e.r.setConstant(TestType(0.1));
    e.w.setConstant(TestType(0.9));
    e.v.setZero();
    e.a.setConstant(removes ? TestType(-0.1) : TestType(0));
    e.b.setConstant(TestType(0.1));
    heed::rows<TestType> state =
        testing::faded_state<TestType>(5, 1).replicate(1, 6);  // so that nothing cancels
    for (heed::size_type i = 0; i < 5; ++i) state.row(i) *= std::ldexp(TestType(1), int(2 * i));
    CHECK_FALSE(testing::meets_subnormal([&] {
      heed::rwkv7(e.r.topRows(50), e.w.topRows(50), e.k.topRows(50), e.v.topRows(50),
                  e.a.topRows(50), e.b.topRows(50), {}, heed::carry(state));
    }));
    CHECK((state.array() == 0).any());
    CHECK((state.array() != 0).any());
    CHECK_FALSE(testing::meets_subnormal(
        [&] { heed::rwkv7(e.r, e.w, e.k, e.v, e.a, e.b, {}, heed::carry(state)); }));
    CHECK((state.array() == 0).all());
  }
}

TEST_CASE("RWKV-7 refuses what does not fit, before it writes") {
  const rwkv_example<float> e(6, 4, 3, 1);
  testing::check_refused([&] { heed::rwkv7(e.r, random_rows<float>(6, 5, 1), e.k, e.v, e.a, e.b); },
                         {"heed::rwkv7: decay", "5", "4"});
  testing::check_refused([&] { heed::rwkv7(e.r, e.w, random_rows<float>(7, 4, 1), e.v, e.a, e.b); },
                         {"key", "length", "7", "6"});
  heed::rows<float> state = heed::rows<float>::Constant(4, 4, 7);
  testing::check_refused([&] { heed::rwkv7(e.r, e.w, e.k, e.v, e.a, e.b, {}, heed::carry(state)); },
                         {"carry: rows", "4", "3"});
  heed::rows<float> none;
  testing::check_refused([&] { heed::rwkv7(e.r, e.w, e.k, e.v, e.a, e.b, {}, heed::carry(none)); },
                         {"carry: rows", "0", "3"});
  CHECK((state.array() == 7).all());
}

TEST_CASE("rwkv7: a scale multiplies what is read, not the state") {
  const rwkv_example<double> e(20, 8, 6, 1);
  const auto run = [&](double scale, heed::rows<double>& state) {
    heed::rwkv7_options options;
    options.scale = scale;
    return heed::rwkv7(e.r, e.w, e.k, e.v, e.a, e.b, options, heed::carry(state));
  };
  heed::rows<double> plain = e.state, scaled = e.state, none = e.state;
  const heed::rows<double> out = run(1, plain);
  CHECK(run(0.25, scaled) == out * 0.25);
  CHECK(run(0, none).isZero(0));
  CHECK(scaled == plain);
  CHECK(none == plain);
  testing::check_refused([&] { run(std::numeric_limits<double>::infinity(), plain); },
                         {"heed::rwkv7: scale", "inf"});
}
