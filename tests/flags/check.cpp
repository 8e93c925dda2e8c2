// Does this build give the right answers? One small program without a test framework, so that it
// compiles with every set of flags and for every CPU: each instruction set, each scalar and each
// option against the reference in a wider type. Arguments are the names of the instruction sets
// that this CPU must turn out to have; asking for any other must be refused. The argument
// `unhandled` asks for nothing but a wrong call.
#include <heed/heed.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using heed::size_type;

int failures = 0;

void expect(bool good, const std::string& what) {
  if (good) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

// From the bits: -ffast-math lets the compiler believe that there is neither.
template <typename Scalar>
std::uint64_t bits_of(Scalar x) {
  const double wide = static_cast<double>(x);
  std::uint64_t bits;
  std::memcpy(&bits, &wide, sizeof bits);
  return bits;
}
template <typename Scalar>
bool is_nan(Scalar x) {
  return (bits_of(x) & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
}
template <typename Scalar>
bool is_negative_infinity(Scalar x) {
  return bits_of(x) == 0xfff0000000000000u;
}

template <typename Scalar>
heed::rows<Scalar> random_matrix(std::mt19937& random, size_type n, size_type cols,
                                 double size = 1) {
  heed::rows<Scalar> m(n, cols);
  for (size_type i = 0; i < m.size(); ++i)
    m.data()[i] =
        Scalar(static_cast<float>(size * (static_cast<double>(random()) / 2147483648.0 - 1)));
  return m;
}

template <typename Scalar>
struct problem {
  using Acc = heed::accumulator_t<Scalar>;
  heed::rows<Scalar> query, key, value;
  heed::attention_options options;
  heed::rows<bool> keep;  // the terms; an empty one is absent
  heed::rows<Acc> bias;
  heed::row_vector<Acc> alibi, sinks;

  template <typename Wide>
  problem<Wide> cast() const {
    return {query.template cast<Wide>(),
            key.template cast<Wide>(),
            value.template cast<Wide>(),
            options,
            keep,
            bias.template cast<Wide>(),
            alibi.template cast<Wide>(),
            sinks.template cast<Wide>()};
  }
  auto reference() const {
    return heed::reference_attention_with_lse(query, key, value, options,
                                              heed::when(keep.size() > 0, heed::keep(keep)),
                                              heed::when(bias.size() > 0, heed::bias(bias)),
                                              heed::when(alibi.size() > 0, heed::alibi(alibi)),
                                              heed::when(sinks.size() > 0, heed::sinks(sinks)));
  }
  auto fused() const {
    return heed::attention_with_lse(query, key, value, options,
                                    heed::when(keep.size() > 0, heed::keep(keep)),
                                    heed::when(bias.size() > 0, heed::bias(bias)),
                                    heed::when(alibi.size() > 0, heed::alibi(alibi)),
                                    heed::when(sinks.size() > 0, heed::sinks(sinks)));
  }
};

// The sum of squared differences. Both must have their -infinity in the same places, and no NaN.
template <typename Got, typename Want>
double squared_difference(const Got& got, const Want& want, const std::string& where) {
  long double sum = 0;
  for (size_type i = 0; i < want.rows(); ++i)
    for (size_type c = 0; c < want.cols(); ++c) {
      if (is_negative_infinity(want(i, c)) || is_negative_infinity(got(i, c)) ||
          is_nan(got(i, c))) {
        expect(is_negative_infinity(want(i, c)) && is_negative_infinity(got(i, c)),
               where + ": infinity or NaN in the wrong place");
      } else {
        const long double d =
            static_cast<long double>(got(i, c)) - static_cast<long double>(want(i, c));
        sum += d * d;
      }
    }
  return static_cast<double>(sum);
}

// Errors of the fused answer and of the reference in the same precision, both against the reference
// in a wider type, added up over the options: in a few rows the reference can be right by luck. The
// fused one may be twice as far off, and one rounding of its own.
struct errors {
  double fused = 0, plain = 0, size = 0;

  template <typename Got, typename Want>
  void add(const Got& got, const Got& same, const Want& want, const std::string& where) {
    fused += squared_difference(got, want, where);
    plain += squared_difference(same, want, where);
    for (size_type i = 0; i < want.size(); ++i)
      if (!is_negative_infinity(want.data()[i]))
        size += static_cast<double>(want.data()[i] * want.data()[i]);
  }
  void judge(double epsilon, const std::string& what) const {
    const double got = std::sqrt(fused), allowed = 2 * std::sqrt(plain) + epsilon * std::sqrt(size);
    expect(got <= allowed,
           what + ": off by " + std::to_string(got / allowed) + " times the tolerance");
  }
};

template <typename Scalar, typename Wide>
void check_options(heed::isa target, const char* scalar) {
  using Acc = heed::accumulator_t<Scalar>;
  std::mt19937 random(7);
  struct shape {
    size_type n_q, n_kv, d_k, d_v;
  };
  for (const shape s : {shape{1, 1, 1, 1}, shape{3, 5, 4, 7}, shape{17, 33, 16, 16},
                        shape{50, 70, 33, 20}, shape{2, 150, 64, 64}}) {
    problem<Scalar> plain{random_matrix<Scalar>(random, s.n_q, s.d_k, 3),
                          random_matrix<Scalar>(random, s.n_kv, s.d_k, 3),
                          random_matrix<Scalar>(random, s.n_kv, s.d_v),
                          {},
                          {},
                          {},
                          {},
                          {}};
    plain.options.execution.target = target;
    const std::string where = std::string(heed::name(target)) + " " + scalar + " " +
                              std::to_string(s.n_q) + "x" + std::to_string(s.n_kv) + " d " +
                              std::to_string(s.d_k) + "," + std::to_string(s.d_v);
    errors out, lse;
    const auto check = [&](const char* what, const auto& change) {
      problem<Scalar> p = plain;
      change(p);
      const auto want = p.template cast<Wide>().reference();
      const auto same = p.reference(), fused = p.fused();
      out.add(fused.out, same.out, want.out, where + " " + what);
      lse.add(fused.lse, same.lse, want.lse, where + " " + what);
    };
    check("plain", [](auto&) {});
    check("scale", [](auto& p) { p.options.scale = 0.1; });
    check("causal top-left", [](auto& p) { p.options.causal = heed::causal::top_left; });
    check("causal bottom-right", [](auto& p) { p.options.causal = heed::causal::bottom_right; });
    check("window", [](auto& p) { p.options.window_left = 5, p.options.window_right = 2; });
    check("window beside the keys",
          [](auto& p) { p.options.causal = heed::causal::top_left, p.options.window_left = 0; });
    check("softcap", [](auto& p) { p.options.softcap = 1.5; });
    check("keep",
          [&](auto& p) { p.keep = random_matrix<float>(random, s.n_q, s.n_kv).array() > 0.2f; });
    check("bias", [&](auto& p) {
      p.bias = random_matrix<Acc>(random, s.n_q, s.n_kv);
      for (size_type i = 0; i < p.bias.size(); i += 3)
        p.bias.data()[i] = -std::numeric_limits<Acc>::infinity();
    });
    check("alibi", [](auto& p) { p.alibi.setConstant(1, Acc(0.25f)); });
    check("sinks", [](auto& p) { p.sinks.setConstant(1, Acc(0.5f)); });
    check("everything", [&](auto& p) {
      p.options.scale = 0.3, p.options.causal = heed::causal::bottom_right,
      p.options.window_left = 20, p.options.softcap = 2;
      p.keep = random_matrix<float>(random, s.n_q, s.n_kv).array() > -0.5f;
      p.bias = random_matrix<Acc>(random, s.n_q, s.n_kv);
      p.alibi.setConstant(1, Acc(0.25f)), p.sinks.setConstant(1, Acc(0.5f));
    });
    out.judge(static_cast<double>(Eigen::NumTraits<Scalar>::epsilon()), where + " out");
    lse.judge(static_cast<double>(Eigen::NumTraits<Acc>::epsilon()), where + " lse");
  }
}

// What is masked, or missing altogether, may not depend on the compiler's idea of infinity and NaN.
template <typename Scalar>
void check_special(heed::isa target) {
  std::mt19937 random(11);
  const std::string where = std::string(heed::name(target)) + ": ";
  problem<Scalar> p{random_matrix<Scalar>(random, 20, 8),
                    random_matrix<Scalar>(random, 40, 8),
                    random_matrix<Scalar>(random, 40, 8),
                    {},
                    {},
                    {},
                    {},
                    {}};
  p.options.execution.target = target;
  p.options.causal = heed::causal::top_left;
  const auto clean = p.fused();

  auto masked = p;  // keys 20 and later are masked
  masked.key.bottomRows(20).setConstant(std::numeric_limits<Scalar>::quiet_NaN());
  masked.value.bottomRows(20).setConstant(std::numeric_limits<Scalar>::infinity());
  const auto guarded = masked.fused();
  expect(std::memcmp(guarded.out.data(), clean.out.data(),
                     sizeof(Scalar) * std::size_t(clean.out.size())) == 0,
         where + "masked NaN and infinity reach the output");

#ifndef __FAST_MATH__  // which promises the compiler that nothing visible is a NaN: clang then
                       // drops it inside its own intrinsics
  auto visible = p;    // key 10 is seen by queries 10 and later
  visible.key(10, 3) = std::numeric_limits<Scalar>::quiet_NaN();
  const auto spread = visible.fused();
  for (size_type i = 0; i < 20; ++i) {
    bool all = true, any = false;
    for (size_type c = 0; c < 8; ++c) {
      all = all && is_nan(spread.out(i, c));
      any = any || is_nan(spread.out(i, c));
    }
    expect(i >= 10 ? all : !any, where + "NaN in key 10 and output row " + std::to_string(i));
  }
#endif

  auto nothing = p;
  nothing.keep.setConstant(20, 40, false);
  const auto empty = nothing.fused();
  for (size_type i = 0; i < empty.out.size(); ++i)
    expect(empty.out.data()[i] == Scalar(0), where + "a row that sees no key is not 0");
  for (size_type i = 0; i < empty.lse.size(); ++i)
    expect(is_negative_infinity(empty.lse(i)), where + "lse of a row that sees no key");

  auto threaded = p;
  threaded.options.execution.threads = 3;
  const auto shared = threaded.fused();
  expect(std::memcmp(shared.out.data(), clean.out.data(),
                     sizeof(Scalar) * std::size_t(clean.out.size())) == 0,
         where + "threads change the result");
}

void check_projections() {
  std::mt19937 random(13);
  const auto x = random_matrix<float>(random, 37, 50), w = random_matrix<float>(random, 50, 29);
  const heed::rows<double> want = x.cast<double>() * w.cast<double>();
  const heed::rows<float> got = heed::project(x, w);
  // the bound of a sum of 50 products in any order
  const heed::rows<double> bound =
      51 * 0x1p-24 * (x.cast<double>().cwiseAbs() * w.cast<double>().cwiseAbs());
  expect(((got.cast<double>() - want).cwiseAbs().array() <= bound.array()).all(), "project");
}

// Whole numbers, so that every sum is exact in any order; long double has no kernels and goes
// through Eigen.
template <typename Scalar>
void check_exact_projections(const char* scalar) {
  std::mt19937 random(17);
  heed::rows<Scalar> x(5, 7), w(7, 3);
  for (size_type i = 0; i < x.size(); ++i)
    x.data()[i] = Scalar(static_cast<float>(random() % 17) - 8);
  for (size_type i = 0; i < w.size(); ++i)
    w.data()[i] = Scalar(static_cast<float>(random() % 17) - 8);
  const Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor> w_by_columns = w;
  const heed::rows<Scalar> got = heed::project(x, w), by_columns = heed::project(x, w_by_columns),
                           part = heed::project(x.leftCols(4), w.topRows(4));
  bool same = true;
  for (size_type i = 0; i < 5; ++i)
    for (size_type c = 0; c < 3; ++c) {
      Scalar sum(0), first(0);
      for (size_type k = 0; k < 7; ++k) {
        sum += x(i, k) * w(k, c);
        if (k < 4) first += x(i, k) * w(k, c);
      }
      same = same && got(i, c) == sum && by_columns(i, c) == sum && part(i, c) == first;
    }
  expect(same, std::string("project: whole numbers of ") + scalar);
}

// A wrong argument is refused with a message that holds `part`. Without exceptions the first one
// ends the program, by design, so there the handler ends it well, and the checks before have
// spoken.
std::string wanted_part;

template <typename Call>
void expect_refused(const char* part, const Call& call) {
#if HEED_EXCEPTIONS
  try {
    call();
  } catch (const std::invalid_argument& refusal) {
    expect(std::strstr(refusal.what(), part) != nullptr,
           std::string("message without '") + part + "': " + refusal.what());
    return;
  }
  expect(false, std::string("not refused: ") + part);
#else
  wanted_part = part;
  heed::set_failure_handler([](const char* message) {
    expect(wanted_part.empty() == false && std::strstr(message, wanted_part.c_str()) != nullptr,
           std::string("message: ") + message);
    std::printf("refused: %s\n%s\n", message, failures ? "some checks failed" : "all good");
    std::exit(failures ? 1 : 0);
  });
  call();
  expect(false, std::string("the failure handler was not called: ") + part);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "unhandled") == 0) {
    heed::project(heed::rows<float>(2, 4), heed::rows<float>(3, 4));
    return 0;
  }
  std::vector<std::string> available;
  for (const heed::isa target : heed::available_isas()) {
    available.push_back(heed::name(target));
    std::printf("%s\n", heed::name(target));
    check_options<float, double>(target, "float");
    check_options<double, long double>(target, "double");
    check_options<Eigen::bfloat16, double>(target, "bfloat16");
    check_options<Eigen::half, double>(target, "half");
    check_special<float>(target);
    check_special<double>(target);
  }
  check_options<float, double>(heed::isa::automatic, "float");
  check_projections();
  check_exact_projections<float>("float");
  check_exact_projections<long double>("long double");
  if (argc > 1)
    expect(available == std::vector<std::string>(argv + 1, argv + argc),
           "the instruction sets of this CPU are others");

  const heed::rows<float> x = heed::rows<float>::Ones(2, 4);
  for (const heed::detail::isa_entry& set : heed::detail::isas) {
    if (std::find(available.begin(), available.end(), set.name) != available.end()) continue;
    heed::attention_options options;
    options.execution.target = set.target;
    expect_refused(set.name, [&] { heed::attention(x, x, x, options); });
  }
  expect_refused("heed::attention: key: head_dim 3 does not match query's head_dim 4",
                 [&] { heed::attention(x, heed::rows<float>(2, 3), x); });
  std::printf("%s\n", failures ? "some checks failed" : "all good");
  return failures ? 1 : 0;
}
