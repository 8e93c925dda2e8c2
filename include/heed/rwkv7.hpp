#pragma once

#include <heed/detail/inputs.hpp>
#include <heed/detail/recurrence.hpp>
#include <heed/execution.hpp>
#include <heed/workspace.hpp>

#include <optional>
#include <type_traits>
#include <utility>

HEED_NAMESPACE_BEGIN

/// The options of RWKV-7.
struct rwkv7_options {
  /// Multiplies the read.
  double scale = 1;
  /// Instruction set (`automatic` only: there are no kernels), threads, pool.
  heed::execution execution{};
};

namespace detail {
/// The terms that RWKV-7 takes.
template <typename Acc>
struct rwkv7_terms {
  std::optional<tensor_view<Acc>> carry;
  std::optional<index_list> starts;
  detail::sequences sequences;

  void add(const sequence_starts_term& term) { starts = term.starts; }
  void add(const carry_term<Acc>& term) { carry = term.view; }
  template <typename Other>
  void add(const Other&) {
    static_assert(sizeof(Other) == 0,
                  "the terms of rwkv7 are sequence_starts, and carry with the scalar of the state: "
                  "float for float, half and bfloat16");
  }
};
}  // namespace detail

namespace detail {
/// Numbers that a worker has: the state, and a token's r, w, k, a and b.
constexpr size_type rwkv7_numbers(size_type d_k, size_type d_v) { return (d_v + 5) * d_k; }

/// Checks every input of `name` and returns its terms.
template <typename Scalar, typename R, typename W, typename K, typename V, typename A, typename B,
          typename... Terms>
rwkv7_terms<accumulator_t<Scalar>> check_rwkv7(
    const char* name, const tensor_view<R>& receptance, const tensor_view<W>& decay,
    const tensor_view<K>& key, const tensor_view<V>& value, const tensor_view<A>& a,
    const tensor_view<B>& b, const rwkv7_options& options, const Terms&... terms) {
  using Acc = accumulator_t<Scalar>;
  static_assert(std::is_same<std::remove_const_t<W>, Acc>::value,
                "decay must have the scalar of the state: float for half and bfloat16");
  rwkv7_terms<Acc> given;
  add_terms(given, terms...);
  check_view(name, "receptance", receptance);
  check_number<Acc>(name, "scale", options.scale);
  check_execution_without_kernels(name, options.execution);
  const size_type d_k = receptance.cols, d_v = value.cols;
  const auto check_input = [&](const char* what, const auto& view, size_type dim,
                               const char* whose) {
    check_sequence(name, what, view, "receptance", receptance);
    check_axis(name, what, "head_dim", view.cols, whose, dim);
  };
  check_input("decay", decay, d_k, "receptance");
  check_input("key", key, d_k, "receptance");
  check_input("a", a, d_k, "receptance");
  check_input("b", b, d_k, "receptance");
  check_input("value", value, d_v, "value");
  given.sequences = sequences(name, "receptance", receptance, given.starts);
  check_carry(name, given.carry, given.sequences.count(), receptance.heads, d_v, "value's head_dim",
              d_k, "receptance's head_dim");
  product(name,
          "scratch for receptance's and value's head_dim, in bytes",  // a number for each pair, and
                                                                      // a cache line
          {d_v + 5, d_k + 1, size_type{sizeof(Acc) + 64}, workers_of(options.execution)});
  return given;
}

/// multi_head_rwkv7_into by the name of the function that was called.
template <typename R, typename W, typename K, typename V, typename A, typename B, typename Scalar,
          typename... Terms>
void run_rwkv7(const char* name, const tensor_view<R>& receptance, const tensor_view<W>& decay,
               const tensor_view<K>& key, const tensor_view<V>& value, const tensor_view<A>& a,
               const tensor_view<B>& b, const tensor_view<Scalar>& out,
               const rwkv7_options& options, workspace& memory, const Terms&... terms) {
  using Acc = accumulator_t<Scalar>;
  const rwkv7_terms<Acc> given =
      check_rwkv7<Scalar>(name, receptance, decay, key, value, a, b, options, terms...);
  const size_type d_k = receptance.cols, d_v = value.cols;
  check_sequence(name, "out", out, "receptance", receptance);
  check_axis(name, "out", "head_dim", out.cols, "value", d_v);
  check_apart(name, {"out", out}, {"carry", given.carry}, "receptance", receptance, "decay", decay,
              "key", key, "value", value, "a", a, "b", b, "sequence_starts", given.starts);

  const auto run_head = [&](size_type s, size_type h, Acc* numbers) {
    const auto rs = given.sequences.of(receptance, s);
    const auto ws = given.sequences.of(decay, s);
    const auto ks = given.sequences.of(key, s);
    const auto vs = given.sequences.of(value, s);
    const auto as = given.sequences.of(a, s);
    const auto bs = given.sequences.of(b, s);
    const auto outs = given.sequences.of(out, s);
    const auto take = [&](size_type count) { return std::exchange(numbers, numbers + count); };
    loaded_state<Acc> state(take(d_v * d_k), given.carry, s, h, d_v, d_k);
    Eigen::Map<state_row<Acc>> rt(take(d_k), d_k), wt(take(d_k), d_k), kt(take(d_k), d_k),
        at(take(d_k), d_k), bt(take(d_k), d_k);
    for (size_type t = 0; t < given.sequences.length(s); ++t) {
      load_row(rs, 0, h, t, rt);
      load_row(ws, 0, h, t, wt);
      load_row(ks, 0, h, t, kt);
      load_row(as, 0, h, t, at);
      load_row(bs, 0, h, t, bt);
      for (size_type d = 0; d < d_k; ++d)
        if (is_zero(wt(d)) && is_zero(at(d)))
          state.value.col(d).setZero();  // forgotten, not multiplied by 0
      for (size_type c = 0; c < d_v; ++c) {
        Eigen::Map<state_row<Acc>> row(state.value.data() + c * d_k, d_k);
        const Acc removed = (row * at).sum();
        row = row * wt + removed * bt + Acc(vs(0, h, t, c)) * kt;
        outs(0, h, t, c) = Scalar(Acc(Acc(options.scale) * Acc((row * rt).sum())));
      }
      state.settle(t);
    }
    state.store();
  };
  for_each_head<Acc>(given.sequences.count(), receptance.heads, options.execution,
                     rwkv7_numbers(d_k, d_v), memory, run_head);
}
}  // namespace detail

/// The recurrence of RWKV-7 (Peng et al. 2025, equation 17) for every head of every batch entry.
/// The state S, d_v x d_k, is first changed,
///   S = S diag(w) + (S a) b^T + v k^T,   then read,   o = scale S r.
///
/// receptance, key, a and b [B, H, T, d_k], decay [B, H, T, d_k] with w in (0, 1) itself, not its
/// logarithm, in the scalar of the state, value [B, H, T, d_v] -> out [B, H, T, d_v]. Where w and a
/// are both 0 the state's column is forgotten, whatever it held; an entry of the state below 2^-102
/// (double: 2^-998) counts as 0, as in linear attention. The model's a is minus the unit removal
/// key, its b the same times the in-context rate. Terms: carry, [B, H, d_v, d_k], and
/// sequence_starts. Throws std::invalid_argument for sizes that do not fit together, and where out
/// or carry overlaps itself, the other or an input, before anything is written. Allocates nothing
/// once `memory` has grown.
template <typename R, typename W, typename K, typename V, typename A, typename B, typename Scalar,
          typename... Terms>
void multi_head_rwkv7_into(const tensor_view<R>& receptance, const tensor_view<W>& decay,
                           const tensor_view<K>& key, const tensor_view<V>& value,
                           const tensor_view<A>& a, const tensor_view<B>& b,
                           const tensor_view<Scalar>& out, const rwkv7_options& options,
                           workspace& memory, const Terms&... terms) {
  detail::run_rwkv7("multi_head_rwkv7_into", receptance, decay, key, value, a, b, out, options,
                    memory, terms...);
}

/// The bytes of the workspace that this call of multi_head_rwkv7_into takes.
template <typename R, typename W, typename K, typename V, typename A, typename B, typename... Terms>
size_type multi_head_rwkv7_workspace_bytes(const tensor_view<R>& receptance,
                                           const tensor_view<W>& decay, const tensor_view<K>& key,
                                           const tensor_view<V>& value, const tensor_view<A>& a,
                                           const tensor_view<B>& b, const rwkv7_options& options,
                                           const Terms&... terms) {
  using Scalar = std::remove_const_t<R>;
  const auto given = detail::check_rwkv7<Scalar>("multi_head_rwkv7_workspace_bytes", receptance,
                                                 decay, key, value, a, b, options, terms...);
  return detail::numbers_bytes<accumulator_t<Scalar>>(
      given.sequences.count(), receptance.heads, options.execution,
      detail::rwkv7_numbers(receptance.cols, value.cols));
}

/// The same for one head: receptance, decay, key, a and b T x d_k, value T x d_v -> T x d_v.
///
/// @code
/// const heed::rows<float> r = heed::rows<float>::Random(20, 16),
///                         decay = heed::rows<float>::Constant(20, 16, 0.9f);
/// const heed::rows<float> k = r.rowwise().normalized();
/// const auto out = heed::rwkv7(r, decay, k, r, -k, 0.5f * k);  // 20 x 16
/// @endcode
template <typename R, typename W, typename K, typename V, typename A, typename B, typename... Terms>
auto rwkv7(const R& receptance, const W& decay, const K& key, const V& value, const A& a,
           const B& b, const rwkv7_options& options = {}, const Terms&... terms) {
  static_assert(
      detail::is_eigen<R> && detail::is_eigen<W> && detail::is_eigen<K> && detail::is_eigen<V> &&
          detail::is_eigen<A> && detail::is_eigen<B>,
      "receptance, decay, key, value, a and b must be Eigen matrices, Maps, blocks or expressions");
  using Scalar = typename detail::scalar_of<R>::type;
  const detail::input<Scalar, R> r_in(receptance);
  const detail::input<accumulator_t<Scalar>, W> w_in(decay);
  const detail::input<Scalar, K> k_in(key);
  const detail::input<Scalar, V> v_in(value);
  const detail::input<Scalar, A> a_in(a);
  const detail::input<Scalar, B> b_in(b);
  rows<Scalar> out(v_in.view.rows, v_in.view.cols);
  workspace memory;
  detail::run_rwkv7("rwkv7", r_in.view, w_in.view, k_in.view, v_in.view, a_in.view, b_in.view,
                    writable_view(out), options, memory, terms...);
  return out;
}

HEED_NAMESPACE_END
