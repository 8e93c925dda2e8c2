// A backward call with one wrong argument says which it is, of which function, and both sizes, and
// writes nothing.

#include <heed/backward.hpp>

#include <string>
#include <vector>

#include "support/example.hpp"
#include "support/refusal.hpp"

using heed::size_type;

namespace {

constexpr size_type batch = 2, heads = 4, kv_heads = 2, n_q = 5, n_kv = 7, d_k = 6, d_v = 3;

/// The arguments of a call, which a test changes.
struct arguments {
  heed::rows<float> numbers = heed::rows<float>::Constant(1, 20000, -7);
  size_type used = 0;
  heed::tensor_view<float> place(size_type b, size_type h, size_type n, size_type d) {
    const auto view = heed::bhnd(numbers.data() + used, b, h, n, d);
    used += b * h * n * d + 100;  // room for one that is larger
    return view;
  }
  heed::tensor_view<float> query = place(batch, heads, n_q, d_k),
                           key = place(batch, kv_heads, n_kv, d_k),
                           value = place(batch, kv_heads, n_kv, d_v),
                           out = place(batch, heads, n_q, d_v), lse = place(batch, heads, n_q, 1),
                           grad_out = place(batch, heads, n_q, d_v),
                           grad_query = place(batch, heads, n_q, d_k),
                           grad_key = place(batch, kv_heads, n_kv, d_k),
                           grad_value = place(batch, kv_heads, n_kv, d_v),
                           grad_lse = place(batch, heads, n_q, 1),
                           bias = place(1, heads, n_q, n_kv),
                           grad_bias = place(1, heads, n_q, n_kv);
  heed::row_vector<float> of_heads = heed::row_vector<float>::Ones(heads), grad_alibi = of_heads,
                          grad_sinks = of_heads, grad_factors = of_heads;
  heed::attention_options options;
};

/// change(arguments) makes one wrong: multi_head_attention_backward_into, its reference and the
/// number of its bytes refuse it with these words.
template <typename Change>
void refuse(const Change& change, const std::vector<std::string>& words) {
  const auto run = [&](const std::string& name, const auto& function) {
    arguments a;
    change(a);
    const arguments before = a;
    std::vector<std::string> all = words;
    all.push_back("heed::" + name + ": ");
    testing::check_refused(
        [&] {
          function(a, a.query, a.key, a.value, a.out, a.lse, a.grad_out, a.grad_query, a.grad_key,
                   a.grad_value, a.options);
        },
        all);
    CHECK(a.numbers == before.numbers);
    CHECK(a.grad_alibi == before.grad_alibi);
    CHECK(a.grad_sinks == before.grad_sinks);
    CHECK(a.grad_factors == before.grad_factors);
  };
  const auto with_terms = [](arguments& a, const auto& call) {
    call(heed::bias(a.bias), heed::alibi(a.of_heads), heed::sinks(a.of_heads),
         heed::logit_scales(a.of_heads), heed::grad_lse(a.grad_lse), heed::grad_bias(a.grad_bias),
         heed::grad_alibi(a.grad_alibi), heed::grad_sinks(a.grad_sinks),
         heed::grad_logit_scales(a.grad_factors));
  };
  run("multi_head_attention_backward_into", [&](arguments& a, const auto&... all) {
    heed::workspace memory;
    with_terms(a, [&](const auto&... terms) {
      heed::multi_head_attention_backward_into(all..., memory, terms...);
    });
    CHECK(memory.capacity() == 0);
  });
  run("reference_multi_head_attention_backward_into", [&](arguments& a, const auto&... all) {
    with_terms(a, [&](const auto&... terms) {
      heed::reference_multi_head_attention_backward_into(all..., terms...);
    });
  });
  run("multi_head_attention_backward_workspace_bytes", [&](arguments& a, const auto&... all) {
    with_terms(a, [&](const auto&... terms) {
      heed::multi_head_attention_backward_workspace_bytes(all..., terms...);
    });
  });
}

}  // namespace

TEST_CASE("sizes that do not fit are refused") {
  refuse([](arguments& a) { a.key.cols = 8; }, {"key: head_dim 8", "query's head_dim 6"});
  refuse([](arguments& a) { a.key.batch = 3; }, {"key: batch 3", "query's batch 2"});
  refuse([](arguments& a) { a.value.rows = 6; }, {"value: kv_length 6", "key's kv_length 7"});
  refuse([](arguments& a) { a.value.batch = 1; }, {"value: batch 1", "key's batch 2"});
  refuse([](arguments& a) { a.value.heads = 1; }, {"value: num_kv_heads 1", "num_kv_heads 2"});
  refuse([](arguments& a) { a.key.heads = a.value.heads = 3; },
         {"query: num_heads 4", "num_kv_heads 3"});
  const auto rows_of = [](const char* name, heed::tensor_view<float> arguments::*member,
                          const char* dim, const char* wanted) {
    const std::string what(name);
    refuse([=](arguments& a) { (a.*member).batch = 1; }, {what + ": batch 1", "query's batch 2"});
    refuse([=](arguments& a) { (a.*member).heads = 1; },
           {what + ": num_heads 1", "query's num_heads 4"});
    refuse([=](arguments& a) { (a.*member).rows = 4; }, {what + ": n_q 4", "query's n_q 5"});
    refuse([=](arguments& a) { (a.*member).cols = 2; }, {what + ": " + dim + " 2", wanted});
    refuse([=](arguments& a) { (a.*member).data = nullptr; }, {what + ": a null pointer"});
    refuse([=](arguments& a) { (a.*member).rows = -1; }, {what + ": sizes", "-1"});
  };
  rows_of("out", &arguments::out, "head_dim", "value's head_dim 3");
  rows_of("grad_out", &arguments::grad_out, "head_dim", "value's head_dim 3");
  rows_of("lse", &arguments::lse, "columns", "1");
  rows_of("grad_lse", &arguments::grad_lse, "columns", "1");
  const auto same_as = [](const char* name, heed::tensor_view<float> arguments::*member,
                          const std::string& whose, const std::vector<size_type>& sizes) {
    const std::string what(name);
    const auto of = [&](const char* part, size_type got, size_type wanted) {
      return std::vector<std::string>{what + ": " + part + " " + std::to_string(got),
                                      whose + " " + part + " " + std::to_string(wanted)};
    };
    refuse([=](arguments& a) { ++(a.*member).batch; }, of("batch", sizes[0] + 1, sizes[0]));
    refuse([=](arguments& a) { --(a.*member).heads; }, of("num_heads", sizes[1] - 1, sizes[1]));
    refuse([=](arguments& a) { --(a.*member).rows; }, of("rows", sizes[2] - 1, sizes[2]));
    refuse([=](arguments& a) { ++(a.*member).cols; }, of("columns", sizes[3] + 1, sizes[3]));
    refuse([=](arguments& a) { (a.*member).data = nullptr; }, {what + ": a null pointer"});
  };
  same_as("grad_query", &arguments::grad_query, "query's", {batch, heads, n_q, d_k});
  same_as("grad_key", &arguments::grad_key, "key's", {batch, kv_heads, n_kv, d_k});
  same_as("grad_value", &arguments::grad_value, "value's", {batch, kv_heads, n_kv, d_v});
  same_as("grad_bias", &arguments::grad_bias, "bias's", {1, heads, n_q, n_kv});
}

TEST_CASE("options and terms that are out of range are refused") {
  refuse([](arguments& a) { a.options.softcap = -1; }, {"softcap", "-1"});
  refuse([](arguments& a) { a.options.scale = std::numeric_limits<double>::quiet_NaN(); },
         {"scale"});
  refuse([](arguments& a) { a.options.window_left = -2; }, {"window_left", "-2"});
  refuse([](arguments& a) { a.options.execution.threads = -1; }, {"threads", "-1"});
  refuse([](arguments& a) { a.bias.rows = 2; }, {"bias has n_q 2", "5"});
  refuse([](arguments& a) { a.of_heads.resize(3); }, {"alibi: slopes 3", "num_heads 4"});
  refuse([](arguments& a) { a.of_heads(2) = 3e38f; }, {"3e+38"});
  refuse([](arguments& a) { a.grad_alibi.resize(5); }, {"grad_alibi 5", "query's num_heads 4"});
  refuse([](arguments& a) { a.grad_sinks.resize(1); }, {"grad_sinks 1", "query's num_heads 4"});
  refuse([](arguments& a) { a.grad_factors.resize(3); },
         {"grad_logit_scales 3", "query's num_heads 4"});
}

TEST_CASE("the gradient of a term that the call does not have is refused") {
  const testing::example<float> e(5, 7, 6, 3);
  const auto forward = e.reference();
  heed::rows<float> dq = heed::rows<float>::Constant(5, 6, -7),
                    dk = heed::rows<float>::Constant(7, 6, -7),
                    dv = heed::rows<float>::Constant(7, 3, -7),
                    pairs = heed::rows<float>::Constant(5, 7, -7);
  heed::row_vector<float> number = heed::row_vector<float>::Constant(1, -7);
  const auto check = [&](const char* gradient, const char* term, const auto& given) {
    heed::workspace memory;
    const std::vector<std::string> words{std::string(gradient) + " is the gradient of " + term};
    testing::check_refused(
        [&] {
          heed::attention_backward_into(e.query, e.key, e.value, forward.out, forward.lse,
                                        forward.out, dq, dk, dv, {}, memory, given);
        },
        words);
    testing::check_refused(
        [&] {
          heed::attention_backward(e.query, e.key, e.value, forward.out, forward.lse, forward.out,
                                   {}, given);
        },
        words);
    testing::check_refused(
        [&] {
          heed::reference_attention_backward(e.query, e.key, e.value, forward.out, forward.lse,
                                             forward.out, {}, given);
        },
        words);
    CHECK((dq.array() == -7).all());
    CHECK((dk.array() == -7).all());
    CHECK((dv.array() == -7).all());
    CHECK((pairs.array() == -7).all());
    CHECK(number(0) == -7);
  };
  check("grad_bias", "bias", heed::grad_bias(pairs));
  check("grad_alibi", "alibi", heed::grad_alibi(number));
  check("grad_sinks", "sinks", heed::grad_sinks(number));
  check("grad_logit_scales", "logit_scales", heed::grad_logit_scales(number));
}

TEST_CASE("a backward call of one head refuses matrices that do not fit, by name") {
  const testing::example<float> e(5, 7, 6, 3);
  const auto forward = e.reference();
  const heed::rows<float> tall = heed::rows<float>::Zero(8, 3),
                          wide = heed::rows<float>::Zero(7, 9);
  const heed::row_vector<float> long_lse = heed::row_vector<float>::Zero(6);
  heed::rows<float> dq(5, 6), dk(7, 6), dv(7, 3);
  heed::workspace memory;
  const auto check = [&](const std::vector<std::string>& words, const auto& query, const auto& key,
                         const auto& value, const auto& out, const auto& lse,
                         const auto& grad_out) {
    const auto named = [&](const char* function) {
      std::vector<std::string> all = words;
      all.push_back(std::string("heed::") + function + ": ");
      return all;
    };
    testing::check_refused([&] { heed::attention_backward(query, key, value, out, lse, grad_out); },
                           named("attention_backward"));
    testing::check_refused(
        [&] { heed::reference_attention_backward(query, key, value, out, lse, grad_out); },
        named("reference_attention_backward"));
    testing::check_refused(
        [&] {
          heed::attention_backward_into(query, key, value, out, lse, grad_out, dq, dk, dv, {},
                                        memory);
        },
        named("attention_backward_into"));
  };
  const auto &q = e.query, &k = e.key, &v = e.value, &o = forward.out;
  const auto& l = forward.lse;
  check({"key: head_dim 9", "query's head_dim 6"}, q, wide, v, o, l, o);
  check({"value: kv_length 8", "key's kv_length 7"}, q, k, tall, o, l, o);
  check({"out: n_q 8", "query's n_q 5"}, q, k, v, tall, l, o);
  check({"out: n_q 7", "query's n_q 5"}, q, k, v, wide, l, o);
  check({"lse: n_q 6", "query's n_q 5"}, q, k, v, o, long_lse, o);
  check({"grad_out: n_q 8", "query's n_q 5"}, q, k, v, o, l, tall);
  testing::check_refused([&] { heed::attention_backward<float, 8>(q, k, v, o, l, o); },
                         {"heed::attention_backward: ", "query: head_dim 6", "Dk 8"});
  heed::rows<float> short_gradient = heed::rows<float>::Constant(4, 6, -7);
  testing::check_refused(
      [&] { heed::attention_backward_into(q, k, v, o, l, o, short_gradient, dk, dv, {}, memory); },
      {"heed::attention_backward_into: grad_query: rows 4", "query's rows 5"});
  CHECK((short_gradient.array() == -7).all());
}

TEST_CASE("a ragged backward call refuses starts that do not fit and terms that it does not have") {
  const heed::rows<float> x = testing::random_rows<float>(10, 8, 1);
  heed::rows<float> lse(10, 1), dq = heed::rows<float>::Constant(10, 8, -7), dk = dq, dv = dq;
  lse.setZero();
  const auto refuse_starts = [&](const std::vector<size_type>& query_starts,
                                 const std::vector<size_type>& key_starts,
                                 const std::vector<std::string>& words, const auto&... terms) {
    heed::workspace memory;
    const auto named = [&](const char* function) {
      std::vector<std::string> with_name = words;
      with_name.push_back(std::string("heed::") + function + ": ");
      return with_name;
    };
    const auto in = heed::view(x);
    testing::check_refused(
        [&] {
          heed::ragged_attention_backward_into(
              in, in, in, in, heed::view(lse), in, heed::writable_view(dq), heed::writable_view(dk),
              heed::writable_view(dv), query_starts, key_starts, {}, memory, terms...);
        },
        named("ragged_attention_backward_into"));
    testing::check_refused(
        [&] {
          heed::reference_ragged_attention_backward_into(
              in, in, in, in, heed::view(lse), in, heed::writable_view(dq), heed::writable_view(dk),
              heed::writable_view(dv), query_starts, key_starts, {}, terms...);
        },
        named("reference_ragged_attention_backward_into"));
  };
  const std::vector<size_type> good{0, 4, 10};
  refuse_starts({}, good, {"query_starts", "0"});
  refuse_starts({0, 11}, {0, 10}, {"query_starts: last entry 11", "10"});
  refuse_starts({0, 7, 4, 10}, {0, 4, 5, 10}, {"query_starts", "entry 2 is 4", "7"});
  refuse_starts(good, {0, 10}, {"key_starts: sequences 1", "2"});
  const heed::rows<float> pairs = heed::rows<float>::Zero(10, 10);
  heed::rows<float> grad_pairs = heed::rows<float>::Constant(10, 10, -7);
  const testing::mask keep = testing::mask::Constant(10, 10, true);
  const std::vector<size_type> lengths{10};
  refuse_starts(good, good, {"bias", "the sizes of a padded batch"}, heed::bias(pairs));
  refuse_starts(good, good, {"bias", "the sizes of a padded batch"}, heed::bias(pairs),
                heed::grad_bias(grad_pairs));
  refuse_starts(good, good, {"keep", "the sizes of a padded batch"}, heed::keep(keep));
  refuse_starts(good, good, {"key_lengths: entries 1", "query's batch 2"},
                heed::key_lengths(lengths));
  CHECK((dq.array() == -7).all());
  CHECK((dk.array() == -7).all());
  CHECK((dv.array() == -7).all());
  CHECK((grad_pairs.array() == -7).all());

  // a mask in bits is read too
  std::vector<std::uint8_t> bits(10 * 8 * sizeof(float), 255);
  const std::vector<size_type> bits_from{0, 2};
  const heed::tensor_view<float> over_bits =
      heed::bhnd(reinterpret_cast<float*>(bits.data()), 1, 1, 10, 8);
  heed::workspace memory;
  const auto in = heed::view(x);
  testing::check_refused(
      [&] {
        heed::ragged_attention_backward_into(in, in, in, in, heed::view(lse), in, over_bits,
                                             heed::writable_view(dk), heed::writable_view(dv), good,
                                             good, {}, memory,
                                             heed::packed_keep_bits(bits, bits_from));
      },
      {"heed::ragged_attention_backward_into: ", "grad_query", "packed_keep_bits"});
}
