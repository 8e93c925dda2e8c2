// An output that begins where an input does is refused: by recurrences, which read inputs again after they have written, and for an lse.

#include <heed/causal_conv.hpp>
#include <heed/delta_rule.hpp>
#include <heed/multi_head.hpp>
#include <heed/rwkv7.hpp>
#include <heed/selective_scan.hpp>

#include <string>
#include <vector>

#include "support/refusal.hpp"

namespace {

constexpr heed::index n = 4;

/// n tokens of n numbers of their own.
struct numbers {
  std::vector<float> values = std::vector<float>(n * n, -0.5f);
  heed::tensor_view<float> view() { return heed::bhnd(values.data(), 1, 1, n, n); }
  heed::tensor_view<float> column() { return heed::bhnd(values.data(), 1, 1, n, 1); }
};

/// Calls call(inputs, out) with an out that starts where each of the inputs in turn starts: refused with its name, and nothing is written.
template <typename Call>
void check_each(const char* function, const std::vector<std::string>& names, const Call& call) {
  for (std::size_t same = 0; same < names.size(); ++same) {
    std::vector<numbers> inputs(names.size());
    testing::check_refused([&] { call(inputs, inputs[same].view()); },
                           {std::string("heed::") + function + ": out", "starts where " + names[same] + " "});
    for (const float number : inputs[same].values) CHECK(number == -0.5f);
  }
}

}  // namespace

TEST_CASE("recurrences refuse an output that begins where an input does") {
  heed::workspace memory;
  check_each("causal_conv_into", {"x", "weight"},
             [](auto& in, const auto& out) { heed::causal_conv_into(in[0].view(), in[1].view(), out, {}); });
  check_each("multi_head_rwkv7_into", {"receptance", "decay", "key", "value", "a", "b"}, [](auto& in, const auto& out) {
    heed::multi_head_rwkv7_into(in[0].view(), in[1].view(), in[2].view(), in[3].view(), in[4].view(), in[5].view(), out, {});
  });
  check_each("selective_scan_into", {"u", "dt", "a", "b", "c"}, [](auto& in, const auto& out) {
    heed::selective_scan_into(in[0].view(), in[1].view(), in[2].view(), in[3].view(), in[4].view(), out, {});
  });
  check_each("multi_head_linear_attention_into", {"query", "key", "value"}, [&](auto& in, const auto& out) {
    heed::multi_head_linear_attention_into(in[0].view(), in[1].view(), in[2].view(), out, {}, memory);
  });
  check_each("multi_head_delta_rule_into", {"query", "key", "value", "beta"}, [&](auto& in, const auto& out) {
    heed::multi_head_delta_rule_into(in[0].view(), in[1].view(), in[2].view(), in[3].column(), out, {}, memory);
  });
}

TEST_CASE("an lse that begins where an input does is refused") {
  heed::workspace memory;
  const std::vector<std::string> names{"query", "key", "value"};
  for (std::size_t same = 0; same < names.size(); ++same) {
    std::vector<numbers> in(3);
    numbers out;
    testing::check_refused(
        [&] {
          heed::multi_head_attention_into(in[0].view(), in[1].view(), in[2].view(), out.view(), in[same].column(),
                                          heed::attention_options{}, memory);
        },
        {"heed::multi_head_attention_into: lse", "starts where " + names[same] + " "});
    for (const float number : in[same].values) CHECK(number == -0.5f);
  }
}
