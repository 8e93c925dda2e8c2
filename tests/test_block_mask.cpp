#include <heed/block_mask.hpp>
#include <heed/multi_head.hpp>

#include <atomic>
#include <utility>
#include <vector>

#include "support/example.hpp"
#include "support/gradient.hpp"
#include "support/isas.hpp"
#include "support/refusal.hpp"

using testing::example;

namespace {

/// Blocks of 16 x 32 that are hidden, whole, and cut.
const auto shown = [](heed::size_type, heed::size_type, heed::size_type i, heed::size_type j) {
  const heed::size_type block = (i / 16 + j / 32) % 3;
  return block == 1 || (block == 2 && (i + j) % 2 == 0);
};

}  // namespace

TEST_CASE("a block mask of a function shows the blocks in which it is true anywhere") {
  const auto mask = heed::block_mask::of(shown, 1, 1, 50, 100, 16, 32);
  REQUIRE(mask.q_blocks() == 4);
  REQUIRE(mask.kv_blocks() == 4);
  for (heed::size_type q = 0; q < 4; ++q)
    for (heed::size_type kv = 0; kv < 4; ++kv)
      CHECK(mask.shows(0, 0, q, kv) == ((q + kv) % 3 != 0));
  CHECK(mask.density() == 10.0 / 16);
}

TEST_CASE("blocks hide what a keep of the same pairs hides") {
  const heed::size_type block_q =
      GENERATE(heed::size_type(1), heed::size_type(16), heed::size_type(48), heed::size_type(50),
               heed::size_type(200));
  const heed::size_type block_kv =
      GENERATE(heed::size_type(1), heed::size_type(32), heed::size_type(96), heed::size_type(130),
               heed::size_type(200));
  const heed::size_type n_q = 100, n_kv = 150;
  example<double> e(n_q, n_kv, 8, 4);
  heed::block_mask blocks(1, 1, n_q, n_kv, block_q, block_kv);
  e.keep = testing::mask::Constant(n_q, n_kv, false);
  for (heed::size_type q = 0; q < blocks.q_blocks(); ++q)
    for (heed::size_type kv = 0; kv < blocks.kv_blocks(); ++kv) {
      if ((q + 2 * kv) % 3 == 1) continue;
      blocks.show(0, 0, q, kv);
      const heed::size_type i = q * block_q, j = kv * block_kv;
      e.keep.block(i, j, (std::min)(block_q, n_q - i), (std::min)(block_kv, n_kv - j))
          .setConstant(true);
    }
  const auto same = e.reference();
  const auto exact = e.cast<long double>().reference();
  CHECK(heed::reference_attention(e.query, e.key, e.value, {}, heed::blocks(blocks)) == same.out);
  for (const heed::isa target : testing::isas()) {
    heed::attention_options options;
    options.execution.target = target;
    const auto one =
        heed::attention_with_lse(e.query, e.key, e.value, options, heed::blocks(blocks));
    CAPTURE(block_q, block_kv, testing::name_of(target));
    testing::check_as_exact_as(one.out, same.out, exact.out);
    testing::check_as_exact_as(one.lse, same.lse, exact.lse, 1);
    options.execution.threads = 3;
    CHECK(heed::attention(e.query, e.key, e.value, options, heed::blocks(blocks)) == one.out);
  }
}

TEST_CASE("the mask function is evaluated in blocks that it cuts, and nowhere else") {
  const heed::size_type n = 96;
  const example<double> e(n, n, 8, 4);
  const auto blocks = heed::block_mask::of(shown, 1, 1, n, n, 16, 32);
  heed::size_type asked = 0;
  const auto counting = [&](heed::size_type b, heed::size_type h, heed::size_type i,
                            heed::size_type j) {
    ++asked;
    return shown(b, h, i, j);
  };
  const auto both =
      heed::attention(e.query, e.key, e.value, {}, heed::mask_function(counting, blocks));
  CHECK(asked == n * n / 3);  // a third of the blocks is hidden, a third whole
  asked = 0;
  const auto alone = heed::attention(e.query, e.key, e.value, {}, heed::mask_function(counting));
  CHECK(asked == n * n);
  const auto exact = heed::reference_attention(
      e.query.cast<long double>().eval(), e.key.cast<long double>().eval(),
      e.value.cast<long double>().eval(), {}, heed::mask_function(shown));
  const auto same =
      heed::reference_attention(e.query, e.key, e.value, {}, heed::mask_function(shown));
  testing::check_as_exact_as(both, same, exact);
  testing::check_as_exact_as(alone, same, exact);
}

TEST_CASE("blocks of one function and another mask function show what both show") {
  const heed::size_type n = 96;
  example<double> e(n, n, 8, 4);
  const auto blocks = heed::block_mask::of(shown, 1, 1, n, n, 16, 32);
  const auto other = [](heed::size_type, heed::size_type, heed::size_type i, heed::size_type j) {
    return (i + 3 * j) % 5 != 0;
  };
  e.keep.resize(n, n);
  for (heed::size_type i = 0; i < n; ++i)
    for (heed::size_type j = 0; j < n; ++j)
      e.keep(i, j) = blocks.shows(0, 0, i / 16, j / 32) && other(0, 0, i, j);
  const auto same = e.reference();
  const auto exact = e.cast<long double>().reference();
  CHECK(heed::reference_attention(e.query, e.key, e.value, {}, heed::blocks(blocks),
                                  heed::mask_function(other)) == same.out);
  for (const heed::isa target : testing::isas()) {
    CAPTURE(testing::name_of(target));
    heed::attention_options options;
    options.execution.target = target;
    const auto got = heed::attention_with_lse(e.query, e.key, e.value, options,
                                              heed::blocks(blocks), heed::mask_function(other));
    testing::check_as_exact_as(got.out, same.out, exact.out);
    testing::check_as_exact_as(got.lse, same.lse, exact.lse, 1);
  }
}

TEST_CASE("where a block is whole for the mask function, keep_bits still hide") {
  const heed::size_type n = 64;
  example<double> e(n, n, 8, 4);
  const auto always = [](heed::size_type, heed::size_type, heed::size_type, heed::size_type) {
    return true;
  };
  const auto blocks = heed::block_mask::of(always, 1, 1, n, n, 16, 16);
  const Eigen::Matrix<std::uint8_t, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> bits =
      Eigen::Matrix<std::uint8_t, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>::Constant(
          n, n / 8, 0x55);
  e.keep.resize(n, n);
  for (heed::size_type i = 0; i < n; ++i)
    for (heed::size_type j = 0; j < n; ++j) e.keep(i, j) = j % 2 == 0;
  const auto masked =
      heed::attention(e.query, e.key, e.value, {}, heed::keep_bits(heed::view(bits), n),
                      heed::mask_function(always, blocks));
  testing::check_as_exact_as(masked, e.reference().out, e.cast<long double>().reference().out);
}

TEST_CASE("blocks of each head and batch entry reach their own") {
  const heed::size_type n = 40;
  const example<double> e(n, n, 8, 4);
  auto query = heed::view(e.query), key = heed::view(e.key), value = heed::view(e.value);
  for (auto* tensor : {&query, &key, &value}) tensor->batch = tensor->heads = 2;
  const auto of_head = [](heed::size_type b, heed::size_type h, heed::size_type i,
                          heed::size_type j) { return (i / 8 + j / 8 + b + 2 * h) % 3 != 0; };
  const auto blocks = heed::block_mask::of(of_head, 2, 2, n, n, 8, 8);
  heed::rows<double> out(4 * n, 4);
  heed::workspace memory;
  heed::multi_head_attention_into(query, key, value, heed::bhnd(out.data(), 2, 2, n, 4), {}, {},
                                  memory, heed::blocks(blocks));
  for (heed::size_type b = 0; b < 2; ++b)
    for (heed::size_type h = 0; h < 2; ++h) {
      const auto here = [&](heed::size_type, heed::size_type, heed::size_type i,
                            heed::size_type j) { return of_head(b, h, i, j); };
      const auto one = heed::block_mask::of(here, 1, 1, n, n, 8, 8);
      CHECK(out.middleRows((2 * b + h) * n, n) ==
            heed::attention(e.query, e.key, e.value, {}, heed::blocks(one)));
    }
}

TEST_CASE("block masks refuse what does not fit") {
  const example<double> e(20, 30, 8, 4);
  heed::block_mask wide(1, 1, 20, 31, 8, 8), tall(1, 1, 21, 30, 8, 8), many(1, 2, 20, 30, 8, 8);
  const auto refuse = [&](const heed::block_mask& mask, const std::vector<std::string>& words) {
    testing::check_refused(
        [&] { heed::attention(e.query, e.key, e.value, {}, heed::blocks(mask)); }, words);
  };
  refuse(wide, {"blocks: n_kv 31", "30"});
  refuse(tall, {"blocks: n_q 21", "20"});
  refuse(many, {"blocks", "num_heads 2", "1"});
  const heed::block_mask fitting(1, 1, 20, 30, 8, 8);
  testing::check_refused(
      [&] {
        heed::attention(e.query, e.key, e.value, {}, heed::blocks(fitting),
                        heed::mask_function(shown, fitting));
      },
      {"heed::attention", "one block mask", "2"});
  testing::check_refused(
      [&] { heed::attention(e.query, e.key, e.value, {}, heed::mask_function(shown, wide)); },
      {"blocks: n_kv 31", "30"});
  testing::check_refused([] { heed::block_mask(1, 1, 20, 30, 0, 8); }, {"heed::block_mask", "0"});
  testing::check_refused([&] { wide.show(0, 0, 3, 0); }, {"heed::block_mask::show", "3"});
}

TEST_CASE("a block larger than the call is all there is") {
  const testing::example<float> e(70, 90, 16, 8);
  heed::block_mask mask(1, 1, 70, 90, heed::size_type(1) << 61,
                        (std::numeric_limits<heed::size_type>::max)());
  CHECK(mask.q_blocks() == 1);
  CHECK(mask.kv_blocks() == 1);
  mask.show(0, 0, 0, 0);
  heed::attention_options options;
  options.execution.threads = 2;
  CHECK(heed::attention(e.query, e.key, e.value, options, heed::blocks(mask)) ==
        heed::attention(e.query, e.key, e.value));
}

TEST_CASE(
    "a block mask counts no further than an index, and shows no block that it does not have") {
  constexpr heed::size_type most = (std::numeric_limits<heed::size_type>::max)();
  testing::check_refused([] { heed::block_mask(most, most, 64, 64, 16, 16); },
                         {"heed::block_mask:", std::to_string(most), "* 4 * 4"});
  testing::check_refused([] { heed::block_mask(1, 1, most, most, 1, 1); },
                         {"heed::block_mask:", std::to_string(most)});
  CHECK(heed::block_mask(1, 1, most, 3, most / 2, 1).q_blocks() ==
        3);  // rounds up, without overflow
  const heed::block_mask mask(1, 2, 64, 64, 16, 16);
  testing::check_refused([&] { mask.shows(0, 2, 0, 0); },
                         {"heed::block_mask::shows", "[0, 2, 0, 0]", "[1, 2, 4, 4]"});
  testing::check_refused([&] { mask.shows(0, 0, -1, 0); }, {"[0, 0, -1, 0]"});
  testing::check_refused([&] { mask.shows(0, 0, 0, 4); }, {"[0, 0, 0, 4]"});
  CHECK(!mask.shows(0, 1, 3, 3));
}

TEST_CASE(
    "a block mask that was moved from is one of no queries and no keys, and can be given another") {
  const example<float> e(20, 30, 8, 4);
  heed::block_mask mask(1, 1, 20, 30, 8, 8);
  mask.show(0, 0, 1, 2);
  heed::block_mask moved(std::move(mask));
  CHECK(moved.shows(0, 0, 1, 2));
  CHECK(mask.q_blocks() == 0);  // NOLINT: moved from on purpose
  CHECK(mask.kv_blocks() == 0);
  CHECK(mask.density() == 0);
  testing::check_refused([&] { mask.shows(0, 0, 1, 2); },
                         {"heed::block_mask::shows", "[1, 1, 0, 0]"});
  testing::check_refused([&] { heed::attention(e.query, e.key, e.value, {}, heed::blocks(mask)); },
                         {"blocks: n_q 0", "20"});

  mask = moved;
  auto& same = mask;
  mask = std::move(same);
  mask = same;
  CHECK(mask.shows(0, 0, 1, 2));
  CHECK(mask.density() == 1.0 / 12);
  moved = heed::block_mask(1, 2, 9, 9, 3, 3);
  CHECK(moved.heads() == 2);
  CHECK(moved.kv_blocks() == 3);
}

TEST_CASE(
    "blocks of different sizes hide what a keep of the same pairs hides, in the gradient too") {
  const heed::size_type n_q = 150, n_kv = 210;
  // of 1, of none, of more than a block of the kernels
  const std::vector<std::int32_t> q_starts{0, 1, 8, 8, 71, 149, 150};
  const std::vector<heed::size_type> kv_starts{0, 3, 140, 140, 141, 210};
  example<double> e(n_q, n_kv, 8, 4);
  heed::block_mask blocks(1, 1, q_starts, kv_starts);
  REQUIRE(blocks.n_q() == n_q);
  REQUIRE(blocks.n_kv() == n_kv);
  REQUIRE(blocks.q_blocks() == 6);
  REQUIRE(blocks.kv_blocks() == 5);
  e.keep = testing::mask::Constant(n_q, n_kv, false);
  for (heed::size_type q = 0; q < 6; ++q)
    for (heed::size_type kv = 0; kv < 5; ++kv) {
      if ((q + 2 * kv) % 3 == 1) continue;
      blocks.show(0, 0, q, kv);
      const heed::size_type i = q_starts[std::size_t(q)], j = kv_starts[std::size_t(kv)];
      e.keep.block(i, j, q_starts[std::size_t(q) + 1] - i, kv_starts[std::size_t(kv) + 1] - j)
          .setConstant(true);
    }
  const auto same = e.reference();
  const auto exact = e.cast<long double>().reference();
  CHECK(heed::reference_attention(e.query, e.key, e.value, {}, heed::blocks(blocks)) == same.out);
  const auto function = [&](heed::size_type, heed::size_type, heed::size_type i,
                            heed::size_type j) { return e.keep(i, j); };
  const auto found = heed::block_mask::of(function, 1, 1, q_starts, kv_starts);
  const heed::block_mask moved = std::move(blocks);
  CHECK(blocks.q_blocks() == 0);
  testing::backward_example<double> of_blocks(e);
  const testing::judged_gradients<double> right(of_blocks);
  of_blocks.forward.keep.resize(0, 0);
  for (const heed::isa target : testing::isas()) {
    CAPTURE(testing::name_of(target));
    heed::attention_options options;
    options.execution.target = target;
    const auto one =
        heed::attention_with_lse(e.query, e.key, e.value, options, heed::blocks(moved));
    testing::check_as_exact_as(one.out, same.out, exact.out);
    testing::check_as_exact_as(one.lse, same.lse, exact.lse, 1);
    CHECK(heed::attention(e.query, e.key, e.value, options, heed::mask_function(function, found)) ==
          one.out);
    options.execution.threads = 3;
    CHECK(heed::attention(e.query, e.key, e.value, options, heed::blocks(moved)) == one.out);
    right.check(of_blocks.run([&](const auto&... arguments) {
      return testing::backward_on(target, 3)(arguments..., heed::blocks(moved));
    }));
  }
}

TEST_CASE("a block mask refuses starts that are none") {
  const auto refuse = [](const std::vector<int>& q, const std::vector<int>& kv,
                         const std::vector<std::string>& words) {
    testing::check_refused([&] { heed::block_mask(1, 1, q, kv); }, words);
  };
  refuse({}, {0}, {"heed::block_mask: q_starts", "has 0"});
  refuse({0, 5}, {1, 5}, {"kv_starts", "begin with 0", "1"});
  refuse({0, 5, 4}, {0}, {"q_starts", "decrease", "4 after 5"});
  const std::vector<heed::size_type> ends{0, heed::size_type(1) << 61}, none{0};
  testing::check_refused([&] { heed::block_mask(1, 1, ends, none); }, {"block_mask", "q_starts"});
  testing::check_refused([&] { heed::block_mask(0, 1, none, none); }, {"block_mask: batch", "0"});
  const example<double> e(6, 5, 4, 4);
  const std::vector<int> starts{0, 2, 5};
  testing::check_refused(
      [&] {
        heed::attention(e.query, e.key, e.value, {},
                        heed::blocks(heed::block_mask(1, 1, starts, starts)));
      },
      {"blocks: n_q 5", "6"});
}
