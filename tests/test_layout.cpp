#include <heed/delta_rule.hpp>
#include <heed/linear_attention.hpp>
#include <heed/multi_head.hpp>
#include <heed/projection.hpp>
#include <heed/ragged.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "support/example.hpp"
#include "support/isas.hpp"

// Where the rows of a head are in memory changes no bit of a result: dense, heads side by side, or
// anywhere else.

namespace {

using Index = heed::size_type;

/// The same numbers in two layouts: the rows of a head one after the other, and `apart` elements
/// from each other.
template <typename Scalar>
struct two_layouts {
  two_layouts(Index batch, Index num_heads, Index n, Index d, Index padding, unsigned seed)
      : dense(testing::random_rows<Scalar>(batch * num_heads * n, d, seed)),
        apart(heed::rows<Scalar>::Constant(batch * n, num_heads * (d + padding), Scalar(-7))),
        view_of_dense(heed::bhnd(dense.data(), batch, num_heads, n, d)),
        view_of_apart(heed::bnhd(apart.data(), batch, n, num_heads, d + padding)) {
    view_of_apart.cols = d;
    for (Index b = 0; b < batch; ++b)
      for (Index h = 0; h < num_heads; ++h)
        for (Index i = 0; i < n; ++i)
          for (Index c = 0; c < d; ++c) view_of_apart(b, h, i, c) = view_of_dense(b, h, i, c);
  }
  two_layouts(const two_layouts&) = delete;

  heed::rows<Scalar> dense, apart;
  heed::tensor_view<Scalar> view_of_dense, view_of_apart;
};

template <typename Scalar>
bool same_bits(const heed::tensor_view<Scalar>& a, const heed::tensor_view<Scalar>& b) {
  for (Index n = 0; n < a.batch; ++n)
    for (Index h = 0; h < a.heads; ++h)
      for (Index i = 0; i < a.rows; ++i)
        for (Index c = 0; c < a.cols; ++c)
          if (std::memcmp(&a(n, h, i, c), &b(n, h, i, c), sizeof(Scalar)) != 0) return false;
  return true;
}

struct sizes {
  Index batch, heads, kv_heads, n_q, n_kv, d_k, d_v;
};

/// Few and many queries, of one block and of several; keys of one block, of many and of a few more;
/// groups; rows that fill no vector.
const std::vector<sizes> all_sizes{{1, 4, 4, 1, 300, 64, 64},    {2, 8, 2, 1, 1500, 64, 32},
                                   {1, 4, 2, 3, 900, 20, 20},    {1, 3, 3, 16, 130, 64, 64},
                                   {2, 4, 4, 64, 257, 64, 64},   {1, 8, 4, 70, 300, 128, 128},
                                   {1, 4, 1, 200, 140, 40, 24},  {1, 2, 2, 300, 300, 64, 64},
                                   {1, 16, 16, 49, 129, 16, 16}, {2, 3, 1, 5, 7, 8, 8}};

template <typename Scalar, typename... Terms>
void check(const sizes& s, Index padding, const heed::attention_options& options,
           const Terms&... terms) {
  const two_layouts<Scalar> query(s.batch, s.heads, s.n_q, s.d_k, padding, 1),
      key(s.batch, s.kv_heads, s.n_kv, s.d_k, padding, 2),
      value(s.batch, s.kv_heads, s.n_kv, s.d_v, padding, 3),
      out(s.batch, s.heads, s.n_q, s.d_v, padding, 4);
  heed::rows<heed::accumulator_t<Scalar>> lse(1, s.batch * s.heads * s.n_q),
      lse_apart(1, s.batch * s.heads * s.n_q);
  const auto lse_view = heed::bhnd(lse.data(), s.batch, s.heads, s.n_q, Index(1));
  const auto lse_view_apart = heed::bnhd(lse_apart.data(), s.batch, s.n_q, s.heads, Index(1));
  heed::workspace memory;
  heed::multi_head_attention_into(query.view_of_dense, key.view_of_dense, value.view_of_dense,
                                  out.view_of_dense, lse_view, options, memory, terms...);
  heed::attention_options other = options;
  for (const int threads : {1, 2}) {
    other.execution.threads = threads;
    heed::multi_head_attention_into(query.view_of_apart, key.view_of_apart, value.view_of_apart,
                                    out.view_of_apart, lse_view_apart, other, memory, terms...);
    INFO("batch " << s.batch << ", heads " << s.heads << " / " << s.kv_heads << ", n_q " << s.n_q
                  << ", n_kv " << s.n_kv << ", d " << s.d_k << " / " << s.d_v << ", padding "
                  << padding << ", threads " << threads << ", "
                  << testing::name_of(options.execution.target));
    CHECK(same_bits(out.view_of_dense, out.view_of_apart));
    CHECK(same_bits(lse_view, lse_view_apart));
  }
}

}  // namespace

TEMPLATE_TEST_CASE("heads side by side give what dense rows give, to the bit", "", float, double,
                   Eigen::bfloat16, Eigen::half) {
  for (const heed::isa target : testing::isas())
    for (const heed::causal causal : {heed::causal::none, heed::causal::bottom_right})
      for (const sizes& s : all_sizes) {
        heed::attention_options options;
        options.execution.target = target;
        options.causal = causal;
        check<TestType>(s, 0, options);
        check<TestType>(s, 5, options);
      }
}

TEST_CASE("heads side by side with masks, biases and windows") {
  for (const heed::isa target : testing::isas())
    for (const sizes& s : all_sizes) {
      heed::attention_options options;
      options.execution.target = target;
      options.window_left = 40;
      options.window_right = 3;
      options.softcap = 5;
      const heed::rows<float> bias = testing::random_rows<float>(s.n_q, s.n_kv, 9);
      Eigen::Matrix<bool, Eigen::Dynamic, Eigen::Dynamic> keep(s.n_q, s.n_kv);
      for (Index i = 0; i < s.n_q; ++i)
        for (Index j = 0; j < s.n_kv; ++j) keep(i, j) = (i * 7 + j * 3) % 5 != 0;
      const Eigen::VectorXf slopes = Eigen::VectorXf::LinSpaced(s.heads, 0.01f, 0.05f);
      check<float>(s, 0, options, heed::bias(bias), heed::keep(keep), heed::alibi(slopes));
    }
}

namespace {

enum class gates { none, token, key };

/// Linear attention (or the delta rule) of heads that take turns, against each of them alone. Gates
/// that forget cut each head's chunks at other tokens.
template <typename Scalar>
void check_recurrence(const sizes& s, gates which, bool delta, bool bonus,
                      const heed::linear_attention_options& options) {
  using Acc = heed::accumulator_t<Scalar>;
  const Index n = s.n_q, state_cols = s.d_v + (options.normalise ? 1 : 0);
  two_layouts<Scalar> query(s.batch, s.heads, n, s.d_k, 0, 1),
      key(s.batch, s.kv_heads, n, s.d_k, 0, 2), value(s.batch, s.kv_heads, n, s.d_v, 0, 3),
      out(s.batch, s.heads, n, s.d_v, 0, 4);
  two_layouts<Acc> log_gate(s.batch, s.kv_heads, n, which == gates::key ? s.d_k : 1, 0, 5),
      beta(s.batch, s.kv_heads, n, 1, 0, 6);
  for (Index b = 0; b < s.batch; ++b)
    for (Index h = 0; h < s.kv_heads; ++h)
      for (Index i = 0; i < n; ++i)
        for (Index c = 0; c < log_gate.view_of_dense.cols; ++c) {
          Acc gate = std::abs(log_gate.view_of_dense(b, h, i, c)) * Acc(-0.05);
          if ((i * (h + 2) + c) % 23 == 0) gate = -30;
          if ((i + 5 * h) % 61 == 60) gate = -std::numeric_limits<Acc>::infinity();
          log_gate.view_of_dense(b, h, i, c) = log_gate.view_of_apart(b, h, i, c) = gate;
        }
  const Eigen::Matrix<Acc, 1, Eigen::Dynamic> u =
      Eigen::Matrix<Acc, 1, Eigen::Dynamic>::LinSpaced(s.d_k, -1, 1);
  const heed::rows<Acc> start =
      testing::random_rows<Acc>(s.batch * s.kv_heads * s.d_k, state_cols, 7);
  heed::workspace memory;
  const auto run = [&](bool apart, heed::rows<Acc>* state, int threads) {
    const auto of = [&](auto& two) { return apart ? two.view_of_apart : two.view_of_dense; };
    const auto call = [&](const auto&... terms) {
      if (delta) {
        heed::delta_rule_options other;
        other.execution.target = options.execution.target;
        other.execution.threads = threads;
        heed::multi_head_delta_rule_into(of(query), of(key), of(value), of(beta), of(out), other,
                                         memory, terms...);
      } else {
        heed::linear_attention_options other = options;
        other.execution.threads = threads;
        heed::multi_head_linear_attention_into(of(query), of(key), of(value), of(out), other,
                                               memory, terms..., heed::when(bonus, heed::bonus(u)));
      }
    };
    const auto gate = heed::when(which != gates::none, heed::log_gate(of(log_gate)));
    if (state) {
      call(gate, heed::carry(heed::bhnd(state->data(), s.batch, s.kv_heads, s.d_k, state_cols)));
    } else {
      call(gate);
    }
  };
  for (const bool carried : {false, true}) {
    heed::rows<Acc> state = start;
    run(false, carried ? &state : nullptr, 1);
    for (const int threads : {1, 2}) {
      heed::rows<Acc> other = start;
      out.apart.setConstant(Scalar(-7));
      run(true, carried ? &other : nullptr, threads);
      INFO("batch " << s.batch << ", heads " << s.heads << " / " << s.kv_heads << ", n " << n
                    << ", d " << s.d_k << " / " << s.d_v << ", gates " << int(which) << ", delta "
                    << delta << ", bonus " << bonus << ", normalise " << options.normalise
                    << ", carried " << carried << ", threads " << threads << ", "
                    << testing::name_of(options.execution.target));
      CHECK(same_bits(out.view_of_dense, out.view_of_apart));
      CHECK(std::memcmp(state.data(), other.data(), std::size_t(state.size()) * sizeof(Acc)) == 0);
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("linear attention and the delta rule of heads side by side, to the bit", "",
                   float, double, Eigen::bfloat16) {
  // More heads than take turns; groups; one head; rows that fill no vector; fewer tokens than a
  // chunk, and one.
  for (const sizes& s : std::vector<sizes>{{1, 20, 20, 150, 150, 16, 16},
                                           {2, 6, 3, 200, 200, 64, 64},
                                           {1, 4, 4, 77, 77, 20, 24},
                                           {2, 2, 1, 40, 40, 8, 8},
                                           {1, 3, 3, 1, 1, 32, 32},
                                           {1, 5, 5, 9, 9, 33, 7}})
    for (const heed::isa target : testing::isas())
      for (const gates which : {gates::none, gates::token, gates::key}) {
        heed::linear_attention_options options;
        options.execution.target = target;
        check_recurrence<TestType>(s, which, false, false, options);
        check_recurrence<TestType>(s, which, false, true, options);
        check_recurrence<TestType>(s, which, true, false, options);
        options.normalise = true;
        options.feature_map = heed::feature_map::elu_plus_one;
        check_recurrence<TestType>(s, which, false, false, options);
      }
}

TEMPLATE_TEST_CASE("elements of a row that are apart give what dense rows give, to the bit", "",
                   float, double, Eigen::bfloat16, Eigen::half) {
  constexpr Index n_kv = 300, step = 3;
  for (const Index d : {20, 64, 100})
    for (const Index n_q : {1, 3, 40})
      for (const heed::isa target : testing::isas()) {
        const heed::rows<TestType> query = testing::random_rows<TestType>(n_q, d, 1),
                                   key = testing::random_rows<TestType>(n_kv, d, 2),
                                   value = testing::random_rows<TestType>(n_kv, d, 3);
        heed::rows<TestType> wide =
            heed::rows<TestType>::Constant(n_kv, 2 * d * step, TestType(-7));
        heed::tensor_view<TestType> keys = heed::writable_view(wide), values = keys;
        values.data += d * step;
        for (heed::tensor_view<TestType>* view : {&keys, &values}) {
          view->cols = d;
          view->col_stride = step;
        }
        for (Index j = 0; j < n_kv; ++j)
          for (Index c = 0; c < d; ++c)
            keys(0, 0, j, c) = key(j, c), values(0, 0, j, c) = value(j, c);
        heed::attention_options options;
        options.execution.target = target;
        heed::rows<TestType> dense(n_q, d), apart(n_q, d);
        heed::rows<heed::accumulator_t<TestType>> lse(n_q, 1), lse_apart(n_q, 1);
        heed::workspace memory;
        heed::multi_head_attention_into(heed::view(query), heed::view(key), heed::view(value),
                                        heed::writable_view(dense), heed::writable_view(lse),
                                        options, memory);
        heed::multi_head_attention_into(heed::view(query), keys, values, heed::writable_view(apart),
                                        heed::writable_view(lse_apart), options, memory);
        INFO("d " << d << ", n_q " << n_q << ", " << testing::name_of(target));
        CHECK(std::memcmp(dense.data(), apart.data(),
                          std::size_t(dense.size()) * sizeof(TestType)) == 0);
        CHECK(lse == lse_apart);
      }
}

TEST_CASE("multi_head_self_attention is its products and attention of dense heads, to the bit") {
  constexpr Index n = 150, heads = 4, d = 32, d_model = heads * d;
  const auto x = testing::random_rows<float>(n, d_model, 1),
             w_q = testing::random_rows<float>(d_model, d_model, 2),
             w_k = testing::random_rows<float>(d_model, d_model, 3),
             w_v = testing::random_rows<float>(d_model, d_model, 4),
             w_o = testing::random_rows<float>(d_model, d_model, 5);
  heed::rows<float> projected[3] = {heed::project(x, w_q), heed::project(x, w_k),
                                    heed::project(x, w_v)},
                    attended(n, d_model);
  heed::rows<float> dense[3];
  for (int t = 0; t < 3; ++t) {
    dense[t].resize(heads * n, d);
    for (Index h = 0; h < heads; ++h)
      dense[t].middleRows(h * n, n) = projected[t].middleCols(h * d, d);
  }
  for (Index h = 0; h < heads; ++h)
    attended.middleCols(h * d, d) =
        heed::attention(dense[0].middleRows(h * n, n), dense[1].middleRows(h * n, n),
                        dense[2].middleRows(h * n, n));
  CHECK(heed::multi_head_self_attention(x, w_q, w_k, w_v, w_o, {heads, heads}) ==
        heed::project(attended, w_o));
}

TEMPLATE_TEST_CASE("a sequence alone gives what it gives in any batch, to the bit", "", float,
                   double, Eigen::bfloat16) {
  // One query or a few against many keys take another path than many queries; each sequence must
  // take its own.
  struct pair {
    Index n_q, n_kv;
  };
  const std::vector<std::vector<pair>> batches{{{1, 1000}, {100, 100}},
                                               {{100, 100}, {1, 1000}},
                                               {{3, 900}, {2, 5}, {1, 1}, {60, 200}},
                                               {{0, 5}, {1, 300}, {4, 0}, {9, 2400}}};
  constexpr Index heads = 4, kv_heads = 2, d = 32;
  for (const heed::isa target : testing::isas())
    for (const auto& batch : batches)
      for (const int threads : {1, 2}) {
        heed::attention_options options;
        options.execution.target = target;
        options.execution.threads = threads;
        options.causal = heed::causal::bottom_right;
        std::vector<Index> query_starts{0}, key_starts{0};
        for (const pair& p : batch) {
          query_starts.push_back(query_starts.back() + p.n_q);
          key_starts.push_back(key_starts.back() + p.n_kv);
        }
        const auto query = testing::random_rows<TestType>(query_starts.back(), heads * d, 1),
                   key = testing::random_rows<TestType>(key_starts.back(), kv_heads * d, 2),
                   value = testing::random_rows<TestType>(key_starts.back(), kv_heads * d, 3);
        heed::rows<TestType> out = query, alone = query;
        heed::workspace memory;
        heed::ragged_attention_into(heed::split_heads(heed::view(query), heads),
                                    heed::split_heads(heed::view(key), kv_heads),
                                    heed::split_heads(heed::view(value), kv_heads),
                                    heed::split_heads(heed::writable_view(out), heads), {},
                                    query_starts, key_starts, options, memory);
        options.execution.threads = 1;
        for (std::size_t b = 0; b < batch.size(); ++b) {
          const Index i = query_starts[b], j = key_starts[b], n_q = batch[b].n_q,
                      n_kv = batch[b].n_kv;
          heed::multi_head_attention_into(
              heed::split_heads(heed::view(query.middleRows(i, n_q)), heads),
              heed::split_heads(heed::view(key.middleRows(j, n_kv)), kv_heads),
              heed::split_heads(heed::view(value.middleRows(j, n_kv)), kv_heads),
              heed::split_heads(heed::writable_view(alone.middleRows(i, n_q)), heads), {}, options,
              memory);
        }
        CHECK(std::memcmp(out.data(), alone.data(), std::size_t(out.size()) * sizeof(TestType)) ==
              0);
      }
}
