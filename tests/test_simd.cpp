#include <heed/detail/kernels.hpp>
#include <heed/isa.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "catch.hpp"

// Every operation of every instruction set's vectors against the same on one number, and the
// exponential against long double.

HEED_NAMESPACE_BEGIN
HEED_BEGIN_BASELINE
#include "simd_operations.inc"
HEED_END_REGION
#if HEED_X86
HEED_BEGIN_AVX2
#include "simd_operations.inc"
HEED_END_REGION
HEED_BEGIN_AVX512
#include "simd_operations.inc"
HEED_END_REGION
#endif
#if HEED_X86_BF16
HEED_BEGIN_AVX512_BF16
/// The pairs of sixteen numbers each, made of bfloat16 as they are and of floats by rounding,
/// masked by bools, and c plus their product with others.
inline void apply_of(const bfloat16_bits* a, const bfloat16_bits* b, bf16_pair* out) noexcept {
  bf16_pairs::of(f32::load(a), f32::load(b)).store(out);
}
inline bool apply_round(const float* a, const float* b, bf16_pair* out) noexcept {
  const bf16_pairs pairs = bf16_pairs::rounded(f32::load(a), f32::load(b));
  pairs.store(out);
  return pairs.all_finite();
}
inline void apply_only(const bf16_pair* pairs, const bool* first, const bool* second,
                       bf16_pair* out) noexcept {
  bf16_pairs::load(pairs).only(f32::load_mask(first, 16), f32::load_mask(second, 16)).store(out);
}
inline void apply_fma(const bf16_pair* one, const bf16_pair* pairs, const float* c,
                      float* out) noexcept {
  fma(bf16_pairs::broadcast(one), bf16_pairs::load(pairs), f32::load(c)).store(out);
}
inline void apply_partial(const bfloat16_bits* from, size n, bf16_pair* out) noexcept {
  bf16_pairs::load(from, n).store(out);
}
HEED_END_REGION
#endif
HEED_NAMESPACE_END

namespace {

using heed::detail::bfloat16_bits;
using heed::detail::half_bits;
using heed::detail::is_available;
using heed::detail::size;

/// The functions of one instruction set for one vector type.
#define OPERATIONS(set, vector)                                                      \
  struct set##_##vector {                                                            \
    using V = heed::detail::set::vector;                                             \
    using S = V::scalar;                                                             \
    using operation = heed::detail::set::operation;                                  \
    static bool on_this_cpu() { return is_available(heed::isa::set); }               \
    static constexpr auto apply = heed::detail::set::apply<V>;                       \
    static constexpr auto transpose = heed::detail::set::apply_transpose<V>;         \
    static constexpr auto sum = heed::detail::set::apply_sum<V>;                     \
    static constexpr auto masks = heed::detail::set::apply_masks<V>;                 \
    template <typename In>                                                           \
    static void partial(const In* from, size n, S* out, In* part) {                  \
      heed::detail::set::apply_partial<V, In>(from, n, out, part);                   \
    }                                                                                \
    template <typename Bits>                                                         \
    static void widen(const Bits* from, S* out) {                                    \
      heed::detail::set::apply_widen<V, Bits>(from, out);                            \
    }                                                                                \
    template <typename Bits>                                                         \
    static void part(const Bits* from, size n, S* out) {                             \
      heed::detail::set::apply_part<V, Bits>(from, n, out);                          \
    }                                                                                \
    template <typename Float>                                                        \
    static void pairs(const std::uint8_t* from, Float step, Float start, Float* low, \
                      Float* high) {                                                 \
      heed::detail::set::apply_pairs<V>(from, step, start, low, high);               \
    }                                                                                \
    template <typename Float>                                                        \
    static void two(const std::uint16_t* from, Float* first, Float* second) {        \
      heed::detail::set::apply_two<V>(from, first, second);                          \
    }                                                                                \
    template <typename Bits>                                                         \
    static void even_odd(const Bits* from, S* even, S* odd) {                        \
      heed::detail::set::apply_even_odd<V>(from, even, odd);                         \
    }                                                                                \
    template <typename Bits>                                                         \
    static bool has_nan(const Bits* from, size n) {                                  \
      return heed::detail::set::apply_has_nan<V>(from, n);                           \
    }                                                                                \
    template <typename Bits>                                                         \
    static void narrow(const S* from, Bits* out) {                                   \
      heed::detail::set::apply_narrow<V, Bits>(from, out);                           \
    }                                                                                \
  }

OPERATIONS(baseline, f32);
OPERATIONS(baseline, f64);
#if HEED_X86
OPERATIONS(avx2, f32);
OPERATIONS(avx2, f64);
OPERATIONS(avx512, f32);
OPERATIONS(avx512, f64);
#define ALL_F32 baseline_f32, avx2_f32, avx512_f32
#define ALL_F64 baseline_f64, avx2_f64, avx512_f64
#else
#define ALL_F32 baseline_f32
#define ALL_F64 baseline_f64
#endif

template <typename S>
bool same_bits(S a, S b) {
  return heed::detail::bits_of(a) == heed::detail::bits_of(b) || (std::isnan(a) && std::isnan(b));
}

/// Numbers of every kind.
template <typename S>
std::vector<S> all_kinds() {
  using limits = std::numeric_limits<S>;
  const S inf = limits::infinity(), nan = limits::quiet_NaN(), tiny = (limits::min)(),
          huge = (limits::max)();
  return {S(0), S(-0.0), S(1), S(-1), S(0.5), S(1.5), S(2.5), S(-2.5), S(3.25), S(1e6) + S(0.5),
          tiny, -tiny,   huge, -huge, inf,    -inf,   nan};
}

/// f at every pair of numbers of every kind.
template <typename T, typename Expected>
void check_pairs(typename T::operation what, Expected expected) {
  using S = typename T::S;
  const std::vector<S> numbers = all_kinds<S>();
  for (const S x : numbers)
    for (const S y : numbers) {
      const std::vector<S> a(std::size_t(T::V::lanes), x), b(std::size_t(T::V::lanes), y),
          c(std::size_t(T::V::lanes), S(2));
      std::vector<S> out(a.size(), S(-7));
      T::apply(what, a.data(), b.data(), c.data(), out.data());
      INFO("of " << x << " and " << y << ": " << out[0]);
      for (const S got : out) REQUIRE(same_bits(got, S(expected(x, y))));
    }
}

template <typename T>
typename T::S apply_one(typename T::operation what, typename T::S x, typename T::S y = 0) {
  using S = typename T::S;
  const std::vector<S> a(std::size_t(T::V::lanes), x), b(std::size_t(T::V::lanes), y);
  std::vector<S> out(a.size());
  T::apply(what, a.data(), b.data(), a.data(), out.data());
  return out[0];
}
}  // namespace

TEMPLATE_TEST_CASE("Each vector operation is that of its scalar, on numbers of every kind",
                   "[simd]", ALL_F32, ALL_F64) {
  using S = typename TestType::S;
  using operation = typename TestType::operation;
  if (!TestType::on_this_cpu()) return;
  check_pairs<TestType>(operation::add, [](S a, S b) { return a + b; });
  check_pairs<TestType>(operation::subtract, [](S a, S b) { return a - b; });
  check_pairs<TestType>(operation::multiply, [](S a, S b) { return a * b; });
  check_pairs<TestType>(operation::divide, [](S a, S b) { return a / b; });
  check_pairs<TestType>(operation::max, [](S a, S b) { return a > b ? a : b; });
  check_pairs<TestType>(operation::abs, [](S a, S) { return std::abs(a); });
  check_pairs<TestType>(operation::with_sign, [](S a, S b) { return std::copysign(a, b); });
  check_pairs<TestType>(operation::less, [](S a, S b) { return a < b ? 1 : 0; });
  check_pairs<TestType>(operation::not_less, [](S a, S b) { return a < b ? 0 : 1; });
  check_pairs<TestType>(operation::not_finite, [](S a, S) { return std::isfinite(a) ? 0 : 1; });
}

TEMPLATE_TEST_CASE("fma, split and scale", "[simd]", ALL_F32, ALL_F64) {
  using S = typename TestType::S;
  using operation = typename TestType::operation;
  if (!TestType::on_this_cpu()) return;
  constexpr std::size_t lanes = TestType::V::lanes;
  std::mt19937 random(1);
  std::uniform_real_distribution<S> number(-1000, 1000);
  std::vector<S> a(lanes), b(lanes), c(lanes), out(lanes);
  for (int repeat = 0; repeat < 200; ++repeat) {
    for (std::size_t i = 0; i < lanes; ++i) {
      a[i] = number(random);
      b[i] = number(random);
      c[i] = number(random);
    }
    TestType::apply(operation::fma, a.data(), b.data(), c.data(), out.data());
    for (std::size_t i = 0; i < lanes; ++i) {  // one rounding, or two
      const S product = a[i] * b[i];
      CHECK((out[i] == std::fma(a[i], b[i], c[i]) || out[i] == product + c[i]));
    }
  }
  for (int n = -120; n <= 120; ++n)
    for (const S r : {S(0), S(0.25), S(0.5), S(0.875)}) {
      const S x = S(n) + r, rest = apply_one<TestType>(operation::split_rest, x);
      const bool below = r == 0 && rest == 1;  // the same number
      CHECK((rest == r || below));
      const S right = std::ldexp(S(1.25), below ? n - 1 : n);
      CHECK(apply_one<TestType>(operation::split_scale, x, S(1.25)) == right);
      CHECK(apply_one<TestType>(operation::split_scale_positive, x, S(1.25)) == right);
      CHECK(apply_one<TestType>(operation::split_scale_positive, x, S(-1.25)) == 0);
    }
}

TEMPLATE_TEST_CASE("Transposes and sums", "[simd]", ALL_F32, ALL_F64) {
  using S = typename TestType::S;
  if (!TestType::on_this_cpu()) return;
  constexpr std::size_t lanes = TestType::V::lanes;
  std::vector<S> a(lanes * lanes), out(lanes * lanes);
  for (std::size_t k = 0; k < a.size(); ++k)
    a[k] = S(k * k % 1009);  // small integers: sums are exact in any order
  TestType::transpose(a.data(), out.data());
  for (std::size_t i = 0; i < lanes; ++i)
    for (std::size_t j = 0; j < lanes; ++j) REQUIRE(out[i * lanes + j] == a[j * lanes + i]);
  TestType::apply(TestType::operation::sums, a.data(), a.data(), a.data(), out.data());
  for (std::size_t i = 0; i < lanes; ++i) {
    S total = 0;
    for (std::size_t j = 0; j < lanes; ++j) total += a[i * lanes + j];
    CHECK(out[i] == total);
    CHECK(TestType::sum(a.data() + i * lanes) == total);
  }
}

TEMPLATE_TEST_CASE("Masks of the first lanes, for any count, and of bools", "[simd]", ALL_F32,
                   ALL_F64) {
  using S = typename TestType::S;
  if (!TestType::on_this_cpu()) return;
  constexpr size lanes = TestType::V::lanes;
  for (const size n :
       {-(size(1) << 40), size(-1), size(0), size(1), lanes - 1, lanes, lanes + 1, size(1) << 40})
    for (size count = 0; count <= lanes; ++count) {
      std::vector<S> first(lanes), loaded(lanes);
      const std::unique_ptr<bool[]> bools(
          new bool[std::size_t(count)]);  // no byte more, for the address sanitizer
      for (size i = 0; i < count; ++i) bools[std::size_t(i)] = i % 3 != 1;
      bool any_all[2];
      TestType::masks(n, bools.get(), count, first.data(), loaded.data(), any_all);
      for (size i = 0; i < lanes; ++i) {
        CHECK(first[std::size_t(i)] == S(i < n ? 1 : 0));
        CHECK(loaded[std::size_t(i)] == S(i < count && i % 3 != 1 ? 1 : 0));
      }
      CHECK(any_all[0] == (n > 0));
      CHECK(any_all[1] == (n >= lanes));
    }
}

namespace {
template <typename T, typename In, typename Make>
void check_partial(Make make) {
  using S = typename T::S;
  constexpr size lanes = T::V::lanes;
  for (size n = 0; n <= lanes; ++n) {
    std::vector<In> from, part(std::size_t(n) + 1, make(-9));
    for (size i = 0; i < n; ++i) from.push_back(make(int(i) + 1));
    from.shrink_to_fit();
    std::vector<S> out(lanes, S(-7));
    T::template partial<In>(from.data(), n, out.data(), part.data());
    for (size i = 0; i < lanes; ++i) CHECK(out[std::size_t(i)] == S(i < n ? i + 1 : 0));
    for (size i = 0; i < n; ++i)
      CHECK(std::memcmp(&part[std::size_t(i)], &from[std::size_t(i)], sizeof(In)) == 0);
    const In untouched = make(-9);
    CHECK(std::memcmp(&part[std::size_t(n)], &untouched, sizeof(In)) == 0);
  }
}
half_bits make_half(int x) {
  return {Eigen::numext::bit_cast<std::uint16_t>(Eigen::half(float(x)))};
}
bfloat16_bits make_bfloat16(int x) {
  return {Eigen::numext::bit_cast<std::uint16_t>(Eigen::bfloat16(float(x)))};
}
}  // namespace

TEMPLATE_TEST_CASE("Partial loads and stores touch the given elements only", "[simd]", ALL_F32) {
  if (!TestType::on_this_cpu()) return;
  check_partial<TestType, float>([](int x) { return float(x); });
  check_partial<TestType, half_bits>(make_half);
  check_partial<TestType, bfloat16_bits>(make_bfloat16);
}
TEMPLATE_TEST_CASE("Partial loads and stores of double", "[simd]", ALL_F64) {
  if (!TestType::on_this_cpu()) return;
  check_partial<TestType, double>([](int x) { return double(x); });
}

namespace {
/// Every 16-bit number widens exactly and comes back; numbers between them round as Eigen rounds.
template <typename T, typename Bits, typename Scalar>
void check_conversions() {
  constexpr std::size_t lanes = T::V::lanes;
  for (unsigned base = 0; base < 65536; base += lanes) {
    Bits from[lanes], back[lanes];
    float wide[lanes], between[lanes];
    for (unsigned i = 0; i < lanes; ++i) from[i].bits = static_cast<std::uint16_t>(base + i);
    T::widen(from, wide);
    T::narrow(wide, back);
    bool good = true;
    for (unsigned i = 0; i < lanes; ++i) {
      const float expected = static_cast<float>(Eigen::numext::bit_cast<Scalar>(from[i].bits));
      good = good && same_bits(wide[i], expected);
      good = good &&
             (std::isnan(expected)
                  ? std::isnan(static_cast<float>(Eigen::numext::bit_cast<Scalar>(back[i].bits)))
                  : back[i].bits == from[i].bits);
    }
    for (const std::uint32_t offset :
         {1u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0x1fffu, 0xffffu}) {
      for (unsigned i = 0; i < lanes; ++i) {
        const std::uint32_t bits = heed::detail::bits_of(wide[i]) + offset;
        std::memcpy(&between[i], &bits, 4);
      }
      T::narrow(between, back);
      for (unsigned i = 0; i < lanes; ++i) {
        const Scalar expected(between[i]);
        const float got = static_cast<float>(Eigen::numext::bit_cast<Scalar>(back[i].bits));
        good = good && (std::isnan(between[i]) ? std::isnan(got)
                                               : same_bits(got, static_cast<float>(expected)));
      }
    }
    INFO("from bits " << base);
    REQUIRE(good);
  }
}
}  // namespace

TEMPLATE_TEST_CASE("All half and bfloat16 numbers, and those between them, convert as Eigen's",
                   "[simd]", ALL_F32) {
  if (!TestType::on_this_cpu()) return;
  check_conversions<TestType, half_bits, Eigen::half>();
  check_conversions<TestType, bfloat16_bits, Eigen::bfloat16>();
}

namespace {
/// All numbers of 8 bits as what their type says, whole vectors and parts of them.
template <typename T, typename Byte, typename Make>
void check_bytes(const Make& make) {
  constexpr size lanes = T::V::lanes;
  for (int base = 0; base < 256; base += int(lanes)) {
    std::vector<Byte> from;
    for (int i = 0; i < int(lanes); ++i) from.push_back(make(base + i));
    std::vector<float> out(lanes);
    T::widen(from.data(), out.data());
    for (std::size_t i = 0; i < lanes; ++i) CHECK(same_bits(out[i], float(from[i])));
    for (size n = 0; n < lanes; ++n) {
      const std::vector<Byte> some(from.begin(), from.begin() + n);
      std::fill(out.begin(), out.end(), -7.0f);
      T::part(some.data(), n, out.data());
      for (size i = 0; i < lanes; ++i)
        CHECK(same_bits(out[std::size_t(i)], i < n ? float(from[std::size_t(i)]) : 0.0f));
    }
  }
}
template <typename Float8>
Float8 float8_of(int bits) {
  Float8 x;
  x.bits = static_cast<std::uint8_t>(bits);
  return x;
}
}  // namespace

TEMPLATE_TEST_CASE("All int8 numbers and 8-bit floats widen", "[simd]", ALL_F32) {
  if (!TestType::on_this_cpu()) return;
  check_bytes<TestType, std::int8_t>([](int bits) { return static_cast<std::int8_t>(bits); });
  check_bytes<TestType, heed::float8_e4m3>(float8_of<heed::float8_e4m3>);
  check_bytes<TestType, heed::float8_e5m2>(float8_of<heed::float8_e5m2>);
}

TEMPLATE_TEST_CASE("All pairs of 4 bits come apart", "[simd]", ALL_F32) {
  if (!TestType::on_this_cpu()) return;
  constexpr std::size_t lanes = TestType::V::lanes;
  const float step = 0.75f, start = -3.5f;  // exact, whatever is rounded when
  for (std::size_t base = 0; base < 256; base += lanes) {
    std::vector<std::uint8_t> from(lanes);
    for (std::size_t i = 0; i < lanes; ++i) from[i] = static_cast<std::uint8_t>(base + i);
    std::vector<float> low(lanes), high(lanes);
    TestType::pairs(from.data(), step, start, low.data(), high.data());
    for (std::size_t i = 0; i < lanes; ++i) {
      CHECK(low[i] == start + step * float(from[i] & 15));
      CHECK(high[i] == start + step * float(from[i] >> 4));
    }
  }
}

TEMPLATE_TEST_CASE("Two bfloat16 in every lane", "[simd]", ALL_F32) {
  if (!TestType::on_this_cpu()) return;
  const std::uint16_t from[2] = {0x3fc0, 0xc2f7};
  float first[16], second[16];
  TestType::two(from, first, second);
  for (int i = 0; i < TestType::V::lanes; ++i) {
    CHECK(first[i] == 1.5f);
    CHECK(second[i] == -123.5f);
  }
}

#if HEED_X86
namespace {
/// All numbers of a type in two vectors at a time; of NaN under `unit` the magnitude is `no_nan`.
template <typename T, typename Float8>
void check_even_odd(float unit, float no_nan) {
  constexpr int lanes = T::V::lanes;
  for (int base = 0; base < 256; base += 2 * lanes) {
    std::vector<Float8> from;
    for (int i = 0; i < 2 * lanes; ++i) from.push_back(float8_of<Float8>(base + i));
    float two[2][16];
    T::even_odd(from.data(), two[0], two[1]);
    for (int i = 0; i < 2 * lanes; ++i) {
      const float expected = float(from[std::size_t(i)]), got = two[i % 2][i / 2] * unit;
      INFO("bits " << base + i);
      if (std::isnan(expected) && unit != 1)
        CHECK(std::abs(got) == no_nan);
      else
        CHECK(same_bits(got, expected));
    }
  }
}
}  // namespace

TEMPLATE_TEST_CASE("All 8-bit floats widen two vectors at a time", "[simd]", ALL_F32) {
  if (!TestType::on_this_cpu()) return;
  check_even_odd<TestType, heed::float8_e5m2>(1, 0);
  check_even_odd<TestType, heed::float8_e4m3>(256, 480);
}

TEMPLATE_TEST_CASE("A NaN of 8 bits is found wherever it is", "[simd]", ALL_F32) {
  if (!TestType::on_this_cpu()) return;
  for (std::size_t n : {1u, 2u, 15u, 16u, 31u, 32u, 63u, 64u, 65u, 100u, 128u, 130u}) {
    std::vector<heed::float8_e4m3> row(n + 1, float8_of<heed::float8_e4m3>(0x7e));
    row[n] = float8_of<heed::float8_e4m3>(0x7f);  // past the end
    CHECK(!TestType::has_nan(row.data(), size(n)));
    for (std::size_t at = 0; at < n; ++at)
      for (int nan : {0x7f, 0xff}) {
        row[at] = float8_of<heed::float8_e4m3>(nan);
        CHECK(TestType::has_nan(row.data(), size(n)));
        row[at] = float8_of<heed::float8_e4m3>(0xfe);
      }
  }
}
#endif

TEMPLATE_TEST_CASE("exp2 is right to 2.5 units in the last place, in double to 1.5", "[simd]",
                   ALL_F32, ALL_F64) {
  using S = typename TestType::S;
  using limits = std::numeric_limits<S>;
  constexpr auto exp2 = TestType::operation::exp2;
  if (!TestType::on_this_cpu()) return;
  constexpr std::size_t lanes = TestType::V::lanes;
  long double worst = 0;
  std::mt19937 random(3);
  std::uniform_real_distribution<S> far(S(limits::min_exponent - 1), 0), near(-8, 0);
  std::vector<S> x(lanes), out(lanes);
  for (int repeat = 0; repeat < 20000; ++repeat) {
    for (S& one : x) one = repeat % 2 ? far(random) : near(random);
    TestType::apply(exp2, x.data(), x.data(), x.data(), out.data());
    for (std::size_t i = 0; i < lanes; ++i) {
      const long double right = std::exp2(static_cast<long double>(x[i]));
      int exponent;
      std::frexp(right, &exponent);
      const long double ulp = std::ldexp(1.0L, exponent - limits::digits);
      worst = (std::max)(worst, std::abs(out[i] - right) / ulp);
    }
  }
  INFO("worst error in units in the last place: " << worst);
  // In float the polynomial is wrong by up to 9.3e-8 of 2, 1.55 units; the last addition rounds by
  // 0.5, without an FMA the multiplication before it by 0.25, all earlier ones by less.
  CHECK(worst <= (std::is_same<S, float>::value ? 2.5L : 1.5L));

  const S inf = limits::infinity();
  CHECK(apply_one<TestType>(exp2, S(0)) == 1);
  CHECK(apply_one<TestType>(exp2, S(-0.0)) == 1);
  for (int n = 0; n > limits::min_exponent - 1; --n)
    CHECK(apply_one<TestType>(exp2, S(n)) == std::ldexp(S(1), n));
  CHECK(apply_one<TestType>(exp2, S(limits::min_exponent - 1)) == (limits::min)());
  CHECK(apply_one<TestType>(exp2, std::nextafter(S(limits::min_exponent - 1), -inf)) == 0);
  for (const S far_down : {S(-1e4), S(-1e30), limits::lowest(), -inf})
    CHECK(apply_one<TestType>(exp2, far_down) == 0);
  CHECK(std::isnan(apply_one<TestType>(exp2, limits::quiet_NaN())));
}

TEMPLATE_TEST_CASE("softcap is cap tanh(x / cap) for arguments of any size", "[simd]", ALL_F32,
                   ALL_F64) {
  using S = typename TestType::S;
  using limits = std::numeric_limits<S>;
  constexpr auto softcap = TestType::operation::softcap;
  if (!TestType::on_this_cpu()) return;
  for (const S cap : {S(0.5), S(30)})
    for (S x = cap * S(1e-6); x < cap * 100; x *= S(1.07))
      for (const S s : {x, -x}) {
        const long double right = cap * std::tanh(static_cast<long double>(s) / cap);
        // The argument, the exponential, its use in fma, the quotient and the product each round
        // once or twice.
        CHECK(std::abs(apply_one<TestType>(softcap, s, cap) - right) <=
              8 * limits::epsilon() * std::abs(right));
      }
  CHECK(apply_one<TestType>(softcap, S(0), S(2)) == 0);
  CHECK(apply_one<TestType>(softcap, limits::infinity(), S(2)) == 2);
  CHECK(apply_one<TestType>(softcap, -limits::infinity(), S(2)) == -2);
  CHECK(std::isnan(apply_one<TestType>(softcap, limits::quiet_NaN(), S(2))));
}

#if HEED_X86_BF16
TEST_CASE("Pairs of bfloat16 are made, rounded, masked and multiplied as their numbers are",
          "[simd]") {
  namespace bf16 = heed::detail::avx512_bf16;
  if (!heed::detail::cpu().avx512_bf16) return;
  const auto bits = [](float x) {
    return Eigen::numext::bit_cast<std::uint16_t>(Eigen::bfloat16(x));
  };
  const auto value = [](bfloat16_bits x) {
    return static_cast<float>(Eigen::numext::bit_cast<Eigen::bfloat16>(x.bits));
  };

  std::mt19937 random(5);
  bf16::bf16_pair pairs[16];
  float a[16], b[16];
  for (int repeat = 0; repeat < 2000; ++repeat) {
    for (int i = 0; i < 16; ++i)
      for (float* const x : {&a[i], &b[i]}) {
        const std::uint32_t some = (std::uint32_t(random()) & 0x807fffff) |
                                   std::uint32_t(1 + random() % 254) << 23;  // normal numbers
        std::memcpy(x, &some, 4);
      }
    a[0] = 1 + 0x1p-8f, b[0] = 1 + 0x3p-8f;  // ties
    bool finite = bf16::apply_round(a, b, pairs), good = true, overflow = false;
    for (int i = 0; i < 16; ++i) {
      good = good && pairs[i].first.bits == bits(a[i]) && pairs[i].second.bits == bits(b[i]);
      overflow =
          overflow || std::isinf(value(pairs[i].first)) || std::isinf(value(pairs[i].second));
    }
    REQUIRE(good);
    REQUIRE(finite == !overflow);
  }
  for (float* const x : {&a[3], &b[15]})
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      for (int i = 0; i < 16; ++i) a[i] = b[i] = float(i);
      *x = bad;
      CHECK(!bf16::apply_round(a, b, pairs));
    }

  bfloat16_bits first[32], second[16];
  bool keep_first[16], keep_second[16];
  for (int i = 0; i < 16; ++i) {
    first[i].bits = bits(float(i + 1)), second[i].bits = bits(float(-2 * i)),
    first[16 + i].bits = bits(7);
    keep_first[i] = i % 3 != 1, keep_second[i] = i % 2 == 0;
    a[i] = float(100 * i);
  }
  bf16::apply_of(first, second, pairs);
  bf16::bf16_pair kept[16];
  bf16::apply_only(pairs, keep_first, keep_second, kept);
  const bf16::bf16_pair one{{bits(3)}, {bits(-5)}};
  bf16::apply_fma(&one, pairs, a, b);
  for (int i = 0; i < 16; ++i) {
    CHECK(value(pairs[i].first) == float(i + 1));
    CHECK(value(pairs[i].second) == float(-2 * i));
    CHECK(value(kept[i].first) == (keep_first[i] ? float(i + 1) : 0.0f));
    CHECK(value(kept[i].second) == (keep_second[i] ? float(-2 * i) : 0.0f));
    CHECK(b[i] == a[i] + 3 * float(i + 1) + 5 * float(2 * i));
  }
  for (size n = 0; n <= 32; ++n) {
    bf16::apply_partial(first, n, pairs);
    for (size i = 0; i < 32; ++i) {
      const bfloat16_bits got = i % 2 ? pairs[i / 2].second : pairs[i / 2].first;
      CHECK(got.bits == (i < n ? first[i].bits : 0));
    }
  }
}
#endif
