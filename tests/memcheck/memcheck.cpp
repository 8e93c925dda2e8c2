// Calls of every path on inputs of odd sizes, with memory that ends where they end. Run under
// valgrind, which knows AVX2 and no AVX-512.
#include <heed/heed.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace {

using Index = heed::size_type;

template <typename Scalar>
heed::rows<Scalar> numbers(Index n, Index d, unsigned seed) {
  heed::rows<Scalar> m(n, d);
  std::uint32_t state = seed;
  for (Index i = 0; i < m.size(); ++i)
    m.data()[i] = Scalar(float((state = state * 1664525u + 1013904223u) >> 8) / float(1 << 23) - 1);
  return m;
}

/// Whether every number is one: valgrind looks at how the answer comes about.
template <typename Scalar>
void use(const heed::rows<Scalar>& out) {
  for (Index i = 0; i < out.size(); ++i)
    if (!(float(out.data()[i]) < 1e30f)) std::abort();
}

template <typename Scalar>
void attend(Index n_q, Index n_kv, Index d, Index d_v, heed::isa target) {
  using Acc = heed::accumulator_t<Scalar>;
  const auto query = numbers<Scalar>(n_q, d, 1), key = numbers<Scalar>(n_kv, d, 2),
             value = numbers<Scalar>(n_kv, d_v, 3);
  const heed::rows<Acc> bias = numbers<Acc>(n_q, n_kv, 4);
  heed::row_vector<Acc> lse(n_q);
  heed::rows<Scalar> out(n_q, d_v);
  heed::attention_options options;
  options.execution.target = target;
  for (const heed::causal causal : {heed::causal::none, heed::causal::bottom_right}) {
    options.causal = causal;
    heed::workspace memory;
    heed::attention_into(query, key, value, out, lse, options, memory);
    use(out);
    heed::attention_into(query, key, value, out, lse, options, memory, heed::bias(bias),
                         heed::score_function([](Acc score, Index, Index, Index i, Index j) {
                           return (i + j) % 7 ? score : score / 2;
                         }));
    use(out);
    heed::attention_into(
        query, key, value, out, lse, options, memory,
        heed::mask_function([](Index, Index, Index i, Index j) { return (i * 3 + j) % 4 != 1; }),
        heed::dropout(0.2, 5));
    use(out);
  }
}

/// The gradients of the same calls.
template <typename Scalar>
void differentiate(Index n_q, Index n_kv, Index d, Index d_v, heed::isa target) {
  using Acc = heed::accumulator_t<Scalar>;
  const auto query = numbers<Scalar>(n_q, d, 1), key = numbers<Scalar>(n_kv, d, 2),
             value = numbers<Scalar>(n_kv, d_v, 3), grad_out = numbers<Scalar>(n_q, d_v, 5);
  const heed::rows<Acc> bias = numbers<Acc>(n_q, n_kv, 4);
  heed::rows<Acc> grad_bias(n_q, n_kv);
  heed::attention_options options;
  options.execution.target = target;
  const auto score = [](Acc s, Index, Index, Index i, Index j) { return (i + j) % 7 ? s : s / 2; };
  const auto slope = [](Acc, Index, Index, Index i, Index j) {
    return (i + j) % 7 ? Acc(1) : Acc(0.5);
  };
  const auto mask = [](Index, Index, Index i, Index j) { return (i * 3 + j) % 4 != 1; };
  const auto check = [&](const auto& keys, const auto& of_bias, const auto&... terms) {
    const auto forward = heed::attention_with_lse(query, keys, value, options, terms...);
    heed::rows<Scalar> grad_query(n_q, d), grad_key(n_kv, d), grad_value(n_kv, d_v);
    heed::workspace memory;
    heed::attention_backward_into(query, keys, value, forward.out, forward.lse, grad_out,
                                  grad_query, grad_key, grad_value, options, memory, terms...,
                                  of_bias);
    use(grad_query);
    if (!(float(keys(0, 0)) == float(keys(0, 0)))) return;  // keys that are no numbers
    use(grad_key);
    use(grad_value);
  };
  const auto none = heed::when(false, heed::grad_bias(grad_bias));
  for (const heed::causal causal : {heed::causal::none, heed::causal::bottom_right}) {
    options.causal = causal;
    check(key, none);
    check(key, heed::grad_bias(grad_bias), heed::bias(bias), heed::score_function(score, slope));
    use(grad_bias);
    check(key, none, heed::mask_function(mask), heed::dropout(0.2, 5));
    // a key that no query sees is looked at with more care
    heed::rows<Scalar> hidden = key;
    hidden.row(0).setConstant(Scalar(std::numeric_limits<float>::quiet_NaN()));
    check(hidden, none, heed::mask_function([](Index, Index, Index, Index j) { return j != 0; }));
  }
}

}  // namespace

int main() {
  for (const heed::isa target : heed::available_isas()) {
    std::printf("%s\n", heed::name(target));
    for (const Index n_q : {1, 3, 19, 70})
      for (const Index n_kv : {19, 140, 900}) {
        attend<float>(n_q, n_kv, 20, 13, target);
        attend<double>(n_q, n_kv, 7, 20, target);
        attend<Eigen::bfloat16>(n_q, n_kv, 33, 16, target);
        if (n_kv > 140) continue;  // more than one block of keys
        differentiate<float>(n_q, n_kv, 20, 13, target);
        differentiate<double>(n_q, n_kv, 7, 20, target);
        differentiate<Eigen::bfloat16>(n_q, n_kv, 33, 16, target);
      }
  }
}
