// mpirun -n R heed_test_ring: attention of a sequence on R ranks, and its gradient, against the
// reference on one.

#include "problem.hpp"

using namespace testing;

namespace {

template <typename Scalar>
void forward_case(ranks& all, const problem<Scalar>& p, const attention_options& options,
                  const features& f, layout q_layout, layout k_layout, const std::string& what) {
  using Acc = accumulator_t<Scalar>;
  using Wide = wider_t<Scalar>;
  const sizes& s = p.s;
  const int rank = all.rank();
  const sequence_shards queries = shards_of(q_layout, all.size(), s.n_q),
                        keys = shards_of(k_layout, all.size(), s.n_kv);
  tensor<Wide> exact(s.batch, s.heads, s.n_q, s.d_v), exact_lse(s.batch, s.heads, s.n_q, 1);
  tensor<Scalar> same(s.batch, s.heads, s.n_q, s.d_v);
  tensor<Acc> same_lse(s.batch, s.heads, s.n_q, 1);
  if (rank == 0) p.reference(options, f, exact, exact_lse);
  if (rank == 0) p.reference(options, f, same, same_lse);
  share(exact), share(exact_lse), share(same), share(same_lse);
  const tensor<Scalar> q = p.query.shard(queries, rank), k = p.key.shard(keys, rank),
                       v = p.value.shard(keys, rank);
  const auto mine = p.terms.shard(queries, rank);
  heed::workspace memory;
  const auto run = [&](int threads) {
    attention_options threaded = options;
    threaded.execution.threads = threads;
    std::pair<tensor<Scalar>, tensor<Acc>> result(tensor<Scalar>(s.batch, s.heads, q.n, s.d_v),
                                                  tensor<Acc>(s.batch, s.heads, q.n, 1));
    with_terms(f, mine, s.n_kv, [&](const auto&... given) {
      heed::ring_attention_into(all.group(), queries, keys, q.view(), k.view(), v.view(),
                                result.first.view(), result.second.view(), threaded, memory,
                                given...);
    });
    return result;
  };
  const auto got = run(1);
  const std::string name = std::string(type_name<Scalar>()) + ", " + what + ", " + f.name + ", " +
                           name_of(q_layout) + " and " + name_of(k_layout);
  all.check_at_most(max_error(got.first, exact.shard(queries, rank)), bound(same, exact),
                    name + ": out");
  all.check_at_most(max_error(got.second, exact_lse.shard(queries, rank)),
                    bound(same_lse, exact_lse, 1), name + ": lse");
  if (f.name != no_terms.name) return;
  const auto again = run(2);
  all.check(same_bits(got.first, again.first) && same_bits(got.second, again.second),
            name + ": other bits with two threads");
}

template <typename Scalar>
struct gradients {
  tensor<Scalar> query, key, value;
};

/// What the gradient comes from, besides the inputs.
template <typename Scalar>
struct incoming {
  tensor<Scalar> out, grad_out;
  tensor<accumulator_t<Scalar>> lse, grad_lse;

  explicit incoming(const sizes& s)
      : out(s.batch, s.heads, s.n_q, s.d_v),
        grad_out(s.batch, s.heads, s.n_q, s.d_v, 6),
        lse(s.batch, s.heads, s.n_q, 1),
        grad_lse(s.batch, s.heads, s.n_q, 1, 7) {}
};
template <typename Other, typename Scalar>
gradients<Other> reference_gradients(const problem<Scalar>& p, const attention_options& options,
                                     const features& f, incoming<Scalar>* forward = nullptr) {
  using Sums = accumulator_t<Other>;
  const sizes& s = p.s;
  const incoming<Scalar> from(s);
  tensor<Other> out(s.batch, s.heads, s.n_q, s.d_v);
  tensor<Sums> lse(s.batch, s.heads, s.n_q, 1);
  gradients<Other> g{tensor<Other>(s.batch, s.heads, s.n_q, s.d_k),
                     tensor<Other>(s.batch, s.kv_heads, s.n_kv, s.d_k),
                     tensor<Other>(s.batch, s.kv_heads, s.n_kv, s.d_v)};
  p.reference(options, f, out, lse);
  const auto q = p.query.template cast<Other>(), k = p.key.template cast<Other>(),
             v = p.value.template cast<Other>(), d = from.grad_out.template cast<Other>();
  const auto dl = from.grad_lse.template cast<Sums>();
  const auto numbers = p.terms.template cast<Sums>();
  with_terms(f, numbers, s.n_kv, [&](const auto&... given) {
    heed::reference_multi_head_attention_backward_into(
        q.view(), k.view(), v.view(), out.view(), lse.view(), d.view(), g.query.view(),
        g.key.view(), g.value.view(), options, given..., heed::grad_lse(dl.view()));
  });
  if constexpr (std::is_same<Other, Scalar>::value)
    if (forward) forward->out = out, forward->lse = lse;
  return g;
}

template <typename Scalar>
void backward_case(ranks& all, const problem<Scalar>& p, const attention_options& options,
                   const features& f, layout q_layout, layout k_layout, const std::string& what) {
  using Acc = accumulator_t<Scalar>;
  using Wide = wider_t<Scalar>;
  const sizes& s = p.s;
  const int rank = all.rank();
  const sequence_shards queries = shards_of(q_layout, all.size(), s.n_q),
                        keys = shards_of(k_layout, all.size(), s.n_kv);
  incoming<Scalar> from(s);
  gradients<Wide> exact{tensor<Wide>(s.batch, s.heads, s.n_q, s.d_k),
                        tensor<Wide>(s.batch, s.kv_heads, s.n_kv, s.d_k),
                        tensor<Wide>(s.batch, s.kv_heads, s.n_kv, s.d_v)};
  // How wrong one rank is: the reference, and the kernels. Over few numbers either may be right by
  // luck, so some two hundred rows are drawn.
  tensor<long double> error(1, 1, 1, 3);
  const auto count = [&](const gradients<Scalar>& got, const gradients<Wide>& right) {
    error.data[0] = (std::max)(error.data[0], max_error(got.query, right.query));
    error.data[1] = (std::max)(error.data[1], max_error(got.key, right.key));
    error.data[2] = (std::max)(error.data[2], max_error(got.value, right.value));
  };
  for (unsigned draw = 0; rank == 0 && draw * s.n_q < 200; ++draw) {
    const problem<Scalar> drawn(s, 10 * draw);
    const gradients<Wide> right = reference_gradients<Wide>(drawn, options, f);
    gradients<Scalar> one =
        reference_gradients<Scalar>(drawn, options, f, draw == 0 ? &from : nullptr);
    count(one, right);
    if (draw > 0) continue;
    exact = right;
    heed::workspace memory;
    with_terms(f, p.terms, s.n_kv, [&](const auto&... given) {
      heed::multi_head_attention_backward_into(
          p.query.view(), p.key.view(), p.value.view(), from.out.view(), from.lse.view(),
          from.grad_out.view(), one.query.view(), one.key.view(), one.value.view(), options, memory,
          given..., heed::grad_lse(from.grad_lse.view()));
    });
    count(one, right);
  }
  share(exact.query), share(exact.key), share(exact.value), share(error);
  share(from.out), share(from.lse);
  const tensor<Scalar> q = p.query.shard(queries, rank), k = p.key.shard(keys, rank),
                       v = p.value.shard(keys, rank), o = from.out.shard(queries, rank),
                       d = from.grad_out.shard(queries, rank);
  const tensor<Acc> l = from.lse.shard(queries, rank), dl = from.grad_lse.shard(queries, rank);
  const auto mine = p.terms.shard(queries, rank);
  heed::workspace memory;
  const auto run = [&](int threads) {
    attention_options threaded = options;
    threaded.execution.threads = threads;
    gradients<Scalar> g{tensor<Scalar>(s.batch, s.heads, q.n, s.d_k),
                        tensor<Scalar>(s.batch, s.kv_heads, k.n, s.d_k),
                        tensor<Scalar>(s.batch, s.kv_heads, k.n, s.d_v)};
    with_terms(f, mine, s.n_kv, [&](const auto&... given) {
      heed::ring_attention_backward_into(all.group(), queries, keys, q.view(), k.view(), v.view(),
                                         o.view(), l.view(), d.view(), g.query.view(), g.key.view(),
                                         g.value.view(), threaded, memory, given...,
                                         heed::grad_lse(dl.view()));
    });
    return g;
  };
  const gradients<Scalar> got = run(1);
  const std::string name = std::string("gradient, ") + type_name<Scalar>() + ", " + what + ", " +
                           f.name + ", " + name_of(q_layout) + " and " + name_of(k_layout);
  all.check_at_most(max_error(got.query, exact.query.shard(queries, rank)),
                    bound<Scalar>(error.data[0], exact.query), name + ": query");
  all.check_at_most(max_error(got.key, exact.key.shard(keys, rank)),
                    bound<Scalar>(error.data[1], exact.key), name + ": key");
  all.check_at_most(max_error(got.value, exact.value.shard(keys, rank)),
                    bound<Scalar>(error.data[2], exact.value), name + ": value");
  if (f.name != no_terms.name) return;
  const gradients<Scalar> again = run(2);
  all.check(same_bits(got.query, again.query) && same_bits(got.key, again.key) &&
                same_bits(got.value, again.value),
            name + ": other bits with two threads");
}

/// Each call once without terms and, where `every`, with each group of them; layouts take turns.
template <typename Scalar>
void cases(ranks& all, bool every) {
  const features groups[] = {
      {"alibi, sinks", true, true, false, false, false, false, false, false, false, false},
      {"logit scales, functions", false, false, true, true, true, false, false, false, false,
       false},
      {"keep, bias, dropout", false, false, false, false, false, true, false, true, true, false},
      {"bits, lengths", false, false, false, false, false, false, true, false, false, true},
  };
  attention_options full, lower, upper, window, sliding;
  lower.causal = causal::bottom_right;
  upper.causal = causal::top_left;
  window.window_left = 20, window.window_right = 6, window.softcap = 3;
  sliding.causal = causal::bottom_right, sliding.window_left = 25, sliding.scale = 0.3;
  const problem<Scalar> self({2, 4, 2, 61, 61, 24, 16}), cross({1, 3, 1, 31, 90, 8, 8});
  const struct {
    const char* name;
    const problem<Scalar>& p;
    const attention_options& options;
  } calls[] = {{"causal", self, lower},    {"cross, window", cross, window},
               {"full", self, full},       {"cross, bottom right", cross, lower},
               {"sliding", self, sliding}, {"cross, top left", cross, upper}};
  int turn = 0;
  for (const auto& one : calls) {
    const layout first = static_cast<layout>(turn % 3),
                 second = static_cast<layout>((turn + 1) % 3);
    forward_case(all, one.p, one.options, no_terms, first, first, one.name);
    if (every || turn < 2) {
      forward_case(all, one.p, one.options, no_terms, second, first, one.name);
      backward_case(all, one.p, one.options, no_terms, second, second, one.name);
    }
    for (int group = 0; group < 4; ++group) {
      if (!every && group != turn % 4) continue;
      forward_case(all, one.p, one.options, groups[group], static_cast<layout>(group % 3), first,
                   one.name);
      if (group % 2 == turn % 2)
        backward_case(all, one.p, one.options, groups[group], second,
                      static_cast<layout>(group % 3), one.name);
    }
    ++turn;
  }
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  bool passed = false;
  {
    heed::process_group group(MPI_COMM_WORLD);
    ranks all(group);
    const bool few = all.size() == 2 || all.size() == 3;  // where all is tried
    cases<float>(all, few);
    cases<Eigen::bfloat16>(all, false);
    if (few) cases<double>(all, false);
    if (few) cases<Eigen::half>(all, false);
    passed = all.passed();
  }
  MPI_Finalize();
  return passed ? 0 : 1;
}
