#include <heed/multi_head.hpp>
#include <heed/terms.hpp>
#include <heed/weights.hpp>

#include <cstdint>
#include <vector>

#include "support/example.hpp"
#include "support/refusal.hpp"

using testing::example;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
const auto reference = [](const auto&... arguments) {
  return heed::reference_attention_with_lse(arguments...);
};

double halve_to_the_right(double score, heed::size_type, heed::size_type, heed::size_type i,
                          heed::size_type j) {
  return j > i ? score / 2 : score;
}
bool one_of_three(heed::size_type, heed::size_type, heed::size_type i, heed::size_type j) {
  return (i + j) % 3 != 0;
}

/// Two results that must be the same numbers: the same sums in the same order.
template <typename Result>
bool same(const Result& a, const Result& b) {
  return a.out == b.out && a.lse == b.lse;
}

}  // namespace

TEST_CASE("a keep of false and a bias of -infinity hide the same pairs") {
  example<double> kept(9, 13, 8, 4), biased = kept;
  kept.keep = testing::random_mask(9, 13, 1);
  biased.bias = kept.keep.select(heed::rows<double>::Zero(9, 13), -infinity);
  CHECK(same(kept.run(reference), biased.run(reference)));
}

TEST_CASE("masks and biases of one row or one column are the same for all") {
  const example<double> e(9, 13, 8, 4);
  example<double> full = e;
  SECTION("keep, one row") {
    const testing::mask row = testing::random_mask(1, 13, 2);
    full.keep = row.replicate(9, 1);
    CHECK(
        same(reference(e.query, e.key, e.value, e.options, heed::keep(row)), full.run(reference)));
  }
  SECTION("keep, one column") {
    const testing::mask column = testing::random_mask(9, 1, 3);
    full.keep = column.replicate(1, 13);
    CHECK(same(reference(e.query, e.key, e.value, e.options, heed::keep(column)),
               full.run(reference)));
  }
  SECTION("bias, one row, column-major") {
    const Eigen::MatrixXd row = testing::random_rows<double>(1, 13, 4);
    full.bias = row.replicate(9, 1);
    CHECK(
        same(reference(e.query, e.key, e.value, e.options, heed::bias(row)), full.run(reference)));
  }
  SECTION("bias, one number") {
    const Eigen::MatrixXd number = Eigen::MatrixXd::Constant(1, 1, 0.5);
    full.bias = heed::rows<double>::Constant(9, 13, 0.5);
    CHECK(same(reference(e.query, e.key, e.value, e.options, heed::bias(number)),
               full.run(reference)));
  }
  SECTION("keep, a block of a larger column-major matrix") {
    Eigen::Matrix<bool, Eigen::Dynamic, Eigen::Dynamic> large(20, 20);
    large.setConstant(false);
    full.keep = testing::random_mask(9, 13, 5);
    large.block(3, 4, 9, 13) = full.keep;
    CHECK(same(reference(e.query, e.key, e.value, e.options, heed::keep(large.block(3, 4, 9, 13))),
               full.run(reference)));
  }
}

TEST_CASE("a term without numbers is as good as absent") {
  const example<double> e(5, 6, 4, 3);
  CHECK(same(e.run(reference), heed::reference_attention_with_lse(e.query, e.key, e.value)));
}

TEST_CASE("a term must have the sizes of the call, an empty one too") {
  const example<double> e(5, 6, 4, 3);
  const auto refused = [&](const auto& term, const std::vector<std::string>& words) {
    std::vector<std::string> all = words;
    all.push_back("heed::attention_with_lse: ");
    testing::check_refused([&] { heed::attention_with_lse(e.query, e.key, e.value, {}, term); },
                           all);
  };
  std::vector<heed::size_type> reserved;
  reserved.reserve(4);
  const heed::row_vector<double> numbers = heed::row_vector<double>::Ones(4);
  const testing::mask kept = testing::mask::Constant(5, 6, false);
  const heed::rows<double> biases = heed::rows<double>::Ones(5, 6);
  const heed::rows<std::uint8_t> bits = heed::rows<std::uint8_t>::Zero(5, 1);
  refused(heed::key_lengths(reserved), {"key_lengths", "0", "1"});
  refused(heed::key_lengths(heed::index_list()), {"key_lengths", "0", "1"});
  refused(heed::alibi(numbers.head(0)), {"alibi", "0", "1"});
  refused(heed::sinks(numbers.head(0)), {"sinks", "0", "1"});
  refused(heed::logit_scales(numbers.head(0)), {"logit_scales", "0", "1"});
  refused(heed::keep(kept.topRows(0)), {"keep has n_q 0", "5"});
  refused(heed::keep(heed::tensor_view<const bool>()), {"keep has batch 0", "1"});
  refused(heed::keep_bits(heed::view(bits.topRows(0)), 6), {"keep_bits has n_q 0", "5"});
  refused(heed::bias(biases.leftCols(0)), {"bias has n_kv 0", "6"});
  refused(heed::bias(heed::tensor_view<const double>()), {"bias has batch 0", "1"});
}

TEST_CASE("a term at a null pointer is refused, with its sizes") {
  const example<double> e(5, 6, 4, 3);
  const auto refused = [&](const auto& term, const std::vector<std::string>& words) {
    testing::check_refused([&] { heed::attention(e.query, e.key, e.value, {}, term); }, words);
    testing::check_refused([&] { heed::reference_attention(e.query, e.key, e.value, {}, term); },
                           words);
  };
  double* const nowhere = nullptr;
  heed::index_list list;
  list.size = 1;
  refused(heed::keep(heed::bhnd(static_cast<const bool*>(nullptr), 1, 1, 5, 6)),
          {"keep: a null pointer to 1 x 1 x 5 x 6"});
  refused(heed::keep_bits(heed::bhnd(static_cast<const std::uint8_t*>(nullptr), 1, 1, 5, 1), 6),
          {"keep_bits: a null pointer"});
  refused(heed::bias(heed::bhnd(nowhere, 1, 1, 5, 6)), {"bias: a null pointer to 1 x 1 x 5 x 6"});
  refused(heed::alibi(Eigen::Map<heed::row_vector<double>>(nowhere, 1)),
          {"alibi: slopes: a null pointer"});
  refused(heed::sinks(Eigen::Map<heed::row_vector<double>>(nowhere, 1)),
          {"sinks: logits: a null pointer"});
  refused(heed::logit_scales(Eigen::Map<heed::row_vector<double>>(nowhere, 1)),
          {"logit_scales: factors: a null pointer"});
  refused(heed::key_lengths(list), {"key_lengths", "1 entries at a null address"});
}

TEST_CASE("a sink that is no score is refused, one of -infinity is none") {
  const example<float> e(5, 6, 4, 3);
  const testing::mask nothing = testing::mask::Constant(5, 6, false);
  const auto with = [&](float logit) {
    const heed::row_vector<float> logits = heed::row_vector<float>::Constant(1, logit);
    return heed::attention_with_lse(e.query, e.key, e.value, {}, heed::sinks(logits),
                                    heed::keep(nothing));
  };
  for (const float wrong : {float(infinity), 3e38f, -3e38f, std::numeric_limits<float>::lowest()})
    testing::check_refused([&] { with(wrong); },
                           {"heed::attention_with_lse: sinks: logit 0 is", "2.35866e+38"});
  CHECK(with(-2.3e38f).lse(4) == -2.3e38f);
  CHECK(with(2.3e38f).lse(4) == 2.3e38f);
  CHECK(with(float(-infinity)).lse(4) == float(-infinity));
}

TEST_CASE("a factor that makes the scale more than a score may be is refused") {
  example<float> e(5, 6, 4, 3);
  e.options.scale = 10;
  const auto with = [&](float factor) {
    const heed::row_vector<float> factors = heed::row_vector<float>::Constant(1, factor);
    return heed::attention(e.query, e.key, e.value, e.options, heed::logit_scales(factors));
  };
  for (const float wrong : {1e38f, -1e38f, float(infinity)})
    testing::check_refused([&] { with(wrong); }, {"heed::attention: logit_scales: factor 0 is",
                                                  "the scale 10", "2.35866e+38"});
  CHECK(with(1e37f).rows() == 5);
}

TEST_CASE("an output at a null pointer is refused, an lse of sizes too") {
  const example<double> e(5, 6, 4, 3);
  heed::workspace memory;
  heed::row_vector<double> numbers(15);
  const auto query = heed::view(e.query), key = heed::view(e.key), value = heed::view(e.value);
  double* const nowhere = nullptr;
  testing::check_refused(
      [&] {
        heed::multi_head_attention_into(query, key, value, heed::bhnd(nowhere, 1, 1, 5, 3), {}, {},
                                        memory);
      },
      {"heed::multi_head_attention_into: out: a null pointer to 1 x 1 x 5 x 3"});
  const auto out = heed::bhnd(numbers.data(), 1, 1, 5, 3);
  testing::check_refused(
      [&] {
        heed::multi_head_attention_into(query, key, value, out, heed::bhnd(nowhere, 1, 1, 5, 1), {},
                                        memory);
      },
      {"lse: a null pointer to 1 x 1 x 5 x 1"});
}

TEST_CASE("an empty call takes the empty terms of its sizes") {
  const example<double> e(0, 0, 4, 3);
  const testing::mask kept(0, 0);
  const heed::rows<double> biases(0, 0);
  const auto result =
      heed::attention_with_lse(e.query, e.key, e.value, {}, heed::keep(kept), heed::bias(biases));
  CHECK(result.out.rows() == 0);
}

TEST_CASE("when(false, term) leaves a term out, when(true, term) does not") {
  example<double> e(5, 6, 4, 3), masked = e;
  masked.keep = testing::random_mask(5, 6, 9);
  masked.slopes = heed::row_vector<double>::Constant(1, 0.5);
  const auto with = [&](bool given) {
    const auto zero = [](double, heed::size_type, heed::size_type, heed::size_type,
                         heed::size_type) { return 0.0; };
    return heed::attention_with_lse(e.query, e.key, e.value, {},
                                    heed::when(given, heed::keep(masked.keep)),
                                    heed::when(given, heed::alibi(masked.slopes)),
                                    heed::when(false, heed::score_function(zero)));
  };
  CHECK(same(with(false), heed::attention_with_lse(e.query, e.key, e.value)));
  CHECK(same(with(true),
             heed::attention_with_lse(e.query, e.key, e.value, {}, heed::keep(masked.keep),
                                      heed::alibi(masked.slopes))));
}

TEST_CASE("keep_bits holds one pair a bit, the lowest first") {
  example<double> e(9, 21, 8, 4);
  e.keep = testing::random_mask(9, 21, 6);
  Eigen::Matrix<std::uint8_t, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> bytes(9, 3);
  bytes.setZero();
  for (heed::size_type i = 0; i < 9; ++i)
    for (heed::size_type j = 0; j < 21; ++j)
      if (e.keep(i, j))
        bytes(i, j / 8) = static_cast<std::uint8_t>(bytes(i, j / 8) | (1 << (j % 8)));
  const auto bits =
      reference(e.query, e.key, e.value, e.options, heed::keep_bits(heed::view(bytes), 21));
  CHECK(same(bits, e.run(reference)));
}

TEST_CASE("bytes that are not 0 attend as bools that are true do") {
  for (const heed::size_type n_q : {1, 9, 60}) {  // decoding; one block, a block and a part
    example<double> e(n_q, 70, 8, 4);
    e.keep = testing::random_mask(n_q, 70, 6);
    e.options.causal = heed::causal::bottom_right;
    // 2 and 128 are bools to nobody
    const unsigned char kinds[] = {1, 2, 128, 255};
    Eigen::Matrix<std::uint8_t, Eigen::Dynamic, Eigen::Dynamic> bytes(n_q, 70);  // column-major
    for (heed::size_type i = 0; i < n_q; ++i)
      for (heed::size_type j = 0; j < 70; ++j) bytes(i, j) = e.keep(i, j) ? kinds[(i + j) % 4] : 0;
    const heed::rows<char> chars = bytes.cast<char>();
    const heed::rows<std::int8_t> row = bytes.row(0).cast<std::int8_t>();
    const auto bools = e.run(reference);
    CHECK(same(reference(e.query, e.key, e.value, e.options, heed::keep(bytes)), bools));
    CHECK(
        same(reference(e.query, e.key, e.value, e.options, heed::keep(heed::view(chars))), bools));
    example<double> of_row = e;
    of_row.keep = e.keep.row(0).replicate(n_q, 1);
    CHECK(same(reference(e.query, e.key, e.value, e.options, heed::keep(row)),
               of_row.run(reference)));
    for (const heed::isa target : heed::available_isas()) {
      heed::attention_options options = e.options;
      options.execution.target = target;
      const auto shown = [](heed::size_type, heed::size_type, heed::size_type i,
                            heed::size_type j) { return j < 32 || i % 3 == 0; };
      const auto blocks = heed::block_mask::of(shown, 1, 1, n_q, 70, 16, 16);
      CAPTURE(heed::name(target), n_q);
      CHECK(same(heed::attention_with_lse(e.query, e.key, e.value, options, heed::keep(bytes)),
                 heed::attention_with_lse(e.query, e.key, e.value, options, heed::keep(e.keep))));
      CHECK(same(heed::attention_with_lse(e.query, e.key, e.value, options, heed::keep(bytes),
                                          heed::mask_function(shown, blocks)),
                 heed::attention_with_lse(e.query, e.key, e.value, options, heed::keep(e.keep),
                                          heed::mask_function(shown, blocks))));
    }
  }
  const example<double> e(5, 6, 4, 3);
  const heed::rows<std::uint8_t> tall = heed::rows<std::uint8_t>::Ones(6, 6);
  testing::check_refused([&] { heed::attention(e.query, e.key, e.value, {}, heed::keep(tall)); },
                         {"keep has n_q 6", "5"});
}

TEST_CASE("lists of integers of 32 bits serve as those of 64 do") {
  example<double> e(5, 70, 8, 4);
  e.key_lengths = {33};
  const std::vector<std::int32_t> lengths{33}, wrong{71};
  CHECK(same(reference(e.query, e.key, e.value, e.options, heed::key_lengths(lengths)),
             e.run(reference)));
  testing::check_refused(
      [&] { heed::attention(e.query, e.key, e.value, {}, heed::key_lengths(wrong)); },
      {"key_lengths: entry 0 is 71, but kv_length is 70"});
}

TEST_CASE("a repeated bias or keep serves the entries of a batch in turn") {
  // 3 images of 2 windows
  constexpr heed::size_type windows = 2, images = 3, heads = 2, n = 20, d = 8;
  const heed::rows<double> x = testing::random_rows<double>(images * windows * heads * n, d, 1);
  const heed::rows<double> numbers = testing::random_rows<double>(windows * heads * n, n, 2);
  const testing::mask kept = testing::random_mask(windows * n, n, 3);
  const heed::rows<std::uint8_t> bytes = kept.cast<std::uint8_t>();
  const auto tensor = heed::bhnd(x.data(), images * windows, heads, n, d);
  const auto bias = heed::bhnd(numbers.data(), windows, heads, n, n);
  const auto keep = heed::bhnd(kept.data(), windows, 1, n, n);
  const auto keep_bytes = heed::bhnd(bytes.data(), windows, 1, n, n);
  const auto run = [&](bool fused, const auto& view, const auto&... terms) {
    heed::rows<double> out(view.batch * heads * n, d);
    heed::workspace memory;
    const auto out_view = heed::bhnd(out.data(), view.batch, heads, n, d);
    if (fused) {
      heed::multi_head_attention_into(view, view, view, out_view, {}, {}, memory, terms...);
    } else {
      heed::reference_multi_head_attention_into(view, view, view, out_view, {}, {}, terms...);
    }
    return out;
  };
  for (const bool fused : {false, true}) {
    const heed::rows<double> all = run(fused, tensor, heed::bias(heed::repeated(bias, images)),
                                       heed::keep(heed::repeated(keep, images)));
    CHECK(run(fused, tensor, heed::bias(heed::repeated(bias, images)),
              heed::keep(heed::repeated(keep_bytes, images))) == all);
    for (heed::size_type image = 0; image < images; ++image) {
      auto part = tensor;
      part.data += image * windows * tensor.batch_stride;
      part.batch = windows;
      CHECK(all.middleRows(image * windows * heads * n, windows * heads * n) ==
            run(fused, part, heed::bias(bias), heed::keep(keep)));
    }
  }
  const auto refused = [&](const auto& term, const std::vector<std::string>& words) {
    testing::check_refused([&] { run(true, tensor, term); }, words);
  };
  refused(heed::bias(bias), {"bias has batch 2", "6"});  // never silently
  refused(heed::bias(heed::repeated(bias, 2)),
          {"bias has batch 2 repeated 2 times", "the call's batch 6"});
  refused(heed::keep(heed::repeated(keep, 0)), {"keep has batch 2 repeated 0 times", "6"});
  refused(heed::keep(heed::repeated(keep_bytes, -3)), {"keep has batch 2 repeated -3 times", "6"});
  refused(heed::bias(heed::repeated(bias, heed::size_type(1) << 62)),
          {"bias has batch 2 repeated", "6"});
}

TEST_CASE("masks compose by AND") {
  example<double> e(12, 12, 8, 4), both = e;
  e.keep = testing::random_mask(12, 12, 7);
  e.options.causal = heed::causal::top_left;
  both.keep = e.keep;
  for (heed::size_type i = 0; i < 12; ++i) both.keep.row(i).tail(11 - i).setConstant(false);
  CHECK(same(e.run(reference), both.run(reference)));
}

TEST_CASE(
    "a score function and a mask function say with code what bias and keep say with numbers") {
  example<double> e(9, 13, 8, 4);
  SECTION("score function") {
    e.bias = testing::random_rows<double>(9, 13, 8);
    const auto add = [&](double score, heed::size_type, heed::size_type, heed::size_type i,
                         heed::size_type j) { return score + e.bias(i, j); };
    CHECK(same(reference(e.query, e.key, e.value, e.options, heed::score_function(add)),
               e.run(reference)));
  }
  SECTION("mask function") {
    e.keep = testing::random_mask(9, 13, 9);
    const auto kept = [&](heed::size_type, heed::size_type, heed::size_type i, heed::size_type j) {
      return e.keep(i, j);
    };
    CHECK(same(reference(e.query, e.key, e.value, e.options, heed::mask_function(kept)),
               e.run(reference)));
  }
}

TEST_CASE("a plain function serves as a lambda does") {
  const example<double> e(40, 50, 8, 4);
  const auto halve = [](double score, heed::size_type b, heed::size_type h, heed::size_type i,
                        heed::size_type j) { return halve_to_the_right(score, b, h, i, j); };
  const auto three = [](heed::size_type b, heed::size_type h, heed::size_type i,
                        heed::size_type j) { return one_of_three(b, h, i, j); };
  const auto pointer = &one_of_three;
  const auto run = [&](const auto&... terms) {
    return heed::attention_with_lse(e.query, e.key, e.value, e.options, terms...);
  };
  CHECK(same(run(heed::score_function(halve_to_the_right)), run(heed::score_function(halve))));
  CHECK(same(run(heed::mask_function(one_of_three)), run(heed::mask_function(three))));
  CHECK(same(run(heed::mask_function(pointer)), run(heed::mask_function(three))));
  const auto blocks = heed::block_mask::of(one_of_three, 1, 1, 40, 50, 8, 8);
  CHECK(same(run(heed::mask_function(one_of_three, blocks)),
             run(heed::mask_function(three, blocks))));
  CHECK(same(reference(e.query, e.key, e.value, e.options, heed::mask_function(one_of_three),
                       heed::score_function(halve_to_the_right)),
             reference(e.query, e.key, e.value, e.options, heed::mask_function(three),
                       heed::score_function(halve))));
}

TEST_CASE("a logit scale multiplies the scale of its head") {
  const example<double> e(5, 6, 4, 3);
  const Eigen::VectorXd factors = Eigen::VectorXd::Constant(1, 0.5);
  heed::attention_options options;
  options.scale = 0.25;
  CHECK(same(reference(e.query, e.key, e.value, e.options, heed::logit_scales(factors)),
             reference(e.query, e.key, e.value, options)));
}

TEST_CASE("a term of each head and batch entry reaches its own") {
  // two batch entries of two heads that all hold the same numbers: what differs comes from the
  // terms
  const example<double> e(5, 7, 4, 3);
  auto query = heed::view(e.query), key = heed::view(e.key), value = heed::view(e.value);
  for (auto* tensor : {&query, &key, &value}) tensor->batch = tensor->heads = 2;
  const auto run = [&](const auto&... terms) {
    heed::rows<double> out(4 * 5, 3);
    heed::reference_multi_head_attention_into(
        query, key, value,
        heed::bhnd(out.data(), heed::size_type(2), heed::size_type(2), heed::size_type(5),
                   heed::size_type(3)),
        {}, heed::attention_options(), terms...);
    return out;
  };
  const auto part = [](const heed::rows<double>& out, heed::size_type b, heed::size_type h) {
    return out.middleRows((b * 2 + h) * 5, 5).eval();
  };
  const auto single = [&](const auto& term) {
    return heed::reference_attention(e.query, e.key, e.value, {}, term);
  };

  SECTION("bias of each head") {
    const heed::rows<double> numbers = testing::random_rows<double>(2 * 5, 7, 1);
    const auto out =
        run(heed::bias(heed::bhnd(numbers.data(), heed::size_type(1), heed::size_type(2),
                                  heed::size_type(5), heed::size_type(7))));
    for (heed::size_type b = 0; b < 2; ++b)
      for (heed::size_type h = 0; h < 2; ++h)
        CHECK(part(out, b, h) == single(heed::bias(numbers.middleRows(h * 5, 5))));
  }
  SECTION("keep of each batch entry") {
    const testing::mask keep = testing::random_mask(2 * 5, 7, 1);
    const auto out = run(heed::keep(heed::bhnd(keep.data(), heed::size_type(2), heed::size_type(1),
                                               heed::size_type(5), heed::size_type(7))));
    for (heed::size_type b = 0; b < 2; ++b)
      for (heed::size_type h = 0; h < 2; ++h)
        CHECK(part(out, b, h) == single(heed::keep(keep.middleRows(b * 5, 5))));
  }
  SECTION("alibi and sinks of each head, lengths of each batch entry") {
    const Eigen::Vector2d slopes(0.25, 1), logits(-1, 1);
    const std::vector<heed::size_type> lengths{3, 7};
    const auto out = run(heed::alibi(slopes), heed::sinks(logits), heed::key_lengths(lengths));
    for (heed::size_type b = 0; b < 2; ++b)
      for (heed::size_type h = 0; h < 2; ++h) {
        const heed::size_type n = lengths[static_cast<std::size_t>(b)];
        const auto one = heed::reference_attention(e.query, e.key.topRows(n), e.value.topRows(n),
                                                   {}, heed::alibi(slopes.segment<1>(h)),
                                                   heed::sinks(logits.segment<1>(h)));
        CHECK(part(out, b, h) == one);
      }
  }
}

TEST_CASE("a term that does not fit is refused") {
  const example<double> e(5, 7, 4, 3);
  const auto refuse = [&](const auto& term, const std::vector<std::string>& words) {
    testing::check_refused([&] { heed::attention(e.query, e.key, e.value, e.options, term); },
                           words);
    testing::check_refused(
        [&] { heed::reference_attention(e.query, e.key, e.value, e.options, term); }, words);
  };
  const testing::mask wide = testing::mask::Constant(5, 8, true),
                      tall = testing::mask::Constant(6, 7, true);
  const Eigen::MatrixXd bias = Eigen::MatrixXd::Zero(2, 7);
  const Eigen::Vector2d two(1, 1);
  const std::vector<heed::size_type> negative{-1}, long_length{8}, many{7, 7};
  refuse(heed::keep(wide), {"attention: keep", "n_kv 8", "n_kv 7"});
  refuse(heed::keep(tall), {"attention: keep", "n_q 6", "n_q 5"});
  refuse(heed::bias(bias), {"attention: bias", "n_q 2", "n_q 5"});
  refuse(heed::bias(heed::bhnd(two.data(), heed::size_type(2), heed::size_type(1),
                               heed::size_type(1), heed::size_type(1))),
         {"attention: bias", "batch 2", "batch 1"});
  refuse(heed::bias(heed::bhnd(two.data(), heed::size_type(1), heed::size_type(2),
                               heed::size_type(1), heed::size_type(1))),
         {"attention: bias", "num_heads 2", "num_heads 1"});
  refuse(heed::alibi(two), {"attention: alibi", "2", "num_heads 1"});
  refuse(heed::sinks(two), {"attention: sinks", "2", "num_heads 1"});
  refuse(heed::logit_scales(two), {"attention: logit_scales", "2", "num_heads 1"});
  const heed::rows<double> two_entries = heed::rows<double>::Ones(2, 1);
  refuse(heed::alibi(two_entries), {"attention: alibi", "batch 2", "batch 1"});
  heed::rows<double> written = two_entries;
  refuse(heed::max_logits(written), {"attention: max_logits", "batch 2", "batch 1"});
  refuse(heed::query_lengths(negative), {"attention: query_lengths", "-1", "n_q is 5"});
  refuse(heed::query_lengths(long_length), {"attention: query_lengths", "8", "n_q is 5"});
  refuse(heed::query_lengths(many), {"attention: query_lengths", "2", "batch 1"});
  refuse(heed::first_keys(negative), {"attention: first_keys", "-1", "end at 7"});
  refuse(heed::first_keys(long_length), {"attention: first_keys", "8", "end at 7"});
  refuse(heed::first_keys(many), {"attention: first_keys", "2", "batch 1"});
  refuse(heed::key_lengths(negative), {"attention: key_lengths", "-1", "kv_length is 7"});
  refuse(heed::key_lengths(long_length), {"attention: key_lengths", "8", "kv_length is 7"});
  refuse(heed::key_lengths(many), {"attention: key_lengths", "2", "batch 1"});
}

TEST_CASE("slopes of each batch entry: a call for each entry") {
  const example<double> e(2 * 2 * 5, 2 * 7, 4, 3);
  const heed::rows<double> slopes = testing::random_rows<double>(2, 2, 1).cwiseAbs();
  const auto query = heed::bhnd(e.query.data(), 2, 2, 5, 4),
             key = heed::bhnd(e.key.data(), 2, 1, 7, 4),
             value = heed::bhnd(e.value.data(), 2, 1, 7, 3);
  heed::rows<double> out(2 * 2 * 5, 3);
  heed::reference_multi_head_attention_into(query, key, value, heed::bhnd(out.data(), 2, 2, 5, 3),
                                            {}, {}, heed::alibi(slopes));
  for (heed::size_type b = 0; b < 2; ++b)
    for (heed::size_type h = 0; h < 2; ++h) {
      const heed::row_vector<double> slope = slopes.block<1, 1>(b, h);
      CHECK(out.middleRows((b * 2 + h) * 5, 5) ==
            heed::reference_attention(e.query.middleRows((b * 2 + h) * 5, 5),
                                      e.key.middleRows(b * 7, 7), e.value.middleRows(b * 7, 7), {},
                                      heed::alibi(slope)));
    }
}

TEST_CASE("query_lengths of a padded batch: a call for each entry") {
  const heed::size_type n = 5;
  const example<double> e(2 * 2 * n, 2 * 7, 4, 3);
  const std::vector<int> queries{3, 5}, keys{6, 7};
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  const heed::rows<double> bias = testing::random_rows<double>(2 * n, 7, 1);
  heed::rows<double> out(2 * 2 * n, 3), lse(2 * 2 * n, 1);
  heed::workspace memory;
  for (const heed::isa target : heed::available_isas()) {
    options.execution.target = target;
    heed::multi_head_attention_into(
        heed::bhnd(e.query.data(), 2, 2, n, 4), heed::bhnd(e.key.data(), 2, 1, 7, 4),
        heed::bhnd(e.value.data(), 2, 1, 7, 3), heed::bhnd(out.data(), 2, 2, n, 3),
        heed::bhnd(lse.data(), 2, 2, n, 1), options, memory, heed::query_lengths(queries),
        heed::key_lengths(keys), heed::bias(heed::bhnd(bias.data(), 2, 1, n, 7)));
    for (heed::size_type b = 0; b < 2; ++b)
      for (heed::size_type h = 0; h < 2; ++h) {
        const heed::size_type at = (b * 2 + h) * n, n_q = queries[std::size_t(b)],
                              n_kv = keys[std::size_t(b)];
        const auto one = heed::attention_with_lse(
            e.query.middleRows(at, n_q), e.key.middleRows(b * 7, n_kv),
            e.value.middleRows(b * 7, n_kv), options, heed::bias(bias.block(b * n, 0, n_q, n_kv)));
        CHECK(out.middleRows(at, n_q) == one.out);
        CHECK(lse.middleRows(at, n_q) == one.lse);
        CHECK(out.middleRows(at + n_q, n - n_q).isZero(0));
        CHECK((lse.middleRows(at + n_q, n - n_q).array() == -infinity).all());
      }
  }
}

TEST_CASE("first_keys: as if the keys before were not there, which are never read") {
  example<double> e(6, 11, 4, 3);
  const heed::size_type first =
                            GENERATE(heed::size_type(0), heed::size_type(4), heed::size_type(11)),
                        n = 11 - first;
  e.key.topRows(first).setConstant(std::numeric_limits<double>::quiet_NaN());
  e.value.topRows(first).setConstant(std::numeric_limits<double>::quiet_NaN());
  const std::vector<heed::size_type> list{first};
  const testing::mask keep = testing::random_mask(6, 11, 1);
  const heed::rows<double> bias = testing::random_rows<double>(6, 11, 2);
  heed::rows<std::uint8_t> bits(6, 2);
  bits << 0x5a, 0xff, 0xff, 0xff, 0x81, 0x02, 0xff, 0x03, 0x3c, 0x07, 0xee, 0xff;
  const testing::mask of_bits = [&] {
    testing::mask m(6, 11);
    for (heed::size_type i = 0; i < 6; ++i)
      for (heed::size_type j = 0; j < 11; ++j) m(i, j) = (bits(i, j / 8) >> (j % 8) & 1) != 0;
    return m;
  }();
  const heed::row_vector<double> slope = heed::row_vector<double>::Constant(1, 0.25);
  for (const heed::causal diagonal :
       {heed::causal::none, heed::causal::top_left, heed::causal::bottom_right}) {
    e.options.causal = diagonal;
    e.options.window_left = 5;
    const auto padded = [&](const auto&... terms) {
      return reference(e.query, e.key, e.value, e.options, terms..., heed::first_keys(list));
    };
    const auto alone = [&](const auto&... terms) {
      return reference(e.query, e.key.bottomRows(n), e.value.bottomRows(n), e.options, terms...);
    };
    CHECK(same(padded(), alone()));
    CHECK(same(padded(heed::alibi(slope)), alone(heed::alibi(slope))));
    CHECK(same(padded(heed::keep(keep)), alone(heed::keep(keep.rightCols(n)))));
    CHECK(same(padded(heed::keep_bits(heed::view(bits), 11)),
               alone(heed::keep(of_bits.rightCols(n)))));
    CHECK(same(padded(heed::bias(bias)), alone(heed::bias(bias.rightCols(n)))));
    CHECK(same(padded(heed::score_function(halve_to_the_right), heed::mask_function(one_of_three),
                      heed::dropout(0.3, 5)),
               alone(heed::score_function(halve_to_the_right), heed::mask_function(one_of_three),
                     heed::dropout(0.3, 5))));
    const auto weights =
        heed::attention_with_weights(e.query, e.key, e.value, e.options, heed::first_keys(list));
    CHECK(weights.weights.leftCols(first).isZero(0));
    CHECK(weights.weights.rightCols(n) == heed::attention_with_weights(e.query, e.key.bottomRows(n),
                                                                       e.value.bottomRows(n),
                                                                       e.options)
                                              .weights);
  }
  const heed::block_mask blocks(1, 1, 6, 11, 3, 4);
  testing::check_refused(
      [&] {
        heed::attention(e.query, e.key, e.value, {}, heed::first_keys(list), heed::blocks(blocks));
      },
      {"heed::attention: blocks", "first_keys"});
}

TEMPLATE_TEST_CASE("max_logits is the largest score, of all queries and keys that are seen", "",
                   float, double) {
  using heed::size_type;
  const size_type n_q = GENERATE(size_type(1), size_type(3), size_type(40)), n_kv = 700, d = 8;
  const example<TestType> e(2 * 2 * n_q, 2 * n_kv, d, d);
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  options.softcap = 5;
  const heed::row_vector<TestType> slopes = heed::row_vector<TestType>::Constant(2, TestType(0.01));
  // entry 1 has no key at all
  const std::vector<size_type> lengths{n_kv - 9, 0};
  const auto query = heed::bhnd(e.query.data(), 2, 2, n_q, d),
             key = heed::bhnd(e.key.data(), 2, 1, n_kv, d),
             value = heed::bhnd(e.value.data(), 2, 1, n_kv, d);
  heed::rows<TestType> out(2 * 2 * n_q, d), plain(2 * 2 * n_q, d);
  const auto out_view = heed::bhnd(out.data(), 2, 2, n_q, d);
  // what is right: the formula
  heed::rows<double> right = heed::rows<double>::Constant(2, 2, -infinity);
  for (size_type h = 0; h < 2; ++h)
    for (size_type i = 0; i < n_q; ++i)
      for (size_type j = 0; j < lengths[0]; ++j) {
        const size_type steps = i + lengths[0] - n_q - j;
        if (steps < 0) continue;
        const double dot = e.query.row(h * n_q + i)
                               .template cast<double>()
                               .dot(e.key.row(j).template cast<double>());
        right(0, h) = (std::max)(right(0, h), 5 * std::tanh(dot / std::sqrt(double(d)) / 5) -
                                                  double(TestType(0.01)) * double(steps));
      }
  // a score's product has the error of a sum of d products; the rest is a few roundings of 5
  const double bound = 16 * (d + 8) * double(std::numeric_limits<TestType>::epsilon());
  const auto check = [&](const heed::rows<TestType>& each, const heed::row_vector<TestType>& all) {
    CHECK(testing::max_error(each, right) <= bound);
    CHECK(all == each.row(0).transpose());
  };
  heed::rows<TestType> each(2, 2);
  heed::row_vector<TestType> all(2);
  const auto terms = [&](const auto& call, const auto& wanted) {
    call(heed::alibi(slopes), heed::key_lengths(lengths), wanted);
  };
  const auto run = [&](const auto& call) {
    terms(call, heed::max_logits(each));
    terms(call, heed::max_logits(all));
    check(each, all);
  };
  run([&](const auto&... given) {
    heed::reference_multi_head_attention_into(query, key, value, out_view, {}, options, given...);
  });
  run([&](const auto&... given) {
    heed::detail::streaming(
        heed::detail::make_problem<TestType>("streaming", query, key, value, out_view,
                                             heed::tensor_view<TestType>(), options, given...));
  });
  for (const heed::isa target : heed::available_isas()) {
    options.execution.target = target;
    for (const int threads : {1, 3}) {
      CAPTURE(heed::name(target), threads);
      options.execution.threads = threads;
      heed::workspace memory;
      run([&](const auto&... given) {
        CHECK(heed::multi_head_attention_workspace_bytes(query, key, value, options, given...) >=
              2 * 2 * n_q * size_type(sizeof(TestType)));
        heed::multi_head_attention_into(query, key, value, out_view, {}, options, memory, given...);
      });
      heed::multi_head_attention_into(query, key, value, heed::bhnd(plain.data(), 2, 2, n_q, d), {},
                                      options, memory, heed::alibi(slopes),
                                      heed::key_lengths(lengths));
      CHECK(plain == out);
    }
  }
  const heed::row_vector<TestType> sink = heed::row_vector<TestType>::Ones(2);
  testing::check_refused(
      [&] {
        heed::workspace memory;
        heed::multi_head_attention_into(query, key, value, out_view, {}, options, memory,
                                        heed::sinks(sink), heed::max_logits(all));
      },
      {"multi_head_attention_into: max_logits", "sinks"});
}

// As masks for padding are written elsewhere: 2^128 in units of log 2 would be infinite.
TEST_CASE("the lowest finite score hides nothing: a row of them is the mean of the values") {
  const float lowest = std::numeric_limits<float>::lowest();
  const auto all_lowest = [lowest](float, heed::size_type, heed::size_type, heed::size_type,
                                   heed::size_type) { return lowest; };
  for (const heed::isa target : heed::available_isas())
    for (const heed::size_type n_q : {1, 9, 60})
      for (const heed::size_type n_kv : {5, 700}) {
        CAPTURE(heed::name(target), n_q, n_kv);
        const example<float> e(n_q, n_kv, 16, 8);
        heed::attention_options options;
        options.execution.target = target;
        const heed::rows<float> mean =
            e.value.cast<double>().colwise().mean().cast<float>().replicate(n_q, 1);
        const heed::rows<float> bias = heed::rows<float>::Constant(n_q, n_kv, lowest);
        const auto by_bias =
            heed::attention_with_lse(e.query, e.key, e.value, options, heed::bias(bias));
        const auto by_function = heed::attention_with_lse(e.query, e.key, e.value, options,
                                                          heed::score_function(all_lowest));
        // n additions of numbers below 1, each rounded to 2^-24
        const float bound = float(n_kv) * 0x1p-24f * e.value.cwiseAbs().maxCoeff();
        CHECK((by_bias.out - mean).cwiseAbs().maxCoeff() <= bound);
        CHECK((by_function.out - mean).cwiseAbs().maxCoeff() <= bound);
        CHECK(by_bias.lse.allFinite());
      }
}
