#include <heed/causal_conv.hpp>
#include <heed/linear_attention.hpp>
#include <heed/multi_head.hpp>
#include <heed/options.hpp>
#include <heed/projection.hpp>
#include <heed/rwkv7.hpp>
#include <heed/selective_scan.hpp>
#include <heed/streaming.hpp>
#include <heed/weights.hpp>

#include <algorithm>
#include <sstream>
#include <string>

#include "support/example.hpp"
#include "support/refusal.hpp"

namespace {

/// Options that are out of range must be refused by every function that takes them, by its own
/// name.
template <typename Change>
void refuse(const Change& change, const std::vector<std::string>& words) {
  const testing::example<float> e(3, 5, 4, 4);
  heed::attention_options options;
  change(options);
  const auto check = [&](const std::string& function, const auto& call) {
    std::vector<std::string> all = words;
    all.push_back("heed::" + function + ":");
    testing::check_refused(call, all);
  };
  check("attention", [&] { heed::attention(e.query, e.key, e.value, options); });
  check("attention_with_lse", [&] { heed::attention_with_lse(e.query, e.key, e.value, options); });
  check("reference_attention",
        [&] { heed::reference_attention(e.query, e.key, e.value, options); });
  check("streaming_attention",
        [&] { heed::streaming_attention(e.query, e.key, e.value, options); });
  check("attention_with_weights",
        [&] { heed::attention_with_weights(e.query, e.key, e.value, options); });
  check("packed_multi_head_attention", [&] {
    heed::packed_multi_head_attention(e.query, e.key, e.value, {2, 2}, options);
  });
}

}  // namespace

TEST_CASE("options that are out of range are refused, with their value") {
  const double nan_value = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  refuse([&](heed::attention_options& o) { o.scale = nan_value; }, {"scale", "nan"});
  refuse([&](heed::attention_options& o) { o.scale = infinity; }, {"scale", "inf"});
  refuse([](heed::attention_options& o) { o.softcap = -1; }, {"softcap", "-1"});
  refuse([&](heed::attention_options& o) { o.softcap = nan_value; }, {"softcap", "nan"});
  refuse([&](heed::attention_options& o) { o.softcap = infinity; }, {"softcap", "inf"});
  refuse([](heed::attention_options& o) { o.window_left = -2; }, {"window_left", "-2"});
  refuse([](heed::attention_options& o) { o.window_right = -3; }, {"window_right", "-3"});
  refuse([](heed::attention_options& o) { o.execution.threads = 0; }, {"execution.threads", "0"});
  refuse([](heed::attention_options& o) { o.causal = heed::causal(9); }, {"causal", "9"});
  refuse([](heed::attention_options& o) { o.execution.target = heed::isa(99); },
         {"execution.target", "99"});
}

TEST_CASE("a scale or softcap that the scores' type cannot hold is refused, on every path") {
  constexpr double least = std::numeric_limits<float>::min(),
                   most = std::numeric_limits<float>::max() * 0.69;
  for (const double x : {1e300, 1e-50, -1e300, -1e-50, 3e38}) {
    std::ostringstream number;
    number << x;
    refuse([&](heed::attention_options& o) { o.scale = x; }, {"scale", number.str()});
    if (x > 0)
      refuse([&](heed::attention_options& o) { o.softcap = x; }, {"softcap", number.str()});
    const testing::example<double> e(3, 5, 4, 4);  // whose scores hold it, in the reference too
    heed::attention_options options;
    options.scale = x;
    CHECK(heed::attention(e.query, e.key, e.value, options).rows() == 3);
    CHECK(heed::reference_attention(e.query, e.key, e.value, options).rows() == 3);
  }
  for (const double x : {0.0, least, -least, most, -most}) {
    const testing::example<float> e(3, 5, 4, 4);
    heed::attention_options options;
    options.scale = x;
    CHECK(heed::attention(e.query, e.key, e.value, options).rows() == 3);
  }
  const testing::example<Eigen::half> half(3, 5, 4, 4);  // whose scores are float
  heed::attention_options options;
  options.scale = 1e-50;
  testing::check_refused([&] { heed::attention(half.query, half.key, half.value, options); },
                         {"heed::attention: scale", "1e-50"});

  heed::linear_attention_options linear;
  const heed::rows<float> x = heed::rows<float>::Ones(3, 4);
  linear.scale = 1e300;
  testing::check_refused([&] { heed::linear_attention(x, x, x, linear); },
                         {"heed::linear_attention: scale", "1e+300"});
  linear = {};
  linear.epsilon = 1e-50;
  testing::check_refused([&] { heed::linear_attention(x, x, x, linear); }, {"epsilon", "1e-50"});
  linear = {};
  linear.feature_map = heed::feature_map(9);
  testing::check_refused([&] { heed::recurrent_linear_attention(x, x, x, linear); },
                         {"feature_map", "9"});
}

TEST_CASE("an instruction set that this CPU lacks is refused, by the function that was called") {
  const heed::isa best = heed::best_isa();
  if (best >= heed::isa::avx512) return;  // nothing to lack
  const std::string words =
      std::string("avx512 is not available: the best that this CPU has is ") + heed::name(best);
  refuse([](heed::attention_options& o) { o.execution.target = heed::isa::avx512; },
         {"execution.target " + words});
  testing::check_refused([] { heed::set_target(heed::isa::avx512); },
                         {"heed::set_target: target " + words});

  const heed::rows<float> x = heed::rows<float>::Ones(3, 4);
  heed::attention_options options;
  options.execution.target = heed::isa::avx512;
  testing::check_refused(
      [&] { heed::project_qkv(x, x.topRows(0), x.topRows(0), x.topRows(0), options); },
      {"heed::project_qkv: execution.target " + words});
  heed::linear_attention_options linear;
  linear.execution.target = heed::isa::avx512;
  testing::check_refused([&] { heed::linear_attention(x, x, x, linear); },
                         {"heed::linear_attention: execution.target " + words});
}

TEST_CASE(
    "a function without kernels refuses an instruction set to choose; the twins of those that have "
    "kernels check it") {
  const heed::rows<float> x = heed::rows<float>::Ones(3, 4), state = heed::rows<float>::Ones(4, 2),
                          b = heed::rows<float>::Ones(3, 2);
  constexpr const char* words =
      "execution.target must be automatic, because this function has no kernels to choose from, "
      "but is baseline";
  const auto with = [](auto options, heed::isa target) {
    options.execution.target = target;
    return options;
  };
  const auto on = [&](auto options) { return with(options, heed::isa::baseline); };
  testing::check_refused(
      [&] { heed::selective_scan(x, x, state, b, b, on(heed::selective_scan_options())); },
      {"heed::selective_scan: ", words});
  testing::check_refused([&] { heed::causal_conv(x, x, on(heed::causal_conv_options())); },
                         {"heed::causal_conv: ", words});
  heed::rows<float> out(3, 4);
  heed::workspace memory;
  const auto view = heed::view(x);
  testing::check_refused(
      [&] {
        heed::multi_head_rwkv7_into(view, view, view, view, view, view, heed::writable_view(out),
                                    on(heed::rwkv7_options()), memory);
      },
      {"heed::multi_head_rwkv7_into: ", words});

  CHECK(heed::reference_attention(x, x, x, on(heed::attention_options())) ==
        heed::reference_attention(x, x, x));
  CHECK(heed::recurrent_linear_attention(x, x, x, on(heed::linear_attention_options())) ==
        heed::recurrent_linear_attention(x, x, x));
  const auto wrong = with(heed::linear_attention_options(), heed::isa(99));
  testing::check_refused([&] { heed::recurrent_linear_attention(x, x, x, wrong); },
                         {"heed::recurrent_linear_attention: execution.target", "99"});
}

TEST_CASE("options left alone mean plain attention") {
  const heed::attention_options options{};
  CHECK(!options.scale);
  CHECK(options.causal == heed::causal::none);
  CHECK(options.window_left == -1);
  CHECK(options.window_right == -1);
  CHECK(options.softcap == 0);
  CHECK(options.execution.target == heed::isa::automatic);
  CHECK(options.execution.threads == 1);
  CHECK(options.execution.executor == nullptr);
}

TEST_CASE("instruction sets have their names, and one that this CPU lacks is refused by both") {
  const std::vector<heed::isa> available = heed::available_isas();
  const auto has = [&](heed::isa target) {
    return std::find(available.begin(), available.end(), target) != available.end();
  };
  CHECK(std::string(heed::name(heed::isa::automatic)) == "automatic");
  CHECK(std::string(heed::name(heed::isa(99))) == "unknown");
  testing::check_refused([] { heed::set_target(heed::isa(99)); },
                         {"heed::set_target: target", "99"});
  CHECK(std::string(heed::name(heed::isa::baseline)) == "baseline");
  CHECK(std::string(heed::name(heed::isa::avx2)) == "avx2");
  CHECK(std::string(heed::name(heed::isa::avx512)) == "avx512");
  CHECK(std::string(heed::name(heed::isa::avx512_bf16)) == "avx512_bf16");
  CHECK(has(heed::isa::baseline));
  CHECK(has(heed::best_isa()));
  for (const heed::detail::isa_entry& entry : heed::detail::isas) {
    const heed::isa target = entry.target;
    const testing::example<Eigen::bfloat16> e(3, 5, 4, 4);
    heed::attention_options options;
    options.execution.target = target;
    const auto call = [&] { heed::attention(e.query, e.key, e.value, options); };
    has(target) ? call()
                : testing::check_refused(call, {heed::name(target), heed::name(heed::best_isa())});
  }
}

TEST_CASE("with as many queries as keys both causal alignments are one") {
  testing::example<double> e(9, 9, 4, 4), f = e;
  e.options.causal = heed::causal::top_left;
  f.options.causal = heed::causal::bottom_right;
  CHECK(e.reference().out == f.reference().out);
}

TEST_CASE("a window wider than the sequence hides nothing, the widest number of all included") {
  for (const heed::size_type width :
       {heed::size_type(100), (std::numeric_limits<heed::size_type>::max)()}) {
    testing::example<double> e(9, 30, 4, 4);
    const auto plain = e.reference();
    e.options.window_left = e.options.window_right = width;
    CHECK(e.reference().out == plain.out);
    CHECK(heed::streaming_attention_with_lse(e.query, e.key, e.value, e.options)
              .lse.isApprox(plain.lse, 1e-14));
    CHECK(heed::attention_with_lse(e.query, e.key, e.value, e.options)
              .lse.isApprox(plain.lse, 1e-14));
  }
}

TEST_CASE("causal closes the right side of a window") {
  testing::example<double> e(9, 9, 4, 4), f = e;
  e.options.causal = f.options.causal = heed::causal::bottom_right;
  e.options.window_left = f.options.window_left = 3;
  f.options.window_right = 5;
  CHECK(e.reference().out == f.reference().out);
}
