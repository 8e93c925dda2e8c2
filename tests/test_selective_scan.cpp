#include <heed/selective_scan.hpp>

#include <limits>

#include "support/example.hpp"
#include "support/fading.hpp"
#include "support/refusal.hpp"

using testing::random_rows;

namespace {

template <typename Scalar>
struct scan_example {
  using accumulator = heed::accumulator_t<Scalar>;
  heed::rows<Scalar> u, dt, b, c, z;
  heed::rows<accumulator> a, state;
  heed::row_vector<accumulator> d, bias;
  bool softplus = false;

  scan_example() = default;
  scan_example(heed::size_type length, heed::size_type channels, heed::size_type d_state,
               bool everything, unsigned seed)
      : u(random_rows<Scalar>(length, channels, 9 * seed)),
        dt((random_rows<accumulator>(length, channels, 9 * seed + 1).cwiseAbs() * accumulator(0.2))
               .template cast<Scalar>()),
        b(random_rows<Scalar>(length, d_state, 9 * seed + 2)),
        c(random_rows<Scalar>(length, d_state, 9 * seed + 3)),
        a(-random_rows<accumulator>(channels, d_state, 9 * seed + 4).cwiseAbs()),
        state(random_rows<accumulator>(channels, d_state, 9 * seed + 5)),
        softplus(everything) {
    if (!everything) return;
    z = random_rows<Scalar>(length, channels, 9 * seed + 6);
    d = random_rows<accumulator>(channels, 1, 9 * seed + 7);
    bias = random_rows<accumulator>(channels, 1, 9 * seed + 8);
  }
  template <typename Other>
  scan_example<Other> cast() const {
    using acc = heed::accumulator_t<Other>;
    scan_example<Other> other;
    other.u = u.template cast<Other>();
    other.dt = dt.template cast<Other>();
    other.b = b.template cast<Other>();
    other.c = c.template cast<Other>();
    other.z = z.template cast<Other>();
    other.a = a.template cast<acc>();
    other.state = state.template cast<acc>();
    other.d = d.template cast<acc>();
    other.bias = bias.template cast<acc>();
    other.softplus = softplus;
    return other;
  }
  /// The recurrence, number by number. Leaves the last state behind.
  heed::rows<Scalar> exact() {
    heed::rows<Scalar> out(u.rows(), u.cols());
    for (heed::size_type t = 0; t < u.rows(); ++t)
      for (heed::size_type i = 0; i < u.cols(); ++i) {
        Scalar step = dt(t, i);
        if (bias.size() > 0) step += bias(i);
        if (softplus) step = std::log1p(std::exp(step));
        Scalar y = 0;
        for (heed::size_type n = 0; n < a.cols(); ++n) {
          state(i, n) = std::exp(step * a(i, n)) * state(i, n) + step * u(t, i) * b(t, n);
          y += c(t, n) * state(i, n);
        }
        if (d.size() > 0) y += d(i) * u(t, i);
        if (z.size() > 0) y *= z(t, i) / (1 + std::exp(-z(t, i)));
        out(t, i) = y;
      }
    return out;
  }
  heed::rows<Scalar> run(heed::size_type first, heed::size_type count,
                         heed::rows<accumulator>& carried) const {
    heed::selective_scan_options options;
    options.softplus = softplus;
    const auto part = [&](const heed::rows<Scalar>& m) { return m.middleRows(first, count); };
    if (z.size() == 0)
      return heed::selective_scan(part(u), part(dt), a, part(b), part(c), options,
                                  heed::carry(carried));
    const heed::rows<Scalar> gate = part(z);
    return heed::selective_scan(part(u), part(dt), a, part(b), part(c), options, heed::skip(d),
                                heed::step_bias(bias), heed::silu_gate(gate), heed::carry(carried));
  }
};

}  // namespace

TEST_CASE("the selective scan forgets a state of NaN where the decay is exp(-infinity)") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  scan_example<float> e(6, 3, 20, false, 2);
  e.a.row(1).setConstant(
      -std::numeric_limits<float>::infinity());  // by the rate itself, for each token
  e.a.row(2).setConstant(-1e30f);                // by step times rate, for the last two
  e.dt(4, 2) = 1e30f;
  e.u(4, 2) = 0;
  heed::rows<float> state = e.state, zeros = e.state;
  zeros.bottomRows(2).setZero();
  state.bottomRows(2).setConstant(nan);
  const heed::rows<float> want =
      heed::selective_scan(e.u, e.dt, e.a, e.b, e.c, {}, heed::carry(zeros));
  const heed::rows<float> out =
      heed::selective_scan(e.u, e.dt, e.a, e.b, e.c, {}, heed::carry(state));
  REQUIRE(want.allFinite());
  CHECK(out.leftCols(2) == want.leftCols(2));
  CHECK((out.col(2).head(4).array() != out.col(2).head(4).array()).all());
  CHECK(out.col(2).tail(2) == want.col(2).tail(2));
  CHECK(state == zeros);
}

TEMPLATE_TEST_CASE(
    "a state of the selective scan that fades becomes 0 and is nowhere near the subnormal numbers",
    "", float, double) {
  scan_example<TestType> e(400, 3, 20, false, 2);
  e.a.setConstant(-1);
  e.dt.setConstant(sizeof(TestType) == 4 ? TestType(0.1) : TestType(0.8));
  e.u.setZero();
  heed::rows<TestType> state = e.state;
  for (int part = 0; part < 5; ++part) {
    heed::selective_scan(e.u, e.dt, e.a, e.b, e.c, {}, heed::carry(state));
    testing::check_settled(state);
    if (part == 0) CHECK((state.array() != 0).any());
  }
  CHECK((state.array() == 0).all());
}

TEMPLATE_TEST_CASE("no token of the selective scan meets a subnormal number while the state fades",
                   "", float, double) {
  scan_example<TestType> e(300, 3, 20, false, 2);
  e.a.setConstant(-1);
  e.dt.setConstant(TestType(0.1));
  e.c.setConstant(TestType(0.1));
  e.u.setZero();
  heed::rows<TestType> state = testing::faded_state<TestType>(3, 20);
  CHECK_FALSE(testing::meets_subnormal([&] { e.run(0, 100, state); }));
  CHECK((state.array() == 0).any());
  CHECK((state.array() != 0).any());
  CHECK_FALSE(testing::meets_subnormal([&] { e.run(100, 200, state); }));
  CHECK((state.array() == 0).all());
}

TEMPLATE_TEST_CASE("the selective scan is its recurrence", "", float, double, Eigen::bfloat16,
                   Eigen::half) {
  using wide = testing::wider_t<TestType>;
  using accumulator = heed::accumulator_t<TestType>;
  for (const heed::size_type length : {0, 1, 2, 65})
    for (const heed::size_type d_state : {1, 5, 16})
      for (const bool everything : {false, true}) {
        CAPTURE(length, d_state, everything);
        long double out_error = 0,
                    state_error =
                        0;  // of the plain recurrence in the same type, over enough tokens
        for (unsigned seed = 1; seed <= 24; ++seed) {
          const scan_example<TestType> e(length, 6, d_state, everything, seed);
          scan_example<wide> exact = e.template cast<wide>();
          scan_example<accumulator> plain = e.template cast<accumulator>();
          out_error = (std::max)(
              out_error,
              testing::max_error(plain.exact().template cast<TestType>(), exact.exact()));
          state_error = (std::max)(state_error, testing::max_error(plain.state, exact.state));
        }
        const scan_example<TestType> e(length, 6, d_state, everything, 1);
        scan_example<wide> exact = e.template cast<wide>();
        const heed::rows<wide> want = exact.exact();
        heed::rows<accumulator> state = e.state;
        const heed::rows<TestType> got = e.run(0, length, state);
        testing::check_error(got, want, out_error);
        testing::check_error(state, exact.state, state_error);
      }
}

TEST_CASE("the selective scan of a sequence in parts is that of the whole, for any scalar") {
  for (const bool everything : {false, true}) {
    const scan_example<long double> e(30, 6, 4, everything, 2);
    heed::rows<long double> whole = e.state, parts = e.state, out(30, 6);
    const heed::rows<long double> want = e.run(0, 30, whole);
    heed::size_type first = 0;
    for (const heed::size_type count : {1, 0, 20, 9}) {
      out.middleRows(first, count) = e.run(first, count, parts);
      first += count;
    }
    CHECK(out == want);
    CHECK(parts == whole);
  }
}

TEST_CASE("steps far from 0 pass the softplus unharmed") {
  scan_example<double> e(2, 1, 1, false, 1);
  e.softplus = true;
  e.dt << 800, -800;
  e.a(0, 0) = -1e-3;
  heed::rows<double> state = heed::rows<double>::Ones(1, 1);
  const heed::rows<double> out = e.run(0, 2, state);
  CHECK(out.allFinite());
  CHECK(out(0, 0) == Approx(e.c(0, 0) * (std::exp(-0.8) + 800 * e.u(0, 0) * e.b(0, 0))));
}

TEST_CASE(
    "batch entries and groups of the selective scan share a and the weights of the channels, on "
    "any number of threads") {
  const heed::size_type batch = 2, groups = 2, length = 9, channels = 3, d_state = 4;
  const heed::rows<float> u = random_rows<float>(batch * length, groups * channels, 1),
                          dt = random_rows<float>(batch * length, groups * channels, 2).cwiseAbs() *
                               0.2f,
                          b = random_rows<float>(batch * length, groups * d_state, 3),
                          c = random_rows<float>(batch * length, groups * d_state, 4),
                          a = -random_rows<float>(channels, d_state, 5).cwiseAbs();
  const auto run = [&](int threads) {
    heed::rows<float> out(batch * length, groups * channels);
    heed::selective_scan_options options;
    options.execution.threads = threads;
    heed::workspace memory;
    const auto split = [&](const heed::rows<float>& m) {
      return heed::split_heads(heed::view(m), groups, batch);
    };
    heed::selective_scan_into(split(u), split(dt), heed::view(a), split(b), split(c),
                              heed::split_heads(heed::writable_view(out), groups, batch), options,
                              memory);
    return out;
  };
  const heed::rows<float> out = run(1);
  CHECK(run(3) == out);
  for (heed::size_type s = 0; s < batch; ++s)
    for (heed::size_type g = 0; g < groups; ++g) {
      const auto block = [&](const heed::rows<float>& m, heed::size_type cols) {
        return m.block(s * length, g * cols, length, cols);
      };
      CHECK(block(out, channels) == heed::selective_scan(block(u, channels), block(dt, channels), a,
                                                         block(b, d_state), block(c, d_state)));
    }
}

TEST_CASE("the selective scan refuses what does not fit, before it writes") {
  const scan_example<float> e(6, 4, 3, false, 1);
  testing::check_refused(
      [&] { heed::selective_scan(e.u, random_rows<float>(6, 5, 1), e.a, e.b, e.c); },
      {"heed::selective_scan: dt", "5", "4"});
  testing::check_refused(
      [&] { heed::selective_scan(e.u, e.dt, random_rows<float>(5, 3, 1), e.b, e.c); },
      {"a: rows", "5", "4"});
  testing::check_refused(
      [&] { heed::selective_scan(e.u, e.dt, e.a, random_rows<float>(6, 2, 1), e.c); },
      {"b: d_state", "2", "3"});
  testing::check_refused(
      [&] { heed::selective_scan(e.u, e.dt, e.a, e.b, random_rows<float>(7, 3, 1)); },
      {"c: length", "7", "6"});
  heed::rows<float> state = heed::rows<float>::Constant(4, 4, 7);
  testing::check_refused(
      [&] { heed::selective_scan(e.u, e.dt, e.a, e.b, e.c, {}, heed::carry(state)); },
      {"carry: columns", "4", "3"});
  heed::row_vector<float> none;
  heed::selective_scan_options lazy;
  lazy.execution.threads = 0;
  testing::check_refused([&] { heed::selective_scan(e.u, e.dt, e.a, e.b, e.c, lazy); },
                         {"heed::selective_scan: execution.threads", "0"});
  testing::check_refused(
      [&] { heed::selective_scan(e.u, e.dt, e.a, e.b, e.c, {}, heed::skip(none)); },
      {"skip", "channels 0", "4"});
  testing::check_refused(
      [&] { heed::selective_scan(e.u, e.dt, e.a, e.b, e.c, {}, heed::step_bias(none)); },
      {"step_bias", "channels 0", "4"});
  testing::check_refused(
      [&] { heed::selective_scan(e.u, e.dt, e.a, e.b, e.c, {}, heed::silu_gate(none)); },
      {"silu_gate", "0", "6"});
  CHECK((state.array() == 7).all());
}
