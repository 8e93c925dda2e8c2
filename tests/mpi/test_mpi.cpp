// mpirun -n R heed_test_mpi: attention of a sequence on R ranks against one.

#include <cstdlib>
#include <cstring>

#include "ranks.hpp"

using namespace testing;
using heed::accumulator_t;
using heed::attention_options;
using heed::causal;

namespace {

/// Which terms a call has.
struct features {
  const char* name;
  bool alibi, sinks, scales, score, mask, keep, bits, bias, dropout, lengths;
};
const features no_terms{"no terms", false, false, false, false, false,
                        false,      false, false, false, false};

/// The numbers of all terms of a call.
template <typename Acc>
struct term_numbers {
  tensor<std::uint8_t> keep;  // [B, 1, n_q, n_kv]
  tensor<std::uint8_t> bits;  // [1, 1, n_q, bytes]
  tensor<Acc> bias;           // [1, H, n_q, n_kv]
  heed::row_vector<Acc> slopes, sinks, factors;
  std::vector<size_type> query_lengths, key_lengths;

  template <typename Other>
  term_numbers<Other> cast() const {
    return {keep,
            bits,
            bias.template cast<Other>(),
            slopes.template cast<Other>(),
            sinks.template cast<Other>(),
            factors.template cast<Other>(),
            query_lengths,
            key_lengths};
  }
  /// As a rank has them: the rows of its queries.
  term_numbers shard(const sequence_shards& queries, int rank) const {
    return {keep.shard(queries, rank),
            bits.shard(queries, rank),
            bias.shard(queries, rank),
            slopes,
            sinks,
            factors,
            query_lengths,
            key_lengths};
  }
};
const auto fade = [](auto score, size_type b, size_type h, size_type i, size_type j) {
  using Acc = decltype(score);
  return static_cast<Acc>(score + Acc((7 * i + 3 * j + h + b) % 5) / Acc(8));
};
const auto sparse = [](size_type, size_type h, size_type i, size_type j) {
  return (i + 2 * j + h) % 7 != 0;
};
/// Calls with the terms of `f`.
template <typename Acc, typename Call>
void with_terms(const features& f, const term_numbers<Acc>& t, size_type n_kv, const Call& call) {
  using heed::when;
  call(when(f.alibi, heed::alibi(t.slopes)), when(f.sinks, heed::sinks(t.sinks)),
       when(f.scales, heed::logit_scales(t.factors)), when(f.score, heed::score_function(fade)),
       when(f.mask, heed::mask_function(sparse)), when(f.keep, heed::keep(t.keep.view())),
       when(f.bits, heed::keep_bits(t.bits.view(), n_kv)), when(f.bias, heed::bias(t.bias.view())),
       when(f.dropout, heed::dropout(0.3, 11)), when(f.lengths, heed::key_lengths(t.key_lengths)),
       when(f.lengths, heed::query_lengths(t.query_lengths)));
}

struct sizes {
  size_type batch, heads, kv_heads, n_q, n_kv, d_k, d_v;
};

/// A call on one rank and what is right for it, for each type that the ranks are compared in.
template <typename Scalar>
struct problem {
  using Acc = accumulator_t<Scalar>;
  tensor<Scalar> query, key, value;
  term_numbers<Acc> terms;
  sizes s;

  explicit problem(const sizes& wanted)
      : query(wanted.batch, wanted.heads, wanted.n_q, wanted.d_k, 1),
        key(wanted.batch, wanted.kv_heads, wanted.n_kv, wanted.d_k, 2),
        value(wanted.batch, wanted.kv_heads, wanted.n_kv, wanted.d_v, 3),
        terms{tensor<std::uint8_t>(wanted.batch, 1, wanted.n_q, wanted.n_kv),
              tensor<std::uint8_t>(1, 1, wanted.n_q, (wanted.n_kv + 7) / 8),
              tensor<Acc>(1, wanted.heads, wanted.n_q, wanted.n_kv, 4),
              heed::row_vector<Acc>::LinSpaced(wanted.heads, Acc(0.02), Acc(0.3)),
              heed::row_vector<Acc>::LinSpaced(wanted.heads, Acc(-1), Acc(3)),
              heed::row_vector<Acc>::LinSpaced(wanted.heads, Acc(0.5), Acc(2)),
              {},
              {}},
        s(wanted) {
    std::mt19937 random(5);
    for (std::size_t i = 0; i < terms.keep.data.size(); ++i) terms.keep.data[i] = random() % 4 != 0;
    for (std::uint8_t& byte : terms.bits.data)
      byte = static_cast<std::uint8_t>(random() | random());
    for (size_type b = 0; b < s.batch; ++b) {
      terms.query_lengths.push_back(s.n_q - 7 * b);
      terms.key_lengths.push_back(s.n_kv - 3 - 11 * b);
    }
  }

  template <typename Other>
  void reference(const attention_options& options, const features& f, tensor<Other>& out,
                 tensor<accumulator_t<Other>>& lse) const {
    const tensor<Other> q = query.template cast<Other>(), k = key.template cast<Other>(),
                        v = value.template cast<Other>();
    const auto numbers = terms.template cast<accumulator_t<Other>>();
    with_terms(f, numbers, s.n_kv, [&](const auto&... given) {
      heed::reference_multi_head_attention_into(q.view(), k.view(), v.view(), out.view(),
                                                lse.view(), options, given...);
    });
  }
};

template <typename Scalar>
const char* type_name();
template <>
const char* type_name<float>() {
  return "float";
}
template <>
const char* type_name<double>() {
  return "double";
}
template <>
const char* type_name<Eigen::half>() {
  return "half";
}
template <>
const char* type_name<Eigen::bfloat16>() {
  return "bfloat16";
}

/// The ring against the reference, whose error in the same type is the measure: parts are sums of
/// the same numbers in another order, so the two are of one size. Then with other threads, for the
/// same bits.
template <typename Scalar>
void ring_case(ranks& all, const problem<Scalar>& p, const attention_options& options,
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
  p.reference(options, f, exact, exact_lse);
  p.reference(options, f, same, same_lse);
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
  const auto bound = [](const auto& in_type, const auto& right, long double scale) {
    const long double ulp = static_cast<long double>(
        Eigen::NumTraits<typename std::decay_t<decltype(in_type.data)>::value_type>::epsilon());
    return 2 * max_error(in_type, right) + ulp * (std::max)(magnitude(right), scale);
  };
  const std::string name = std::string(type_name<Scalar>()) + ", " + what + ", " + f.name + ", " +
                           name_of(q_layout) + " and " + name_of(k_layout);
  all.check_at_most(max_error(got.first, exact.shard(queries, rank)), bound(same, exact, 0),
                    name + ": out");
  all.check_at_most(max_error(got.second, exact_lse.shard(queries, rank)),
                    bound(same_lse, exact_lse, 1), name + ": lse");
  const auto again = run(2);
  all.check(same_bits(got.first, again.first) && same_bits(got.second, again.second),
            name + ": other bits with two threads");
}

template <typename Scalar>
void ring_cases(ranks& all) {
  const features every[] = {
      {"alibi, sinks", true, true, false, false, false, false, false, false, false, false},
      {"logit scales, functions", false, false, true, true, true, false, false, false, false,
       false},
      {"keep, bias, dropout", false, false, false, false, false, true, false, true, true, false},
      {"bits, lengths", false, false, false, false, false, false, true, false, false, true},
  };
  attention_options full, lower, upper, window, sliding;
  lower.causal = causal::bottom_right;
  upper.causal = causal::top_left;
  window.window_left = 20, window.window_right = 6;
  window.softcap = 3;
  sliding.causal = causal::bottom_right, sliding.window_left = 25, sliding.scale = 0.3;
  const problem<Scalar> self({2, 4, 2, 83, 83, 24, 16}), cross({1, 3, 1, 31, 90, 8, 8});
  const struct {
    const char* name;
    const problem<Scalar>& p;
    const attention_options& options;
  } calls[] = {{"full", self, full},
               {"causal", self, lower},
               {"window", self, window},
               {"sliding", self, sliding},
               {"cross", cross, full},
               {"cross, bottom right", cross, lower},
               {"cross, top left", cross, upper},
               {"cross, window", cross, window}};
  int turn = 0;
  for (const auto& one : calls) {
    for (const layout kind : {layout::contiguous, layout::zigzag, layout::uneven})
      ring_case(all, one.p, one.options, no_terms, kind, kind, one.name);
    for (const features& f : every) {
      const layout q = static_cast<layout>(turn++ % 3), k = static_cast<layout>(turn / 2 % 3);
      ring_case(all, one.p, one.options, f, q, k, one.name);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  int failures = 0;
  {
    heed::process_group group(MPI_COMM_WORLD);
    ranks all(group);
    ring_cases<float>(all);
    ring_cases<double>(all);
    ring_cases<Eigen::half>(all);
    ring_cases<Eigen::bfloat16>(all);
    failures = all.failures();
    if (all.rank() == 0)
      std::printf("%d ranks: %d checks, %d failed\n", all.size(), all.checks(), failures);
  }
  MPI_Finalize();
  return failures != 0;
}
