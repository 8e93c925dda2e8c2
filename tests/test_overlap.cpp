// An output that shares memory with anything else that the call reads or writes is refused; one
// that only lies between them is not.

#include <heed/backward.hpp>
#include <heed/causal_conv.hpp>
#include <heed/delta_rule.hpp>
#include <heed/kv_cache.hpp>
#include <heed/multi_head.hpp>
#include <heed/position.hpp>
#include <heed/projection.hpp>
#include <heed/ragged.hpp>
#include <heed/rwkv7.hpp>
#include <heed/selective_scan.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "support/example.hpp"
#include "support/refusal.hpp"

namespace {

constexpr heed::size_type heads = 2, n = 4, d = 4;
/// Bytes from a number, row or head to the next where all are dense.
constexpr std::ptrdiff_t element = sizeof(float), row = d * element, head = n * row;

struct argument {
  std::string name;
  heed::size_type bytes;
};

/// Memory for the arguments of a call, each in a place of its own until one is moved.
class arena {
 public:
  explicit arena(std::size_t arguments) : memory_((arguments + 1) * slot / sizeof(double)) {
    for (std::size_t k = 0; k < arguments; ++k)
      offsets_.push_back(static_cast<std::ptrdiff_t>(k * slot + slot / 2));
  }
  template <typename T>
  T* at(std::size_t k) {
    return reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(memory_.data()) + offsets_[k]);
  }
  heed::tensor_view<float> dense(std::size_t k) { return heed::bhnd(at<float>(k), 1, heads, n, d); }
  heed::tensor_view<float> column(std::size_t k) {
    return heed::bhnd(at<float>(k), 1, heads, n, 1);
  }
  heed::tensor_view<float> one_head(std::size_t k) { return heed::bhnd(at<float>(k), 1, 1, n, d); }
  Eigen::Map<heed::rows<float>> matrix(std::size_t k) { return {at<float>(k), n, d}; }
  Eigen::Map<heed::row_vector<float>> vector(std::size_t k, heed::size_type size) {
    return {at<float>(k), size};
  }

  void move(std::size_t k, std::size_t other, std::ptrdiff_t shift) {
    offsets_[k] = offsets_[other] + shift;
  }
  const std::vector<double>& content() const { return memory_; }

 private:
  static constexpr std::size_t slot = 1024;
  std::vector<double> memory_;  // zeros, which every list and gate may hold
  std::vector<std::ptrdiff_t> offsets_;
};

/// Calls call(arena) with one of the first `outputs` arguments after the other moved on top of each
/// other argument: shifted by a number, a row and a head either way. All are dense, so that their
/// sizes say whether they still overlap. `fill` writes what arguments must hold.
template <typename Fill, typename Call>
void check_each(const std::string& function, const std::vector<argument>& arguments,
                std::size_t outputs, const Fill& fill, const Call& call) {
  arena apart(arguments.size());
  fill(apart);
  call(apart);
  for (std::size_t out = 0; out < outputs; ++out)
    for (std::size_t other = 0; other < arguments.size(); ++other)
      for (const std::ptrdiff_t shift :
           {std::ptrdiff_t{0}, element, row, head, -element, -row, -head}) {
        if (other == out || shift >= arguments[other].bytes || -shift >= arguments[out].bytes)
          continue;
        CAPTURE(function, arguments[out].name, arguments[other].name, shift);
        arena memory(arguments.size());
        memory.move(out, other, shift);
        fill(memory);
        const std::vector<double> before = memory.content();
        testing::check_refused([&] { call(memory); },
                               {"heed::" + function + ": ", arguments[out].name + " (",
                                " overlaps ", arguments[other].name + " ("});
        CHECK(std::memcmp(before.data(), memory.content().data(), before.size() * sizeof(double)) ==
              0);
      }
}
template <typename Call>
void check_each(const std::string& function, const std::vector<argument>& arguments,
                std::size_t outputs, const Call& call) {
  check_each(
      function, arguments, outputs, [](arena&) {}, call);
}

constexpr heed::size_type dense = heads * head, column = heads * n * element,
                          vector = heads * element, one = head;

/// Ends the one sequence of n tokens in the starts of queries, of 32 bits, and of keys.
void fill_starts(arena& a, std::size_t queries, std::size_t keys) {
  const std::int32_t query_end = n;
  const heed::size_type key_end = n;
  std::memcpy(a.at<unsigned char>(queries) + 4, &query_end, sizeof query_end);
  std::memcpy(a.at<unsigned char>(keys) + 8, &key_end, sizeof key_end);
}

}  // namespace

TEST_CASE("attention refuses an output that overlaps an input, a term or the other output") {
  heed::workspace memory;
  check_each("attention_into",
             {{"out", one}, {"lse", n * element}, {"query", one}, {"key", one}, {"value", one}}, 2,
             [&](arena& a) {
               heed::attention_into(a.matrix(2), a.matrix(3), a.matrix(4), a.matrix(0),
                                    a.vector(1, n), {}, memory);
             });
  const std::vector<argument> arguments{{"out", dense},
                                        {"lse", column},
                                        {"query", dense},
                                        {"key", dense},
                                        {"value", dense},
                                        {"keep", n * n},
                                        {"bias", n * n * element},
                                        {"alibi: slopes", vector},
                                        {"sinks: logits", vector},
                                        {"logit_scales: factors", vector},
                                        {"key_lengths", heed::size_type{sizeof(heed::size_type)}},
                                        {"query_lengths", heed::size_type{sizeof(heed::size_type)}},
                                        {"first_keys", heed::size_type{sizeof(heed::size_type)}}};
  const auto call = [](const auto& function, arena& a, auto&... memory_of_call) {
    const Eigen::Map<const testing::mask> kept(a.at<bool>(5), n, n);
    const Eigen::Map<const heed::rows<float>> added(a.at<float>(6), n, n);
    const Eigen::Map<const Eigen::Matrix<heed::size_type, Eigen::Dynamic, 1>> lengths(
        a.at<heed::size_type>(10), 1),
        queries(a.at<heed::size_type>(11), 1), first(a.at<heed::size_type>(12), 1);
    function(a.dense(2), a.dense(3), a.dense(4), a.dense(0), a.column(1), heed::attention_options{},
             memory_of_call..., heed::keep(kept), heed::bias(added),
             heed::alibi(a.vector(7, heads)), heed::sinks(a.vector(8, heads)),
             heed::logit_scales(a.vector(9, heads)), heed::key_lengths(lengths),
             heed::query_lengths(queries), heed::first_keys(first));
  };
  check_each("multi_head_attention_into", arguments, 2, [&](arena& a) {
    call([](auto&&... all) { heed::multi_head_attention_into(all...); }, a, memory);
  });
  check_each("reference_multi_head_attention_into", arguments, 2, [&](arena& a) {
    call([](auto&&... all) { heed::reference_multi_head_attention_into(all...); }, a);
  });
}

TEST_CASE("attention refuses largest scores that overlap an input, a term or another output") {
  heed::workspace memory;
  check_each("multi_head_attention_into",
             {{"max_logits", vector},
              {"out", dense},
              {"lse", column},
              {"query", dense},
              {"key", dense},
              {"value", dense},
              {"bias", n * n * element},
              {"alibi: slopes", vector}},
             3, [&](arena& a) {
               const Eigen::Map<const heed::rows<float>> added(a.at<float>(6), n, n);
               heed::multi_head_attention_into(a.dense(3), a.dense(4), a.dense(5), a.dense(1),
                                               a.column(2), {}, memory, heed::bias(added),
                                               heed::alibi(a.vector(7, heads)),
                                               heed::max_logits(a.vector(0, heads)));
             });
}

TEST_CASE("attention refuses an output that overlaps a mask of bytes or bits") {
  heed::workspace memory;
  const std::vector<argument> arguments{
      {"out", dense}, {"lse", column}, {"keep", n * n}, {"keep_bits", n}};
  const std::vector<float> inputs(std::size_t(heads * n * d));
  const heed::tensor_view<const float> in = heed::bhnd(inputs.data(), 1, heads, n, d);
  check_each("multi_head_attention_into", arguments, 2, [&](arena& a) {
    heed::multi_head_attention_into(
        in, in, in, a.dense(0), a.column(1), heed::attention_options{}, memory,
        heed::keep(heed::bhnd(a.at<const std::uint8_t>(2), 1, 1, n, n)),
        heed::keep_bits(heed::bhnd(a.at<const std::uint8_t>(3), 1, 1, n, 1), n));
  });
}

TEST_CASE("ragged attention refuses an output that overlaps an input or the starts") {
  heed::workspace memory;
  const std::vector<argument> arguments{
      {"out", dense},
      {"lse", column},
      {"query", dense},
      {"key", dense},
      {"value", dense},
      {"query_starts", 2 * element},
      {"key_starts", 2 * heed::size_type{sizeof(heed::size_type)}}};
  const auto fill = [](arena& a) { fill_starts(a, 5, 6); };
  const auto call = [](const auto& function, arena& a, auto&... memory_of_call) {
    const Eigen::Map<const Eigen::Matrix<std::int32_t, 2, 1>> query_starts(a.at<std::int32_t>(5));
    const Eigen::Map<const Eigen::Matrix<heed::size_type, 2, 1>> key_starts(
        a.at<heed::size_type>(6));
    function(a.dense(2), a.dense(3), a.dense(4), a.dense(0), a.column(1), query_starts, key_starts,
             heed::attention_options{}, memory_of_call...);
  };
  check_each("ragged_attention_into", arguments, 2, fill, [&](arena& a) {
    call([](auto&&... all) { heed::ragged_attention_into(all...); }, a, memory);
  });
  check_each("reference_ragged_attention_into", arguments, 2, fill, [&](arena& a) {
    call([](auto&&... all) { heed::reference_ragged_attention_into(all...); }, a);
  });
}

TEST_CASE("attention refuses an output that overlaps a term with a part for each sequence") {
  heed::workspace memory;
  constexpr heed::size_type of_second = (n - 1) * (n - 1);
  const std::vector<argument> arguments{
      {"out", dense},
      {"lse", column},
      {"keep_each", of_second},
      {"bias_each", of_second * element},
      {"packed_keep_bits: starts", 2 * heed::size_type{sizeof(heed::size_type)}}};
  const std::vector<float> inputs(std::size_t(heads * n * d));
  const heed::tensor_view<const float> in = heed::bhnd(inputs.data(), 1, heads, n, d);
  const std::vector<int> starts{0, 1, n};  // a sequence of one token, and one of the others
  const heed::rows<bool> first_kept = heed::rows<bool>::Constant(1, 1, true);
  const heed::rows<float> first_added = heed::rows<float>::Zero(1, 1);
  const std::vector<std::uint8_t> bits(3, 0xff);  // the first sequence has a byte, the second two
  const auto fill = [](arena& a) {
    const heed::size_type second = 1;
    std::memcpy(a.at<unsigned char>(4) + sizeof second, &second, sizeof second);
  };
  check_each("ragged_attention_into", arguments, 2, fill, [&](arena& a) {
    const auto in_arena = [&](const auto* data) { return heed::bhnd(data, 1, 1, n - 1, n - 1); };
    const std::vector<heed::tensor_view<const bool>> masks{heed::view(first_kept),
                                                           in_arena(a.at<bool>(2))};
    const std::vector<heed::tensor_view<const float>> biases{heed::view(first_added),
                                                             in_arena(a.at<float>(3))};
    const Eigen::Map<const Eigen::Matrix<heed::size_type, 2, 1>> starts_of_bits(
        a.at<heed::size_type>(4));
    heed::ragged_attention_into(in, in, in, a.dense(0), a.column(1), starts, starts,
                                heed::attention_options{}, memory, heed::keep_each(masks),
                                heed::bias_each(biases),
                                heed::packed_keep_bits(bits, starts_of_bits));
  });
}

TEST_CASE("a backward call refuses an output that overlaps an input, a term or another output") {
  heed::workspace memory;
  const heed::size_type pairs = n * n * element;
  check_each("attention_backward_into",
             {{"grad_query", one},
              {"grad_key", one},
              {"grad_value", one},
              {"query", one},
              {"key", one},
              {"value", one},
              {"out", one},
              {"lse", n * element},
              {"grad_out", one}},
             3, [&](arena& a) {
               heed::attention_backward_into(a.matrix(3), a.matrix(4), a.matrix(5), a.matrix(6),
                                             a.vector(7, n), a.matrix(8), a.matrix(0), a.matrix(1),
                                             a.matrix(2), {}, memory);
             });
  const std::vector<argument> arguments{{"grad_query", dense},
                                        {"grad_key", dense},
                                        {"grad_value", dense},
                                        {"grad_bias", pairs},
                                        {"grad_alibi", vector},
                                        {"grad_sinks", vector},
                                        {"grad_logit_scales", vector},
                                        {"query", dense},
                                        {"key", dense},
                                        {"value", dense},
                                        {"out", dense},
                                        {"lse", column},
                                        {"grad_out", dense},
                                        {"grad_lse", column},
                                        {"keep", n * n},
                                        {"keep_bits", n},
                                        {"bias", pairs},
                                        {"alibi: slopes", vector},
                                        {"sinks: logits", vector},
                                        {"logit_scales: factors", vector},
                                        {"key_lengths", heed::size_type{sizeof(heed::size_type)}}};
  const auto call = [](const auto& function, arena& a, auto&... memory_of_call) {
    const Eigen::Map<const testing::mask> kept(a.at<bool>(14), n, n);
    const Eigen::Map<const heed::rows<float>> added(a.at<float>(16), n, n);
    const Eigen::Map<const Eigen::Matrix<heed::size_type, Eigen::Dynamic, 1>> lengths(
        a.at<heed::size_type>(20), 1);
    function(a.dense(7), a.dense(8), a.dense(9), a.dense(10), a.column(11), a.dense(12), a.dense(0),
             a.dense(1), a.dense(2), heed::attention_options{}, memory_of_call..., heed::keep(kept),
             heed::bias(added),
             heed::keep_bits(heed::bhnd(a.at<const std::uint8_t>(15), 1, 1, n, 1), n),
             heed::alibi(a.vector(17, heads)), heed::sinks(a.vector(18, heads)),
             heed::logit_scales(a.vector(19, heads)), heed::key_lengths(lengths),
             heed::grad_lse(a.column(13)), heed::grad_bias(heed::bhnd(a.at<float>(3), 1, 1, n, n)),
             heed::grad_alibi(a.vector(4, heads)), heed::grad_sinks(a.vector(5, heads)),
             heed::grad_logit_scales(a.vector(6, heads)));
  };
  check_each("multi_head_attention_backward_into", arguments, 7, [&](arena& a) {
    call([](auto&&... all) { heed::multi_head_attention_backward_into(all...); }, a, memory);
  });
  check_each("reference_multi_head_attention_backward_into", arguments, 7, [&](arena& a) {
    call([](auto&&... all) { heed::reference_multi_head_attention_backward_into(all...); }, a);
  });
}

TEST_CASE("a ragged backward call refuses an output that overlaps an input or the starts") {
  heed::workspace memory;
  const std::vector<argument> arguments{
      {"grad_query", dense},
      {"grad_key", dense},
      {"grad_value", dense},
      {"grad_alibi", vector},
      {"query", dense},
      {"key", dense},
      {"value", dense},
      {"out", dense},
      {"lse", column},
      {"grad_out", dense},
      {"query_starts", 2 * element},
      {"key_starts", 2 * heed::size_type{sizeof(heed::size_type)}}};
  const auto fill = [](arena& a) { fill_starts(a, 10, 11); };
  const heed::row_vector<float> slopes = heed::row_vector<float>::Ones(heads);
  check_each("ragged_attention_backward_into", arguments, 4, fill, [&](arena& a) {
    const Eigen::Map<const Eigen::Matrix<std::int32_t, 2, 1>> query_starts(a.at<std::int32_t>(10));
    const Eigen::Map<const Eigen::Matrix<heed::size_type, 2, 1>> key_starts(
        a.at<heed::size_type>(11));
    heed::ragged_attention_backward_into(
        a.dense(4), a.dense(5), a.dense(6), a.dense(7), a.column(8), a.dense(9), a.dense(0),
        a.dense(1), a.dense(2), query_starts, key_starts, heed::attention_options{}, memory,
        heed::alibi(slopes), heed::grad_alibi(a.vector(3, heads)));
  });
}

TEST_CASE("a gradient that overlaps itself is refused") {
  heed::workspace memory;
  heed::rows<float> numbers = heed::rows<float>::Constant(1, 2048, 1);
  const auto tensor = [&](heed::size_type at) {
    return heed::bhnd(numbers.data() + at, 1, heads, n, d);
  };
  const heed::tensor_view<const float> in = tensor(0),
                                       sums{numbers.data(), 1, heads, n, 1, 0, n, 1, 1},
                                       pairs = heed::bhnd(numbers.data(), 1, heads, n, n);
  const auto repeats = [](heed::tensor_view<float> view) {
    view.head_stride = 0;
    return view;
  };
  const auto refuse = [&](const char* whose, const auto& dq, const auto& dk, const auto& dv,
                          const auto& db) {
    const heed::rows<float> before = numbers;
    testing::check_refused(
        [&] {
          heed::multi_head_attention_backward_into(in, in, in, in, sums, in, dq, dk, dv, {}, memory,
                                                   heed::bias(pairs), heed::grad_bias(db));
        },
        {"heed::multi_head_attention_backward_into: ", whose, "overlaps itself"});
    CHECK(numbers == before);
  };
  const auto q = tensor(200), k = tensor(400), v = tensor(600),
             b = heed::bhnd(numbers.data() + 800, 1, heads, n, n);
  refuse("grad_query", repeats(q), k, v, b);
  refuse("grad_key", q, repeats(k), v, b);
  refuse("grad_value", q, k, repeats(v), b);
  refuse("grad_bias", q, k, v, repeats(b));
}

TEST_CASE(
    "attention on a cache refuses an output that overlaps an input, and the cache its own memory "
    "as tokens") {
  heed::workspace memory;
  heed::kv_cache<float> cache(1, heads, d, d, 16);
  const std::vector<float> tokens(std::size_t(heads * n * d));
  cache.append(heed::bhnd(tokens.data(), 1, heads, n, d),
               heed::bhnd(tokens.data(), 1, heads, n, d));
  const std::vector<argument> arguments{{"out", dense}, {"lse", column}, {"query", dense}};
  check_each("cached_attention_into", arguments, 2, [&](arena& a) {
    heed::cached_attention_into(a.dense(2), cache, a.dense(0), a.column(1),
                                heed::attention_options{}, memory);
  });
  check_each("reference_cached_attention_into", arguments, 2, [&](arena& a) {
    heed::reference_cached_attention_into(a.dense(2), cache, a.dense(0), a.column(1),
                                          heed::attention_options{});
  });

  const heed::tensor_view<const float> own = cache.keys().elements,
                                       own_values = cache.values().elements,
                                       foreign = heed::bhnd(tokens.data(), 1, heads, n, d);
  const auto first = [](heed::tensor_view<const float> view) {
    view.rows = n;
    return view;
  };
  testing::check_refused([&] { cache.append(first(own), foreign); },
                         {"heed::kv_cache::append: key (1 x 2 x 4 x 4) overlaps the cache's own "
                          "keys (1 x 2 x 16 x 4)"});
  testing::check_refused([&] { cache.append(0, foreign, first(own_values)); },
                         {"heed::kv_cache::append: value (1 x 2 x 4 x 4) overlaps the cache's own "
                          "values (1 x 2 x 16 x 4)"});
  CHECK(cache.length(0) == n);
}

TEST_CASE("recurrences refuse an output or a state that overlaps an input or the other") {
  heed::workspace memory;
  const std::vector<argument> arguments{{"out", dense}, {"carry", dense}, {"query", dense},
                                        {"key", dense}, {"value", dense}, {"log_gate", dense},
                                        {"bonus", row}};
  const auto linear = [](const auto& function, arena& a, auto&... memory_of_call) {
    function(a.dense(2), a.dense(3), a.dense(4), a.dense(0), heed::linear_attention_options{},
             memory_of_call..., heed::carry(a.dense(1)), heed::log_gate(a.dense(5)),
             heed::bonus(a.vector(6, d)));
  };
  check_each("multi_head_linear_attention_into", arguments, 2, [&](arena& a) {
    linear([](auto&&... all) { heed::multi_head_linear_attention_into(all...); }, a, memory);
  });
  check_each("recurrent_multi_head_linear_attention_into", arguments, 2, [&](arena& a) {
    linear([](auto&&... all) { heed::recurrent_multi_head_linear_attention_into(all...); }, a);
  });

  const std::vector<argument> of_delta{{"out", dense},     {"carry", dense}, {"query", dense},
                                       {"key", dense},     {"value", dense}, {"beta", column},
                                       {"log_gate", dense}};
  check_each("multi_head_delta_rule_into", of_delta, 2, [&](arena& a) {
    heed::multi_head_delta_rule_into(a.dense(2), a.dense(3), a.dense(4), a.column(5), a.dense(0),
                                     heed::delta_rule_options{}, memory, heed::carry(a.dense(1)),
                                     heed::log_gate(a.dense(6)));
  });
  check_each("recurrent_multi_head_delta_rule_into", of_delta, 2, [&](arena& a) {
    heed::recurrent_multi_head_delta_rule_into(a.dense(2), a.dense(3), a.dense(4), a.column(5),
                                               a.dense(0), heed::delta_rule_options{},
                                               heed::carry(a.dense(1)), heed::log_gate(a.dense(6)));
  });
  check_each("multi_head_rwkv7_into",
             {{"out", dense},
              {"carry", dense},
              {"receptance", dense},
              {"decay", dense},
              {"key", dense},
              {"value", dense},
              {"a", dense},
              {"b", dense}},
             2, [&](arena& a) {
               heed::multi_head_rwkv7_into(a.dense(2), a.dense(3), a.dense(4), a.dense(5),
                                           a.dense(6), a.dense(7), a.dense(0),
                                           heed::rwkv7_options{}, memory, heed::carry(a.dense(1)));
             });
  check_each("selective_scan_into",
             {{"out", dense},
              {"carry", dense},
              {"u", dense},
              {"dt", dense},
              {"a", dense},
              {"b", dense},
              {"c", dense},
              {"skip", row},
              {"step_bias", row},
              {"silu_gate", dense}},
             2, [&](arena& a) {
               heed::selective_scan_into(a.dense(2), a.dense(3), a.dense(4), a.dense(5), a.dense(6),
                                         a.dense(0), heed::selective_scan_options{}, memory,
                                         heed::carry(a.dense(1)), heed::skip(a.vector(7, d)),
                                         heed::step_bias(a.vector(8, d)),
                                         heed::silu_gate(a.dense(9)));
             });
  constexpr heed::size_type taps = 3, past = (taps - 1) * row * heads;
  check_each("causal_conv_into",
             {{"out", dense},
              {"carry", past},
              {"x", dense},
              {"weight", d * taps * element},
              {"channel_bias", row}},
             2, [](arena& a) {
               heed::causal_conv_into(
                   a.dense(2), heed::bhnd(a.at<float>(3), 1, 1, d, taps), a.dense(0),
                   heed::causal_conv_options{},
                   heed::carry(heed::bhnd(a.at<float>(1), 1, heads, taps - 1, d)),
                   heed::channel_bias(a.vector(4, d)));
             });
}

TEST_CASE("a projection refuses an output that overlaps an input") {
  heed::workspace memory;
  check_each("project_into", {{"out", one}, {"x", one}, {"weight", one}}, 1, [&](arena& a) {
    heed::project_into(a.matrix(1), a.matrix(2), a.matrix(0), heed::attention_options{}, memory);
  });
}

TEST_CASE("a rotation in place refuses heads that overlap the tables or the positions") {
  check_each("rotate_into",
             {{"x", dense},
              {"cos", one / 2},
              {"sin", one / 2},
              {"positions", n * heed::size_type{sizeof(heed::size_type)}}},
             1, [](arena& a) {
               const Eigen::Map<const heed::rows<float>> cos(a.at<float>(1), n, d / 2),
                   sin(a.at<float>(2), n, d / 2);
               const Eigen::Map<const Eigen::Matrix<heed::size_type, Eigen::Dynamic, 1>> positions(
                   a.at<heed::size_type>(3), n);
               heed::rotate_into(a.dense(0), cos, sin, positions);
             });
}

TEST_CASE("tables that are computed from what is rotated are those of before") {
  const heed::rows<float> x = testing::random_rows<float>(n, d, 1);
  const std::vector<heed::size_type> positions{3, 1, 0, 2};
  heed::rows<float> expected = x, got = x;
  const heed::rows<float> cos = x.leftCols(d / 2) * 2, sin = x.rightCols(d / 2) * 2;
  heed::rotate_into(heed::bhnd(expected.data(), 1, 1, n, d), cos, sin, positions);
  heed::rotate_into(heed::bhnd(got.data(), 1, 1, n, d), got.leftCols(d / 2) * 2,
                    got.rightCols(d / 2).array() * 2, positions);
  CHECK(got == expected);
}

TEST_CASE("an output that has one place for two numbers is refused") {
  heed::workspace memory;
  std::vector<float> inputs(std::size_t(heads * n * d)), outputs(inputs.size(), -0.5f);
  const heed::tensor_view<float> in = heed::bhnd(inputs.data(), 1, heads, n, d);
  const auto changed = [&](heed::size_type heed::tensor_view<float>::*stride, heed::size_type to) {
    heed::tensor_view<float> out = heed::bhnd(outputs.data(), 1, heads, n, d);
    out.*stride = to;
    return out;
  };
  const heed::tensor_view<float> same_head = changed(&heed::tensor_view<float>::head_stride, 0),
                                 same_row = changed(&heed::tensor_view<float>::row_stride, 0),
                                 rows_that_meet =
                                     changed(&heed::tensor_view<float>::row_stride, d - 1),
                                 rows_that_meet_upwards = [&] {
                                   heed::tensor_view<float> out =
                                       changed(&heed::tensor_view<float>::row_stride, 1 - d);
                                   out.data += n * d;
                                   return out;
                                 }();
  for (const auto& out : {same_head, same_row, rows_that_meet, rows_that_meet_upwards}) {
    const std::vector<std::string> words{"out (1 x 2 x 4 x 4) overlaps itself"};
    testing::check_refused(
        [&] {
          heed::multi_head_attention_into(in, in, in, out, {}, heed::attention_options{}, memory);
        },
        words);
    testing::check_refused(
        [&] { heed::multi_head_linear_attention_into(in, in, in, out, {}, memory); }, words);
    testing::check_refused([&] { heed::causal_conv_into(in, in, out, {}); }, words);
    testing::check_refused([&] { heed::apply_rope(out); },
                           {"heed::apply_rope: x (1 x 2 x 4 x 4) overlaps itself"});
  }
  for (const float number : outputs) CHECK(number == -0.5f);
}

namespace {

/// q, k, v and out, in one buffer: the numbers of each token's heads as the strides say, out being
/// what no input reaches.
struct interleaved {
  const char* name;
  heed::size_type parts;  // from one of the four to the next
  heed::size_type batch_stride, head_stride, row_stride;
};
constexpr heed::size_type batch = 2;
const interleaved layouts[] = {
    {"column blocks of one matrix, heads side by side", heads* d, n * 4 * heads* d, d,
     4 * heads* d},
    {"the same, rows with some space after them", heads* d, n*(4 * heads * d + 3), d,
     4 * heads* d + 3},
    {"parts of each head", d, n * 4 * heads* d, 4 * d, 4 * heads* d},
    {"parts of each head, rows with some space after them", d, n*(4 * heads * d + 3), 4 * d,
     4 * heads* d + 3},
    {"rows of each token", heads* d, 4 * heads* d, d, batch * 4 * heads* d},
    {"one head after the other, four rows a token", d, heads* n * 4 * d, n * 4 * d, 4 * d},
};
constexpr std::size_t interleaved_size = std::size_t(batch * n * (4 * heads * d + 3));

/// Runs call(q, k, v, out) on the buffer and on dense copies of the inputs. The outputs must be the
/// same and the inputs untouched.
template <typename Call>
void check_interleaved(const Call& call) {
  for (const interleaved& layout : layouts)
    for (const bool backwards : {false, true}) {
      CAPTURE(layout.name, backwards);
      std::vector<float> buffer(interleaved_size);
      const heed::rows<float> numbers =
          testing::random_rows<float>(1, heed::size_type(interleaved_size), 3);
      std::copy(numbers.data(), numbers.data() + numbers.size(), buffer.begin());
      const std::vector<float> before = buffer;
      std::array<heed::tensor_view<float>, 4> views;
      std::array<std::vector<float>, 4> copies;
      std::array<heed::tensor_view<float>, 4> dense_views;
      for (std::size_t part = 0; part < 4; ++part) {
        views[part] = {buffer.data() + heed::size_type(part) * layout.parts,
                       batch,
                       heads,
                       n,
                       d,
                       layout.batch_stride,
                       layout.head_stride,
                       layout.row_stride,
                       1};
        if (backwards) {  // the last row first
          views[part].data += (n - 1) * layout.row_stride;
          views[part].row_stride = -layout.row_stride;
        }
        copies[part].resize(std::size_t(batch * heads * n * d));
        dense_views[part] = heed::bhnd(copies[part].data(), batch, heads, n, d);
        for (heed::size_type b = 0; b < batch; ++b)
          for (heed::size_type h = 0; h < heads; ++h)
            for (heed::size_type i = 0; i < n; ++i)
              for (heed::size_type c = 0; c < d; ++c)
                dense_views[part](b, h, i, c) = views[part](b, h, i, c);
      }
      call(dense_views[0], dense_views[1], dense_views[2], dense_views[3]);
      call(views[0], views[1], views[2], views[3]);
      heed::size_type different = 0;
      for (heed::size_type b = 0; b < batch; ++b)
        for (heed::size_type h = 0; h < heads; ++h)
          for (heed::size_type i = 0; i < n; ++i)
            for (heed::size_type c = 0; c < d; ++c) {
              different += views[3](b, h, i, c) != dense_views[3](b, h, i, c);
              views[3](b, h, i, c) = before[std::size_t(&views[3](b, h, i, c) - buffer.data())];
            }
      CHECK(different == 0);
      CHECK(buffer == before);
    }
}

}  // namespace

TEST_CASE("an output between the inputs of one buffer is right") {
  heed::workspace memory;
  check_interleaved([&](const auto& q, const auto& k, const auto& v, const auto& out) {
    heed::multi_head_attention_into(q, k, v, out, {}, heed::attention_options{}, memory);
  });
  check_interleaved([&](const auto& q, const auto& k, const auto& v, const auto& out) {
    heed::reference_multi_head_attention_into(q, k, v, out, {}, heed::attention_options{});
  });
  check_interleaved([&](const auto& q, const auto& k, const auto& v, const auto& out) {
    heed::multi_head_linear_attention_into(q, k, v, out, {}, memory);
  });
  check_interleaved([&](const auto& q, const auto& k, const auto& v, const auto& out) {
    heed::multi_head_rwkv7_into(q, k, v, k, q, v, out, {}, memory);
  });
  check_interleaved([&](const auto& q, const auto& k, const auto& v, const auto& out) {
    heed::selective_scan_into(q, k, v, k, v, out, {}, memory);
  });
  check_interleaved([](const auto& q, const auto& k, const auto&, const auto& out) {
    heed::causal_conv_into(q, k, out, {});
  });
}

TEST_CASE(
    "lse may be one more column of the output, and a projection one block of columns or rows of "
    "another's matrix") {
  heed::workspace memory;
  const heed::rows<float> in = testing::random_rows<float>(n, d, 1),
                          weight = testing::random_rows<float>(d, d, 2);
  const auto expected = heed::attention_with_lse(in, in, in);
  heed::rows<float> both(n, d + 1);
  heed::attention_into(in, in, in, both.leftCols(d), both.col(d), {}, memory);
  CHECK(both.leftCols(d) == expected.out);
  CHECK(both.col(d) == expected.lse);

  const heed::rows<float> product = heed::project(in, weight);
  heed::rows<float> matrix(n, 3 * d);
  matrix.middleCols(d, d) = in;
  heed::project_into(matrix.middleCols(d, d), weight, matrix.leftCols(d), {}, memory);
  heed::project_into(matrix.middleCols(d, d), weight, matrix.rightCols(d), {}, memory);
  CHECK(matrix.leftCols(d) == product);
  CHECK(matrix.rightCols(d) == product);
  Eigen::MatrixXf columns(3 * n, d);  // column-major: blocks of rows interleave
  columns.middleRows(n, n) = in;
  heed::project_into(columns.middleRows(n, n), weight, columns.bottomRows(n), {}, memory);
  CHECK(columns.bottomRows(n) == product);
}

namespace {

/// Some views of small sizes and steps within `room` bytes: dense ones, ones with gaps, backwards,
/// with rows that meet, repeated.
template <typename Scalar>
heed::tensor_view<Scalar> random_view(std::mt19937& engine, unsigned char* memory,
                                      heed::size_type room) {
  const auto between = [&](heed::size_type low, heed::size_type high) {
    return low + heed::size_type(engine() % unsigned(high - low + 1));
  };
  const std::array<heed::size_type, 3> lengths{4, 12, 40};
  const heed::size_type most = lengths[engine() % 3];
  heed::tensor_view<Scalar> view;
  view.batch = between(0, 3), view.heads = between(1, 3), view.rows = between(1, 4),
  view.cols = between(1, 4);
  view.batch_stride = between(-most, most), view.head_stride = between(-most, most),
  view.row_stride = between(-most, most);
  view.col_stride = between(-2, 2);
  view.data = reinterpret_cast<Scalar*>(memory + room / 2 +
                                        between(-30, 30) * heed::size_type{sizeof(double)});
  return view;
}
/// Counts how many numbers have each byte.
template <typename Scalar>
std::vector<int> bytes_of(const heed::tensor_view<Scalar>& view, const unsigned char* memory,
                          heed::size_type room) {
  std::vector<int> numbers(static_cast<std::size_t>(room), 0);
  for (heed::size_type b = 0; b < view.batch; ++b)
    for (heed::size_type h = 0; h < view.heads; ++h)
      for (heed::size_type i = 0; i < view.rows; ++i)
        for (heed::size_type c = 0; c < view.cols; ++c)
          for (std::size_t byte = 0; byte < sizeof(Scalar); ++byte)
            ++numbers[static_cast<std::size_t>(
                          reinterpret_cast<const unsigned char*>(&view(b, h, i, c)) - memory) +
                      byte];
  return numbers;
}
template <typename A, typename B>
heed::size_type count_wrong(std::mt19937& engine, int rounds) {
  constexpr heed::size_type room = 8192;
  std::vector<double> memory(room / sizeof(double));
  unsigned char* const bytes = reinterpret_cast<unsigned char*>(memory.data());
  heed::size_type wrong = 0, overlapping = 0;
  for (int round = 0; round < rounds; ++round) {
    const heed::tensor_view<A> a = random_view<A>(engine, bytes, room);
    const heed::tensor_view<B> b = random_view<B>(engine, bytes, room);
    const std::vector<int> of_a = bytes_of(a, bytes, room), of_b = bytes_of(b, bytes, room);
    bool common = false, twice = false;
    for (std::size_t byte = 0; byte < of_a.size(); ++byte) {
      common = common || (of_a[byte] > 0 && of_b[byte] > 0);
      twice = twice || of_a[byte] > 1;
    }
    overlapping += common;
    const heed::detail::memory_region region_a = heed::detail::region_of(a),
                                      region_b = heed::detail::region_of(b);
    wrong += heed::detail::overlap(region_a, region_b) != common ||
             heed::detail::overlap(region_b, region_a) != common ||
             heed::detail::overlaps_itself(region_a) != twice;
  }
  CHECK(overlapping > rounds / 20);
  CHECK(overlapping < rounds - rounds / 20);
  return wrong;
}

}  // namespace

TEST_CASE("whether views overlap is decided by the bytes that they reach") {
  std::mt19937 engine(5);
  CHECK(count_wrong<float, float>(engine, 4000) == 0);
  CHECK(count_wrong<float, double>(engine, 4000) == 0);
  CHECK(count_wrong<Eigen::half, float>(engine, 4000) == 0);
  CHECK(count_wrong<float, bool>(engine, 4000) == 0);
}

TEST_CASE("views of more than there is memory are decided without an overflow") {
  float number = 0;
  const heed::size_type most = (std::numeric_limits<heed::size_type>::max)();
  const heed::detail::memory_region any = heed::detail::region_of(heed::bhnd(&number, 1, 1, 1, 1));
  heed::tensor_view<float> huge{&number, 1, 1, most, 1, 0, 0, 0, 1};
  CHECK(heed::detail::overlap(any, heed::detail::region_of(huge)));
  CHECK(heed::detail::overlaps_itself(heed::detail::region_of(huge)));
  for (const heed::size_type stride : {most, most / 2, -most, most / 4 + 3}) {
    huge = {&number, 1, 3, 5, 2, 0, stride / 3, stride, -stride};
    const heed::detail::memory_region region = heed::detail::region_of(huge);
    heed::detail::overlap(any, region);  // either answer will do, but not undefined behaviour
    CHECK(heed::detail::overlaps_itself(region));
  }
}

TEST_CASE(
    "strides that fit each other nowhere are decided in bounded time, if need be by a refusal") {
  std::vector<unsigned char> memory(1 << 20);
  heed::tensor_view<unsigned char> a{memory.data(), 40, 40, 40, 1, 10007, 1013, 97, 1};
  heed::tensor_view<unsigned char> b{memory.data() + 50, 40, 40, 40, 1, 10009, 1019, 101, 1};
  CHECK(heed::detail::overlap(heed::detail::region_of(a), heed::detail::region_of(b)));
}
