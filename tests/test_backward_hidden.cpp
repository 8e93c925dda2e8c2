// What is hidden from a query is not read into a gradient, whatever it holds; what is visible and
// no number reaches the gradients of what sees it, and only those.

#include <heed/backward.hpp>
#include <heed/multi_head.hpp>

#include <string>
#include <vector>

#include "support/gradient.hpp"

using testing::backward_example;
using testing::example;
using testing::gradients;

namespace {

constexpr heed::size_type n_q = 110, n_kv = 230;  // more than one block of each
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN(),
                infinity = std::numeric_limits<float>::infinity();

/// Every way to hide a pair, on random inputs.
template <typename Scalar, typename Visit>
void for_each_mask(const Visit& visit) {
  using acc = heed::accumulator_t<Scalar>;
  const example<Scalar> plain(n_q, n_kv, 20, 12, 5);
  const auto with = [&](const char* name, const auto& change) {
    example<Scalar> e = plain;
    change(e);
    INFO(name);
    visit(e);
  };
  with("nothing is hidden", [](example<Scalar>&) {});
  with("causal top_left", [](example<Scalar>& e) { e.options.causal = heed::causal::top_left; });
  with("causal bottom_right",
       [](example<Scalar>& e) { e.options.causal = heed::causal::bottom_right; });
  with("window", [](example<Scalar>& e) {
    e.options.window_left = 5, e.options.window_right = 9;
    e.options.causal = heed::causal::top_left;
  });
  with("window, more queries than keys", [](example<Scalar>& e) {
    e.key = e.key.topRows(70).eval(), e.value = e.value.topRows(70).eval();
    e.options.window_left = 5, e.options.window_right = 9;
  });
  with("causal, more queries than keys", [](example<Scalar>& e) {
    e.key = e.key.topRows(70).eval(), e.value = e.value.topRows(70).eval();
    e.options.causal = heed::causal::bottom_right;
  });
  with("keep", [](example<Scalar>& e) {
    e.keep = testing::random_mask(n_q, n_kv, 3);
    e.keep.row(30).setConstant(false);
    e.keep.col(33).setConstant(false);
  });
  with("bias", [](example<Scalar>& e) {
    e.bias = testing::random_mask(n_q, n_kv, 4)
                 .select(testing::random_rows<acc>(n_q, n_kv, 5), acc(-infinity));
    e.bias.row(30).setConstant(acc(-infinity));
    e.bias.col(33).setConstant(acc(-infinity));
  });
  with("key_lengths", [](example<Scalar>& e) { e.key_lengths = {30}; });
  with("key_lengths of nothing", [](example<Scalar>& e) { e.key_lengths = {0}; });
  with("keep and causal", [](example<Scalar>& e) {
    e.keep = testing::random_mask(n_q, n_kv, 6, 0.3);
    e.options.causal = heed::causal::top_left;
  });
}

/// `spoilt` is `clean` with numbers that are none. Where `reached`, what the reference makes of
/// NaNs in their places, has a number, a path must have what it makes of `clean`, bit for bit;
/// where it has NaN so must the path, unless they are infinities (`strict` false).
template <typename Scalar>
void check_spoilt(const backward_example<Scalar>& clean, const backward_example<Scalar>& spoilt,
                  const gradients<Scalar>& reached, bool strict) {
  for (const heed::isa target : testing::isas()) {
    INFO(testing::name_of(target));
    const auto path = testing::backward_on(target);
    const gradients<Scalar> want = clean.run(path), got = spoilt.run(path);
    testing::for_each_gradient(
        [&](const char* name, const auto& right, const auto& expected, const auto& found) {
          heed::size_type wrong = 0, first = -1;
          for (heed::size_type i = 0; i < right.size(); ++i) {
            const double r = double(right.data()[i]), w = double(expected.data()[i]),
                         g = double(found.data()[i]);
            const bool good = std::isfinite(r) ? g == w : !strict || std::isnan(g);
            if (!good && wrong++ == 0) first = i / right.cols();
          }
          CAPTURE(name, first);
          CHECK(wrong == 0);
        },
        reached, want, got);
  }
}

/// Spoils one thing after the other under each mask.
template <typename Scalar, typename Spoil>
void check_each(const std::vector<heed::size_type>& places, const Spoil& spoil) {
  for_each_mask<Scalar>([&](const example<Scalar>& e) {
    const backward_example<Scalar> clean(e);
    for (const heed::size_type place : places) {
      backward_example<Scalar> spoilt = clean;
      if (!spoil(spoilt, place, Scalar(nan_value))) continue;
      CAPTURE(place);
      spoilt.attend();
      const gradients<Scalar> reached = spoilt.reference();
      check_spoilt(clean, spoilt, reached, true);
      INFO("infinity");
      spoilt = clean;
      spoil(spoilt, place, Scalar(infinity));
      spoilt.attend();
      check_spoilt(clean, spoilt, reached, false);
    }
  });
}

}  // namespace

TEMPLATE_TEST_CASE("a key that is no number reaches the gradients of what sees it alone", "", float,
                   double, Eigen::bfloat16) {
  check_each<TestType>({0, 33, 97, 229},
                       [](backward_example<TestType>& e, heed::size_type j, TestType with) {
                         if (j >= e.forward.key.rows()) return false;
                         e.forward.key.row(j).setConstant(with);
                         return true;
                       });
}
TEMPLATE_TEST_CASE("so does a value", "", float, Eigen::half) {
  check_each<TestType>({0, 33, 97, 229},
                       [](backward_example<TestType>& e, heed::size_type j, TestType with) {
                         if (j >= e.forward.value.rows()) return false;
                         e.forward.value.row(j).setConstant(with);
                         return true;
                       });
}
TEMPLATE_TEST_CASE("so does a query", "", float, double, Eigen::bfloat16) {
  check_each<TestType>({0, 30, 95, 109},
                       [](backward_example<TestType>& e, heed::size_type i, TestType with) {
                         e.forward.query.row(i).setConstant(with);
                         return true;
                       });
}
TEMPLATE_TEST_CASE("so does a gradient that comes in", "", float, Eigen::bfloat16) {
  check_each<TestType>({0, 30, 95, 109},
                       [](backward_example<TestType>& e, heed::size_type i, TestType with) {
                         e.grad_out.row(i).setConstant(with);
                         return true;
                       });
  check_each<TestType>({0, 30, 95, 109},
                       [](backward_example<TestType>& e, heed::size_type i, TestType with) {
                         e.grad_lse(i) = heed::accumulator_t<TestType>(with);
                         return true;
                       });
}
TEST_CASE("so does a bias") {
  check_each<float>({0, 33, 97, 229},
                    [](backward_example<float>& e, heed::size_type j, float with) {
                      if (e.forward.bias.size() == 0 || std::isinf(e.forward.bias(40, j)))
                        return false;
                      e.forward.bias(40, j) = with;
                      return true;
                    });
}

TEST_CASE("what a mask of blocks, of bits or of a function hides is not read into a gradient") {
  const backward_example<float> clean(example<float>(n_q, n_kv, 20, 12, 5));
  const auto shown = [](heed::size_type, heed::size_type, heed::size_type i, heed::size_type j) {
    return (i / 20 + j / 30) % 3 != 0 || (i / 20 == 2 && (i + j) % 2 == 0);
  };
  const heed::block_mask of_function = heed::block_mask::of(shown, 1, 1, n_q, n_kv, 20, 30);
  heed::block_mask some(1, 1, n_q, n_kv, 20, 30);
  heed::rows<std::uint8_t> bits = heed::rows<std::uint8_t>::Zero(n_q, (n_kv + 7) / 8);
  for (heed::size_type i = 0; i < n_q; ++i)
    for (heed::size_type j = 0; j < n_kv; ++j)
      if (shown(0, 0, i, j)) {
        bits(i, j / 8) = static_cast<std::uint8_t>(bits(i, j / 8) | (1 << (j % 8)));
        some.show(0, 0, i / 20, j / 30);
      }
  const heed::rows<std::uint8_t> bytes =
      testing::random_mask(n_q, n_kv, 8).cast<std::uint8_t>() * std::uint8_t{128};
  const auto hides = [](float score, heed::size_type, heed::size_type, heed::size_type i,
                        heed::size_type j) { return (i + j) % 3 == 0 ? -infinity : score; };
  // of a pair that the function masks, the slope means nothing
  const auto slope = [](float, heed::size_type, heed::size_type, heed::size_type i,
                        heed::size_type j) { return (i + j) % 3 == 0 ? nan_value : 1.0f; };
  const auto check = [&](const char* name, const auto&... masks) {
    INFO(name);
    const auto run = [&](const backward_example<float>& e, bool reference, heed::isa target) {
      heed::attention_options options;
      options.execution.target = target;
      const auto& [q, k, v] = std::tie(e.forward.query, e.forward.key, e.forward.value);
      const auto forward = heed::reference_attention_with_lse(q, k, v, options, masks...);
      return reference ? heed::reference_attention_backward(q, k, v, forward.out, forward.lse,
                                                            e.grad_out, options, masks...)
                       : heed::attention_backward(q, k, v, forward.out, forward.lse, e.grad_out,
                                                  options, masks...);
    };
    for (const heed::isa target : testing::isas())
      for (const heed::size_type j : {5, 100, 229}) {
        CAPTURE(testing::name_of(target), j);
        backward_example<float> spoilt = clean;
        spoilt.forward.key.row(j).setConstant(nan_value);
        spoilt.forward.value.row(j).setConstant(nan_value);
        const auto right = run(spoilt, true, target), want = run(clean, false, target),
                   got = run(spoilt, false, target);
        const auto wrong = [](const heed::rows<float>& r, const heed::rows<float>& w,
                              const heed::rows<float>& g) {
          return r.array().isFinite().select(g.array() != w.array(), !g.array().isNaN()).count();
        };
        CHECK(right.query.array().isFinite().any());
        CHECK(right.query.array().isNaN().any());
        CHECK(wrong(right.query, want.query, got.query) == 0);
        CHECK(wrong(right.key, want.key, got.key) == 0);
        CHECK(wrong(right.value, want.value, got.value) == 0);
      }
  };
  check("mask_function", heed::mask_function(shown));
  check("mask_function in blocks", heed::mask_function(shown, of_function));
  check("blocks", heed::blocks(some));
  check("keep_bits", heed::keep_bits(heed::view(bits), n_kv));
  check("keep of bytes", heed::keep(bytes));
  check("score_function", heed::score_function(hides, slope));
}

TEST_CASE("a row that sees no key has no gradient and adds to none") {
  for_each_mask<float>([&](const example<float>& masked) {
    const backward_example<float> e(masked);
    backward_example<float> worst = e;
    for (heed::size_type i = 0; i < n_q; ++i) {
      if (!std::isinf(e.lse(i))) continue;
      worst.forward.query.row(i).setConstant(nan_value);
      worst.grad_out.row(i).setConstant(infinity);
      worst.grad_lse(i) = nan_value;
    }
    for (const heed::isa target : testing::isas()) {
      INFO(testing::name_of(target));
      const gradients<float> want = e.run(testing::backward_on(target)),
                             got = worst.run(testing::backward_on(target));
      CHECK(same_gradients(got, want));
      for (heed::size_type i = 0; i < n_q; ++i)
        if (std::isinf(e.lse(i))) CHECK((got.query.row(i).array() == 0).all());
    }
  });
}

TEST_CASE("of keys past a length nothing is read, and their gradients are 0") {
  const heed::size_type batch = 3, heads = 2;
  const std::vector<heed::size_type> lengths{230, 0, 100};
  const auto query = testing::random_rows<float>(batch * heads * n_q, 16, 1),
             grad_out = testing::random_rows<float>(batch * heads * n_q, 16, 2);
  auto key = testing::random_rows<float>(batch * n_kv, 16, 3),
       value = testing::random_rows<float>(batch * n_kv, 16, 4);
  const auto run = [&](heed::isa target) {
    heed::rows<float> out(query.rows(), 16), lse(query.rows(), 1);
    heed::attention_gradients<float> got{heed::rows<float>::Constant(query.rows(), 16, nan_value),
                                         heed::rows<float>::Constant(key.rows(), 16, nan_value),
                                         heed::rows<float>::Constant(value.rows(), 16, nan_value)};
    heed::attention_options options;
    options.execution.target = target;
    options.causal = heed::causal::bottom_right;
    heed::workspace memory;
    const auto queries = [&](auto& m) { return heed::bhnd(m.data(), batch, heads, n_q, m.cols()); };
    const auto keys = [&](auto& m) {
      return heed::bhnd(m.data(), batch, heed::size_type(1), n_kv, m.cols());
    };
    heed::multi_head_attention_into(queries(query), keys(key), keys(value), queries(out),
                                    queries(lse), options, memory, heed::key_lengths(lengths));
    heed::multi_head_attention_backward_into(queries(query), keys(key), keys(value), queries(out),
                                             queries(lse), queries(grad_out), queries(got.query),
                                             keys(got.key), keys(got.value), options, memory,
                                             heed::key_lengths(lengths));
    return got;
  };
  const auto padding = [&](auto& m, const auto& visit) {
    visit(m.middleRows(n_kv, n_kv));
    visit(m.middleRows(2 * n_kv + 100, n_kv - 100));
  };
  for (const heed::isa target : testing::isas()) {
    INFO(testing::name_of(target));
    const auto want = run(target);
    const auto key_before = key, value_before = value;
    padding(key, [](auto rows) { rows.setConstant(nan_value); });
    padding(value, [](auto rows) { rows.setConstant(infinity); });
    const auto got = run(target);
    key = key_before, value = value_before;
    CHECK(got.query == want.query);
    CHECK(got.key == want.key);
    CHECK(got.value == want.value);
    padding(got.key, [](const auto& rows) { CHECK((rows.array() == 0).all()); });
    padding(got.value, [](const auto& rows) { CHECK((rows.array() == 0).all()); });
    CHECK((got.query.middleRows(heads * n_q, heads * n_q).array() == 0).all());
  }
}
