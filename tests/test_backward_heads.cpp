// Gradients of batches, heads and ragged sequences: each is that of its heads one by one.

#include <heed/backward.hpp>
#include <heed/multi_head.hpp>
#include <heed/position.hpp>

#include <functional>
#include <unsupported/Eigen/CXX11/ThreadPool>
#include <vector>

#include "support/gradient.hpp"
#include "support/refusal.hpp"
#include "support/variations.hpp"

using heed::size_type;

namespace {

enum class order { bhnd, bnhd };

/// The sizes of a call.
struct extents {
  size_type batch, heads, kv_heads, n_q, n_kv, d_k, d_v;

  template <typename Numbers>
  auto queries(Numbers& m, order o, size_type d) const {
    return o == order::bhnd ? heed::bhnd(m.data(), batch, heads, n_q, d)
                            : heed::bnhd(m.data(), batch, n_q, heads, d);
  }
  template <typename Numbers>
  auto keys(Numbers& m, order o, size_type d) const {
    return o == order::bhnd ? heed::bhnd(m.data(), batch, kv_heads, n_kv, d)
                            : heed::bnhd(m.data(), batch, n_kv, kv_heads, d);
  }
};

/// All numbers of a call in one order of axes. What is written is NaN before.
template <typename Scalar>
struct tensors {
  using Acc = heed::accumulator_t<Scalar>;
  extents s;
  order o;
  heed::rows<Scalar> query, key, value, out, grad_out, grad_query, grad_key, grad_value;
  heed::rows<Acc> lse;

  tensors(const extents& sizes, order axes) : s(sizes), o(axes) {
    const auto fill = [&](heed::rows<Scalar>& m, size_type heads, size_type n, size_type d,
                          unsigned seed) {
      const auto numbers = testing::random_rows<Scalar>(1, s.batch * heads * n * d, seed);
      m.resize(1, numbers.size());
      const auto from = heed::bhnd(numbers.data(), s.batch, heads, n, d),
                 to = o == order::bhnd ? heed::bhnd(m.data(), s.batch, heads, n, d)
                                       : heed::bnhd(m.data(), s.batch, n, heads, d);
      for (size_type b = 0; b < s.batch; ++b)
        for (size_type h = 0; h < heads; ++h)
          for (size_type i = 0; i < n; ++i)
            for (size_type c = 0; c < d; ++c) to(b, h, i, c) = from(b, h, i, c);
    };
    fill(query, s.heads, s.n_q, s.d_k, 1);
    fill(key, s.kv_heads, s.n_kv, s.d_k, 2);
    fill(value, s.kv_heads, s.n_kv, s.d_v, 3);
    fill(grad_out, s.heads, s.n_q, s.d_v, 4);
    const Scalar nothing(std::numeric_limits<float>::quiet_NaN());
    out.setConstant(1, grad_out.size(), nothing);
    grad_query.setConstant(1, query.size(), nothing);
    grad_key.setConstant(1, key.size(), nothing);
    grad_value.setConstant(1, value.size(), nothing);
    lse.resize(1, s.batch * s.heads * s.n_q);
  }

  auto lse_view() { return s.queries(lse, order::bhnd, 1); }

  /// The results of the reference, and the gradients of backward(arguments..., terms...).
  template <typename Backward, typename... Terms>
  void run(const heed::attention_options& options, const Backward& backward,
           const Terms&... terms) {
    forward(options, terms...);
    backward(s.queries(query, o, s.d_k), s.keys(key, o, s.d_k), s.keys(value, o, s.d_v),
             s.queries(out, o, s.d_v), lse_view(), s.queries(grad_out, o, s.d_v),
             s.queries(grad_query, o, s.d_k), s.keys(grad_key, o, s.d_k),
             s.keys(grad_value, o, s.d_v), options, terms...);
  }
  template <typename... Terms>
  void forward(const heed::attention_options& options, const Terms&... terms) {
    heed::reference_multi_head_attention_into(s.queries(query, o, s.d_k), s.keys(key, o, s.d_k),
                                              s.keys(value, o, s.d_v), s.queries(out, o, s.d_v),
                                              lse_view(), options, terms...);
  }
};
const auto fused = [](const auto&... arguments) {
  const auto call = [&](const auto& query, const auto& key, const auto& value, const auto& out,
                        const auto& lse, const auto& grad_out, const auto& grad_query,
                        const auto& grad_key, const auto& grad_value, const auto& options,
                        const auto&... terms) {
    heed::workspace memory;
    heed::multi_head_attention_backward_into(query, key, value, out, lse, grad_out, grad_query,
                                             grad_key, grad_value, options, memory, terms...);
  };
  call(arguments...);
};

template <typename From, typename To>
bool same(const heed::tensor_view<From>& a, const heed::tensor_view<To>& b) {
  bool equal = a.batch == b.batch && a.heads == b.heads && a.rows == b.rows && a.cols == b.cols;
  for (size_type n = 0; n < a.batch && equal; ++n)
    for (size_type h = 0; h < a.heads; ++h)
      for (size_type i = 0; i < a.rows; ++i)
        for (size_type c = 0; c < a.cols; ++c) equal = equal && a(n, h, i, c) == b(n, h, i, c);
  return equal;
}
template <typename Scalar>
bool same_gradients(tensors<Scalar>& a, tensors<Scalar>& b) {
  const extents& s = a.s;
  return same(s.queries(a.grad_query, a.o, s.d_k), s.queries(b.grad_query, b.o, s.d_k)) &&
         same(s.keys(a.grad_key, a.o, s.d_k), s.keys(b.grad_key, b.o, s.d_k)) &&
         same(s.keys(a.grad_value, a.o, s.d_v), s.keys(b.grad_value, b.o, s.d_v));
}

const extents all_extents[] = {{2, 4, 4, 50, 70, 16, 16}, {2, 6, 2, 100, 120, 20, 12},
                               {1, 5, 1, 33, 200, 8, 24}, {3, 2, 1, 1, 99, 16, 8},
                               {2, 2, 2, 0, 5, 4, 4},     {2, 2, 2, 5, 0, 4, 4},
                               {0, 2, 2, 5, 5, 4, 4},     {2, 0, 0, 5, 5, 4, 4}};

/// Runs the workers one after the other, the last first.
class sequential_executor : public heed::executor {
 public:
  int workers() const override { return 3; }
  void run(int workers, work_function work, void* context) override {
    for (int w = workers - 1; w >= 0; --w) work(context, w);
  }
};

}  // namespace

TEMPLATE_TEST_CASE("gradients of batches and heads are as exact as the reference's", "", float,
                   double, Eigen::bfloat16, Eigen::half) {
  using wide = testing::wider_t<TestType>;
  for (const extents& s : all_extents) {
    CAPTURE(s.batch, s.heads, s.kv_heads, s.n_q, s.n_kv);
    heed::attention_options options;
    options.causal = heed::causal::bottom_right;
    tensors<TestType> reference(s, order::bhnd), got(s, order::bhnd);
    const auto direct = [](const auto&... arguments) {
      heed::reference_multi_head_attention_backward_into(arguments...);
    };
    reference.run(options, direct);
    tensors<wide> exact(s, order::bhnd);
    exact.query = reference.query.template cast<wide>();
    exact.key = reference.key.template cast<wide>();
    exact.value = reference.value.template cast<wide>();
    exact.grad_out = reference.grad_out.template cast<wide>();
    exact.run(options, direct);
    for (const heed::isa target : testing::isas()) {
      INFO(testing::name_of(target));
      options.execution.target = target;
      got.run(options, fused);
      testing::check_as_exact_as(got.grad_query, reference.grad_query, exact.grad_query);
      testing::check_as_exact_as(got.grad_key, reference.grad_key, exact.grad_key);
      testing::check_as_exact_as(got.grad_value, reference.grad_value, exact.grad_value);
    }
  }
}

TEMPLATE_TEST_CASE("the order of the axes means nothing to gradients, bit for bit", "", float,
                   double, Eigen::bfloat16) {
  for (const extents& s : all_extents)
    for (const heed::isa target : testing::isas()) {
      CAPTURE(testing::name_of(target), s.batch, s.heads, s.kv_heads, s.n_q, s.n_kv);
      heed::attention_options options;
      options.execution.target = target;
      tensors<TestType> one(s, order::bhnd), other(s, order::bnhd);
      one.run(options, fused);
      other.run(options, fused);
      CHECK(same_gradients(one, other));
    }
}

TEMPLATE_TEST_CASE("gradients of a batch do not depend on threads or executors, bit for bit", "",
                   float, Eigen::bfloat16) {
  Eigen::ThreadPool pool(3);
  heed::pool_executor<Eigen::ThreadPool> lent(pool);
  sequential_executor sequential;
  for (const extents& s : all_extents) {
    const heed::rows<heed::accumulator_t<TestType>> bias =
        testing::random_rows<heed::accumulator_t<TestType>>(s.n_q, s.n_kv, 5);
    const heed::row_vector<heed::accumulator_t<TestType>> numbers =
        testing::random_rows<heed::accumulator_t<TestType>>(s.heads, 1, 6);
    struct result {
      tensors<TestType> t;
      heed::rows<heed::accumulator_t<TestType>> bias, alibi, sinks, factors;
    };
    const auto run = [&](int threads, heed::executor* executor) {
      heed::attention_options options;
      options.causal = heed::causal::bottom_right;
      options.execution.threads = threads;
      options.execution.executor = executor;
      result r{tensors<TestType>(s, order::bnhd), bias, numbers, numbers, numbers};
      r.t.forward(options, heed::bias(bias), heed::alibi(numbers), heed::sinks(numbers),
                  heed::logit_scales(numbers));
      Eigen::Map<heed::row_vector<heed::accumulator_t<TestType>>> alibi(r.alibi.data(), s.heads),
          sinks(r.sinks.data(), s.heads), factors(r.factors.data(), s.heads);
      heed::workspace memory;
      tensors<TestType>& t = r.t;
      heed::multi_head_attention_backward_into(
          s.queries(t.query, t.o, s.d_k), s.keys(t.key, t.o, s.d_k), s.keys(t.value, t.o, s.d_v),
          s.queries(t.out, t.o, s.d_v), t.lse_view(), s.queries(t.grad_out, t.o, s.d_v),
          s.queries(t.grad_query, t.o, s.d_k), s.keys(t.grad_key, t.o, s.d_k),
          s.keys(t.grad_value, t.o, s.d_v), options, memory, heed::bias(bias), heed::alibi(numbers),
          heed::sinks(numbers), heed::logit_scales(numbers), heed::grad_bias(r.bias),
          heed::grad_alibi(alibi), heed::grad_sinks(sinks), heed::grad_logit_scales(factors));
      return r;
    };
    result alone = run(1, nullptr);
    const auto check = [&](const char* name, int threads, heed::executor* executor) {
      CAPTURE(name, s.batch, s.heads, s.kv_heads, s.n_q, s.n_kv);
      result many = run(threads, executor);
      CHECK(same_gradients(many.t, alone.t));
      CHECK(many.bias == alone.bias);
      CHECK(many.alibi == alone.alibi);
      CHECK(many.sinks == alone.sinks);
      CHECK(many.factors == alone.factors);
    };
    check("two threads", 2, nullptr);
    check("seven threads", 7, nullptr);
    check("a pool", 1, &lent);
    check("one worker after the other", 1, &sequential);
  }
}

TEST_CASE("a key/value head that is shared has the sum of its query heads' gradients") {
  const extents s{2, 6, 2, 60, 110, 16, 12};
  for (const heed::isa target : testing::isas()) {
    INFO(testing::name_of(target));
    heed::attention_options options;
    options.execution.target = target;
    options.window_left = 40;
    tensors<double> all(s, order::bhnd);
    all.run(options, fused);
    for (size_type b = 0; b < s.batch; ++b)
      for (size_type g = 0; g < s.kv_heads; ++g) {
        heed::rows<double> key = heed::rows<double>::Zero(s.n_kv, s.d_k),
                           value = heed::rows<double>::Zero(s.n_kv, s.d_v);
        const auto matrix = [](const auto& view, size_type n, size_type h) {
          return heed::rows<double>(
              Eigen::Map<const heed::rows<double>>(&view(n, h, 0, 0), view.rows, view.cols));
        };
        for (size_type h = 3 * g; h < 3 * g + 3; ++h) {
          const auto one = heed::attention_backward(
              matrix(s.queries(all.query, all.o, s.d_k), b, h),
              matrix(s.keys(all.key, all.o, s.d_k), b, g),
              matrix(s.keys(all.value, all.o, s.d_v), b, g),
              matrix(s.queries(all.out, all.o, s.d_v), b, h), matrix(all.lse_view(), b, h),
              matrix(s.queries(all.grad_out, all.o, s.d_v), b, h), options);
          CHECK(matrix(s.queries(all.grad_query, all.o, s.d_k), b, h) == one.query);
          key += one.key;
          value += one.value;
        }
        // sums of 60 queries of 3 heads, in two orders
        const auto near_to = [](const heed::rows<double>& x, const heed::rows<double>& y) {
          return (x - y).cwiseAbs().maxCoeff() <=
                 180 * std::numeric_limits<double>::epsilon() * y.cwiseAbs().maxCoeff();
        };
        CHECK(near_to(matrix(s.keys(all.grad_key, all.o, s.d_k), b, g), key));
        CHECK(near_to(matrix(s.keys(all.grad_value, all.o, s.d_v), b, g), value));
      }
  }
}

TEST_CASE("inputs with strides of 0 are read as if they were copied") {
  const extents s{2, 2, 2, 40, 50, 8, 8};
  tensors<float> copied(s, order::bhnd), one(s, order::bhnd);
  // every head has the keys of the first, and every row the gradient of the first
  for (size_type n = 1; n < s.batch * s.kv_heads; ++n)
    copied.key.middleCols(n * 50 * 8, 50 * 8) = copied.key.leftCols(50 * 8).eval();
  for (size_type n = 1; n < s.batch * s.heads * s.n_q; ++n)
    copied.grad_out.middleCols(n * 8, 8) = copied.grad_out.leftCols(8).eval();
  copied.run({}, fused);
  auto key = s.keys(one.key, order::bhnd, 8);
  key.batch_stride = key.head_stride = 0;
  auto grad_out = s.queries(one.grad_out, order::bhnd, 8);
  grad_out.batch_stride = grad_out.head_stride = grad_out.row_stride = 0;
  heed::workspace memory;
  heed::multi_head_attention_backward_into(
      s.queries(one.query, order::bhnd, 8), key, s.keys(one.value, order::bhnd, 8),
      s.queries(copied.out, order::bhnd, 8), copied.lse_view(), grad_out,
      s.queries(one.grad_query, order::bhnd, 8), s.keys(one.grad_key, order::bhnd, 8),
      s.keys(one.grad_value, order::bhnd, 8), {}, memory);
  CHECK(same_gradients(one, copied));
}

// The gradient of what was broadcast is the sum over all that it was broadcast to.
TEMPLATE_TEST_CASE("the gradient of a bias is summed over what the bias was broadcast to", "",
                   double, Eigen::bfloat16) {
  using Acc = heed::accumulator_t<TestType>;
  const extents s{4, 2, 1, 110, 130, 8, 8};
  struct shape {
    size_type batch, heads, rows, cols, times;
  };
  for (const shape& of : {shape{4, 2, 110, 130, 1},
                          {1, 2, 110, 130, 1},
                          {4, 1, 110, 130, 1},
                          {1, 1, 110, 130, 1},
                          {1, 1, 1, 130, 1},
                          {1, 1, 110, 1, 1},
                          {1, 2, 1, 1, 1},
                          {1, 1, 1, 1, 1},
                          {2, 1, 110, 130, 2},
                          {2, 2, 1, 130, 2}})
    for (const bool column_major : {false, true}) {
      CAPTURE(of.batch, of.heads, of.rows, of.cols, of.times, column_major);
      const heed::rows<Acc> numbers =
          testing::random_rows<Acc>(1, of.batch * of.heads * of.rows * of.cols, 5);
      const auto laid = [&](auto* data) {
        auto view = heed::bhnd(data, of.batch, of.heads, of.rows, of.cols);
        if (column_major) view.row_stride = 1, view.col_stride = of.rows;
        return view;
      };
      // the same with a number for each pair of each head
      heed::rows<Acc> full(1, s.batch * s.heads * s.n_q * s.n_kv);
      const auto whole = heed::bhnd(full.data(), s.batch, s.heads, s.n_q, s.n_kv);
      const auto small = laid(numbers.data());
      const auto place = [&](size_type b, size_type h, size_type i, size_type j) {
        return &small(b % of.batch, h % of.heads, i % of.rows, j % of.cols) - small.data;
      };
      const auto each_pair = [&](const auto& visit) {
        for (size_type b = 0; b < s.batch; ++b)
          for (size_type h = 0; h < s.heads; ++h)
            for (size_type i = 0; i < s.n_q; ++i)
              for (size_type j = 0; j < s.n_kv; ++j) visit(b, h, i, j);
      };
      each_pair([&](size_type b, size_type h, size_type i, size_type j) {
        whole(b, h, i, j) = numbers.data()[place(b, h, i, j)];
      });
      heed::attention_options options;
      options.causal = heed::causal::bottom_right;
      tensors<TestType> t(s, order::bhnd);
      t.forward(options, heed::bias(whole));
      const auto run = [&](const heed::attention_options& on, const auto& bias,
                           const heed::tensor_view<Acc>& gradient) {
        heed::workspace memory;
        heed::multi_head_attention_backward_into(
            s.queries(t.query, t.o, 8), s.keys(t.key, t.o, 8), s.keys(t.value, t.o, 8),
            s.queries(t.out, t.o, 8), t.lse_view(), s.queries(t.grad_out, t.o, 8),
            s.queries(t.grad_query, t.o, 8), s.keys(t.grad_key, t.o, 8),
            s.keys(t.grad_value, t.o, 8), on, memory, bias, heed::grad_bias(gradient));
      };
      for (const heed::isa target : testing::isas()) {
        INFO(testing::name_of(target));
        options.execution.target = target;
        const Acc nothing = std::numeric_limits<Acc>::quiet_NaN();
        heed::rows<Acc> of_all = heed::rows<Acc>::Constant(1, full.size(), nothing),
                        got = heed::rows<Acc>::Constant(1, numbers.size(), nothing);
        run(options, heed::bias(whole), heed::bhnd(of_all.data(), 4, 2, 110, 130));
        run(options, heed::bias(heed::repeated(heed::tensor_view<const Acc>(small), of.times)),
            laid(got.data()));
        heed::rows<double> want = heed::rows<double>::Zero(1, numbers.size()), size = want;
        size_type terms = 0;
        each_pair([&](size_type b, size_type h, size_type i, size_type j) {
          const double one = double(of_all.data()[&whole(b, h, i, j) - whole.data]);
          want.data()[place(b, h, i, j)] += one;
          size.data()[place(b, h, i, j)] += std::abs(one);
          terms += place(b, h, i, j) == 0;
        });
        // at most as many roundings as there are terms, of sums below that of their sizes
        const double bound = double(terms) *
                             static_cast<double>(std::numeric_limits<Acc>::epsilon()) *
                             size.maxCoeff();
        CHECK((got.template cast<double>() - want).cwiseAbs().maxCoeff() <= bound);
        options.execution.threads = 3;
        heed::rows<Acc> on_threads = got;
        run(options, heed::bias(heed::repeated(heed::tensor_view<const Acc>(small), of.times)),
            laid(on_threads.data()));
        CHECK(on_threads == got);
        options.execution.threads = 1;
      }
    }
}

namespace {

constexpr size_type heads = 4, kv_heads = 2, d_k = 12, d_v = 7;

/// Sequences of every kind: empty, without keys, without queries, one token, more than a block.
const std::vector<size_type> query_starts{0, 0, 1, 4, 4, 160, 161, 161},
    key_starts{0, 0, 1, 1, 9, 210, 220, 220};

template <typename Scalar>
heed::tensor_view<Scalar> split(heed::rows<Scalar>& m, size_type h) {
  return heed::split_heads(heed::writable_view(m), h);
}

/// All tokens, one after the other: [total, H * d].
template <typename Scalar>
struct packed {
  using Acc = heed::accumulator_t<Scalar>;
  heed::rows<Scalar> query, key, value, out, grad_out, grad_query, grad_key, grad_value;
  heed::rows<Acc> lse, grad_lse;
  heed::row_vector<Acc> slopes, logits, grad_slopes, grad_logits;

  packed() {
    const size_type n_q = query_starts.back(), n_kv = key_starts.back();
    query = testing::random_rows<Scalar>(n_q, heads * d_k, 1);
    key = testing::random_rows<Scalar>(n_kv, kv_heads * d_k, 2);
    value = testing::random_rows<Scalar>(n_kv, kv_heads * d_v, 3);
    grad_out = testing::random_rows<Scalar>(n_q, heads * d_v, 4);
    grad_lse = testing::random_rows<Acc>(n_q, heads, 5);
    slopes = heed::alibi_slopes<Acc>(heads);
    logits = testing::random_rows<Acc>(heads, 1, 7);
    const Scalar nothing(std::numeric_limits<float>::quiet_NaN());
    out.setConstant(n_q, heads * d_v, nothing);
    lse.resize(n_q, heads);
    grad_query.setConstant(n_q, heads * d_k, nothing);
    grad_key.setConstant(n_kv, kv_heads * d_k, nothing);
    grad_value.setConstant(n_kv, kv_heads * d_v, nothing);
    grad_slopes.setConstant(heads, Acc(nothing));
    grad_logits.setConstant(heads, Acc(nothing));
  }

  void forward(const heed::attention_options& options) {
    heed::reference_ragged_attention_into(split(query, heads), split(key, kv_heads),
                                          split(value, kv_heads), split(out, heads),
                                          split(lse, heads), query_starts, key_starts, options,
                                          heed::alibi(slopes), heed::sinks(logits));
  }
  void backward(const heed::attention_options& options, bool reference = false) {
    heed::workspace memory;
    const auto call = [&](const auto& function, auto&... more) {
      function(split(query, heads), split(key, kv_heads), split(value, kv_heads), split(out, heads),
               split(lse, heads), split(grad_out, heads), split(grad_query, heads),
               split(grad_key, kv_heads), split(grad_value, kv_heads), query_starts, key_starts,
               options, more..., heed::alibi(slopes), heed::sinks(logits),
               heed::grad_lse(split(grad_lse, heads)), heed::grad_alibi(grad_slopes),
               heed::grad_sinks(grad_logits));
    };
    if (reference) {
      call([](const auto&... a) { heed::reference_ragged_attention_backward_into(a...); });
    } else {
      call([](auto&&... a) { heed::ragged_attention_backward_into(a...); }, memory);
    }
  }
};

}  // namespace

TEMPLATE_TEST_CASE("gradients of a ragged batch are those of its sequences one by one, bit for bit",
                   "", float, double, Eigen::bfloat16) {
  using Acc = heed::accumulator_t<TestType>;
  for (const heed::attention_options& given : testing::position_options())
    for (const heed::isa target : testing::isas())
      for (const int threads : {1, 3}) {
        heed::attention_options options = given;
        options.execution.target = target;
        options.execution.threads = threads;
        packed<TestType> all;
        all.forward(options);
        all.backward(options);
        heed::row_vector<double> slopes = heed::row_vector<double>::Zero(heads), logits = slopes;
        for (std::size_t n = 0; n + 1 < query_starts.size(); ++n) {
          CAPTURE(testing::name_of(target), threads, n);
          const size_type q = query_starts[n], n_q = query_starts[n + 1] - q, k = key_starts[n],
                          n_kv = key_starts[n + 1] - k;
          // the same rows as a batch of one
          const auto rows_of = [](auto& m, size_type h, size_type first, size_type count) {
            auto view = split(m, h);
            view.data += first * view.row_stride;
            view.rows = count;
            return view;
          };
          packed<TestType> one;
          heed::workspace memory;
          heed::multi_head_attention_backward_into(
              rows_of(all.query, heads, q, n_q), rows_of(all.key, kv_heads, k, n_kv),
              rows_of(all.value, kv_heads, k, n_kv), rows_of(all.out, heads, q, n_q),
              rows_of(all.lse, heads, q, n_q), rows_of(all.grad_out, heads, q, n_q),
              rows_of(one.grad_query, heads, q, n_q), rows_of(one.grad_key, kv_heads, k, n_kv),
              rows_of(one.grad_value, kv_heads, k, n_kv), options, memory, heed::alibi(all.slopes),
              heed::sinks(all.logits), heed::grad_lse(rows_of(all.grad_lse, heads, q, n_q)),
              heed::grad_alibi(one.grad_slopes), heed::grad_sinks(one.grad_logits));
          CHECK(one.grad_query.middleRows(q, n_q) == all.grad_query.middleRows(q, n_q));
          CHECK(one.grad_key.middleRows(k, n_kv) == all.grad_key.middleRows(k, n_kv));
          CHECK(one.grad_value.middleRows(k, n_kv) == all.grad_value.middleRows(k, n_kv));
          slopes += one.grad_slopes.template cast<double>();
          logits += one.grad_logits.template cast<double>();
        }
        // one rounding of each sequence's sum, and one of all
        const auto bound = [](const auto& m) {
          return 8 * static_cast<double>(std::numeric_limits<Acc>::epsilon()) *
                 (1 + m.cwiseAbs().maxCoeff());
        };
        CHECK((all.grad_slopes.template cast<double>() - slopes).cwiseAbs().maxCoeff() <=
              bound(slopes));
        CHECK((all.grad_logits.template cast<double>() - logits).cwiseAbs().maxCoeff() <=
              bound(logits));
      }
}

TEST_CASE("gradients of a ragged batch are as exact as the reference's") {
  for (const heed::attention_options& given : testing::position_options()) {
    heed::attention_options options = given;
    packed<float> same;
    packed<double> exact;
    same.forward(options);
    exact.query = same.query.cast<double>(), exact.key = same.key.cast<double>();
    exact.value = same.value.cast<double>(), exact.grad_out = same.grad_out.cast<double>();
    exact.grad_lse = same.grad_lse.cast<double>(), exact.slopes = same.slopes.cast<double>();
    exact.logits = same.logits.cast<double>();
    exact.forward(options);
    exact.backward(options, true);
    packed<float> got = same;
    same.backward(options, true);
    for (const heed::isa target : testing::isas()) {
      INFO(testing::name_of(target));
      options.execution.target = target;
      got.backward(options);
      testing::check_as_exact_as(got.grad_query, same.grad_query, exact.grad_query);
      testing::check_as_exact_as(got.grad_key, same.grad_key, exact.grad_key);
      testing::check_as_exact_as(got.grad_value, same.grad_value, exact.grad_value);
      testing::check_as_exact_as(got.grad_slopes, same.grad_slopes, exact.grad_slopes);
      testing::check_as_exact_as(got.grad_logits, same.grad_logits, exact.grad_logits);
    }
  }
}

TEST_CASE("what is no number in one document of a ragged batch stays there") {
  const float nan_value = std::numeric_limits<float>::quiet_NaN();
  packed<float> clean, spoilt;
  const size_type q = query_starts[4], n_q = query_starts[5] - q, k = key_starts[4],
                  n_kv = key_starts[5] - k;
  spoilt.query.middleRows(q, n_q).setConstant(nan_value);
  spoilt.key.middleRows(k, n_kv).setConstant(std::numeric_limits<float>::infinity());
  spoilt.value.middleRows(k, n_kv).setConstant(nan_value);
  spoilt.grad_out.middleRows(q, n_q).setConstant(nan_value);
  for (const heed::attention_options& given : testing::position_options())
    for (const heed::isa target : testing::isas()) {
      INFO(testing::name_of(target));
      heed::attention_options options = given;
      options.execution.target = target;
      for (packed<float>* const one : {&clean, &spoilt}) {
        one->forward(options);
        one->backward(options);
      }
      CHECK(spoilt.grad_query.topRows(q) == clean.grad_query.topRows(q));
      CHECK(spoilt.grad_query.bottomRows(1) == clean.grad_query.bottomRows(1));
      CHECK(spoilt.grad_key.topRows(k) == clean.grad_key.topRows(k));
      CHECK(spoilt.grad_key.bottomRows(10) == clean.grad_key.bottomRows(10));
      CHECK(spoilt.grad_value.topRows(k) == clean.grad_value.topRows(k));
      CHECK(spoilt.grad_value.bottomRows(10) == clean.grad_value.bottomRows(10));
      CHECK(spoilt.grad_query.middleRows(q, n_q).array().isNaN().any());
    }
}
