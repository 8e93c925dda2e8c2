#pragma once

#include <heed/detail/inputs.hpp>
#include <heed/detail/recurrence.hpp>
#include <heed/workspace.hpp>

#include <optional>
#include <type_traits>
#include <utility>

HEED_NAMESPACE_BEGIN

/// The options of the selective scan.
struct selective_scan_options {
  /// The step is softplus(dt + bias) instead of dt + bias.
  bool softplus = false;
  /// Instruction set (`automatic` only: there are no kernels), threads, pool.
  heed::execution execution{};
};

namespace detail {
template <typename Scalar>
struct skip_term {
  tensor_view<const Scalar> view;
};
template <typename Scalar>
struct step_bias_term {
  tensor_view<const Scalar> view;
};
template <typename Scalar>
struct silu_gate_term {
  tensor_view<const Scalar> view;
};

template <typename Scalar>
struct selective_scan_terms {
  using Acc = accumulator_t<Scalar>;
  std::optional<tensor_view<const Acc>> skip, step_bias;
  std::optional<tensor_view<const Scalar>> silu_gate;
  std::optional<tensor_view<Acc>> carry;
  std::optional<index_list> starts;
  detail::sequences sequences;

  void add(const sequence_starts_term& term) { starts = term.starts; }
  void add(const skip_term<Acc>& term) { skip = term.view; }
  void add(const step_bias_term<Acc>& term) { step_bias = term.view; }
  void add(const silu_gate_term<Scalar>& term) { silu_gate = term.view; }
  void add(const carry_term<Acc>& term) { carry = term.view; }
  template <typename Other>
  void add(const Other&) {
    static_assert(sizeof(Other) == 0,
                  "not a term of selective_scan, or one of another scalar type: silu_gate has the "
                  "scalar of u; skip, step_bias and carry "
                  "that of the state (float for float, half and bfloat16; double for double)");
  }
};

template <typename Vector>
tensor_view<const typename Vector::Scalar> channel_view(const Eigen::DenseBase<Vector>& numbers) {
  static_assert(has_memory<Vector> && bool(Vector::IsVectorAtCompileTime),
                "this term takes an Eigen vector, one number per channel");
  return {numbers.derived().data(),       1, 1, 1, numbers.size(), 0, 0, 0,
          numbers.derived().innerStride()};
}
}  // namespace detail

/// Adds d * u to the output: one number per channel, [batch, groups, 1, channels], each extent 1 or
/// the call's own.
template <typename Scalar>
detail::skip_term<std::remove_const_t<Scalar>> skip(const tensor_view<Scalar>& d) {
  return {d};
}
/// The same from an Eigen vector, for every batch entry and group.
template <typename Vector>
detail::skip_term<typename Vector::Scalar> skip(const Eigen::DenseBase<Vector>& d) {
  return {detail::channel_view(d)};
}

/// Added to dt before the softplus: one number per channel, [batch, groups, 1, channels], each
/// extent 1 or the call's own.
template <typename Scalar>
detail::step_bias_term<std::remove_const_t<Scalar>> step_bias(const tensor_view<Scalar>& bias) {
  return {bias};
}
/// The same from an Eigen vector, for every batch entry and group.
template <typename Vector>
detail::step_bias_term<typename Vector::Scalar> step_bias(const Eigen::DenseBase<Vector>& bias) {
  return {detail::channel_view(bias)};
}

/// Multiplies the output by silu(z), z as large as u.
template <typename Scalar>
detail::silu_gate_term<std::remove_const_t<Scalar>> silu_gate(const tensor_view<Scalar>& z) {
  return {z};
}
/// The same from an Eigen matrix, for one batch entry and group.
template <typename Derived>
detail::silu_gate_term<typename Derived::Scalar> silu_gate(const Eigen::DenseBase<Derived>& z) {
  return {view(z)};
}

namespace detail {
/// Numbers that a worker of the scan has: the state, the rates, the slowest and fastest of each
/// channel, and a token's b and c.
constexpr size_type scan_numbers(size_type channels, size_type d_state) {
  return 2 * (channels * d_state + channels + d_state);
}

/// Checks every input of `name` and returns its terms.
template <typename Scalar, typename U, typename Dt, typename A, typename B, typename C,
          typename... Terms>
selective_scan_terms<Scalar> check_scan(const char* name, const tensor_view<U>& u,
                                        const tensor_view<Dt>& dt, const tensor_view<A>& a,
                                        const tensor_view<B>& b, const tensor_view<C>& c,
                                        const selective_scan_options& options,
                                        const Terms&... terms) {
  using Acc = accumulator_t<Scalar>;
  static_assert(std::is_same<std::remove_const_t<A>, Acc>::value,
                "a must have the scalar of the state: float for half and bfloat16");
  selective_scan_terms<Scalar> given;
  add_terms(given, terms...);
  check_view(name, "u", u);
  check_execution_without_kernels(name, options.execution);
  const size_type channels = u.cols, d_state = a.cols;
  const auto check_input = [&](const char* what, const auto& view, const char* axis, size_type cols,
                               const char* whose, size_type wanted) {
    check_sequence(name, what, view, "u", u);
    check_axis(name, what, axis, cols, whose, wanted);
  };
  const auto check_broadcast = [&](const char* what, const auto& view) {
    check_view(name, what, view);
    check_extent(name, what, "batch", view.batch, u.batch);
    check_extent(name, what, "heads", view.heads, u.heads);
  };
  const auto check_channels = [&](const char* what, const auto& view) {
    if (!view) return;
    check_broadcast(what, *view);
    check_extent(name, what, "channels", view->cols, channels);
    check_equal(name, what, view->rows, "one number per channel, rows", size_type{1});
  };
  check_input("dt", dt, "channels", dt.cols, "u", channels);
  check_broadcast("a", a);
  check_equal(name, "a: rows", a.rows, "u's channels", channels);
  check_input("b", b, "d_state", b.cols, "a", d_state);
  check_input("c", c, "d_state", c.cols, "a", d_state);
  check_channels("skip", given.skip);
  check_channels("step_bias", given.step_bias);
  if (given.silu_gate)
    check_input("silu_gate", *given.silu_gate, "channels", given.silu_gate->cols, "u", channels);
  given.sequences = sequences(name, "u", u, given.starts);
  check_carry(name, given.carry, given.sequences.count(), u.heads, channels, "u's channels",
              d_state, "a's d_state");
  product(
      name, "scratch for a's channels and d_state, in bytes",  // 2 numbers for each pair, and a
                                                               // cache line
      {channels + 1, d_state + 1, size_type{2 * sizeof(Acc) + 64}, workers_of(options.execution)});
  return given;
}

/// selective_scan_into under the name of the function that was called.
template <typename U, typename Dt, typename A, typename B, typename C, typename Scalar,
          typename... Terms>
void run_selective_scan(const char* name, const tensor_view<U>& u, const tensor_view<Dt>& dt,
                        const tensor_view<A>& a, const tensor_view<B>& b, const tensor_view<C>& c,
                        const tensor_view<Scalar>& out, const selective_scan_options& options,
                        workspace& memory, const Terms&... terms) {
  using Acc = accumulator_t<Scalar>;
  const selective_scan_terms<Scalar> given =
      check_scan<Scalar>(name, u, dt, a, b, c, options, terms...);
  const size_type channels = u.cols, d_state = a.cols;
  check_sequence(name, "out", out, "u", u);
  check_axis(name, "out", "channels", out.cols, "u", channels);
  check_apart(name, {"out", out}, {"carry", given.carry}, "u", u, "dt", dt, "a", a, "b", b, "c", c,
              "skip", given.skip, "step_bias", given.step_bias, "silu_gate", given.silu_gate,
              "sequence_starts", given.starts);

  for_each_head<Acc>(
      given.sequences.count(), u.heads, options.execution, scan_numbers(channels, d_state), memory,
      [&](size_type s, size_type g, Acc* numbers) {
        const auto us = given.sequences.of(u, s);
        const auto dts = given.sequences.of(dt, s);
        const auto bs = given.sequences.of(b, s);
        const auto cs = given.sequences.of(c, s);
        const auto outs = given.sequences.of(out, s);
        tensor_view<const Scalar> gates;
        if (given.silu_gate) gates = given.sequences.of(*given.silu_gate, s);
        const auto take = [&](size_type count) { return std::exchange(numbers, numbers + count); };
        loaded_state<Acc> state(take(channels * d_state), given.carry, s, g, channels, d_state);
        Eigen::Map<rows<Acc>> rate(take(channels * d_state), channels, d_state);
        const size_type entry = given.starts ? 0 : s;
        const matrix_view<A> rates = broadcast_head(a, entry, g);
        Eigen::Map<state_row<Acc>> slowest(take(channels), channels),
            fastest(take(channels), channels);  // of each channel's rates
        for (size_type i = 0; i < channels; ++i) {
          slowest(i) = fastest(i) = Acc(0);
          for (size_type n = 0; n < d_state; ++n) {
            rate(i, n) = rates(i, n);
            if (rates(i, n) > slowest(i)) slowest(i) = rates(i, n);
            if (rates(i, n) < fastest(i)) fastest(i) = rates(i, n);
          }
        }
        matrix_view<const Acc> skips, biases;
        if (given.skip) skips = broadcast_head(*given.skip, entry, g);
        if (given.step_bias) biases = broadcast_head(*given.step_bias, entry, g);

        Eigen::Map<state_row<Acc>> bt(take(d_state), d_state), ct(take(d_state), d_state);
        for (size_type t = 0; t < given.sequences.length(s); ++t) {
          load_row(bs, 0, g, t, bt);
          load_row(cs, 0, g, t, ct);
          for (size_type i = 0; i < channels; ++i) {
            const Acc input(us(0, g, t, i));
            Acc step(dts(0, g, t, i));
            if (biases.data) step += biases(0, i);
            if (options.softplus) step = softplus(step);
            Eigen::Map<state_row<Acc>> x(state.value.data() + i * d_state, d_state);
            const Eigen::Map<const state_row<Acc>> rates_i(rate.data() + i * d_state, d_state);
            if (is_negative_infinity(Acc(step * slowest(i))) ||
                is_negative_infinity(Acc(step * fastest(i))))
              for (size_type n = 0; n < d_state; ++n)
                if (is_negative_infinity(Acc(step * rates_i(n))))
                  x(n) = Acc(0);  // forgotten, not multiplied by 0
            x = (step * rates_i).exp() * x + (step * input) * bt;
            Acc y = (x * ct).sum();
            if (skips.data) y += skips(0, i) * input;
            if (gates.data) y *= silu(Acc(gates(0, g, t, i)));
            outs(0, g, t, i) = Scalar(y);
          }
          state.settle(t);
        }
        state.store();
      });
}
}  // namespace detail

/// Mamba's selective scan (S6; Gu and Dao 2023, algorithm 2) for every group of every batch entry.
/// Each channel has a state x of d_state numbers:
///   x = exp(dt A) x + dt u B;   y = C . x + D u, times silu(z)
/// Where dt A is -infinity the state is forgotten, whatever it held; an entry of it below 2^-102
/// (double: 2^-998) counts as 0, as in linear attention.
///
/// u and dt [B, G, T, channels], a [B or 1, G or 1, channels, d_state] in the scalar of the state,
/// b and c [B, G, T, d_state] -> out [B, G, T, channels]. Terms: skip (D), step_bias, silu_gate
/// (z), carry [B, G, channels, d_state], sequence_starts. Throws std::invalid_argument for sizes
/// that do not fit together, and where out or carry overlaps itself, the other or an input, before
/// anything is written. Allocates nothing once `memory` has grown.
template <typename U, typename Dt, typename A, typename B, typename C, typename Scalar,
          typename... Terms>
void selective_scan_into(const tensor_view<U>& u, const tensor_view<Dt>& dt,
                         const tensor_view<A>& a, const tensor_view<B>& b, const tensor_view<C>& c,
                         const tensor_view<Scalar>& out, const selective_scan_options& options,
                         workspace& memory, const Terms&... terms) {
  detail::run_selective_scan("selective_scan_into", u, dt, a, b, c, out, options, memory, terms...);
}

/// The bytes of the workspace that this call of selective_scan_into takes.
template <typename U, typename Dt, typename A, typename B, typename C, typename... Terms>
size_type selective_scan_workspace_bytes(const tensor_view<U>& u, const tensor_view<Dt>& dt,
                                         const tensor_view<A>& a, const tensor_view<B>& b,
                                         const tensor_view<C>& c,
                                         const selective_scan_options& options,
                                         const Terms&... terms) {
  using Scalar = std::remove_const_t<U>;
  const auto given = detail::check_scan<Scalar>("selective_scan_workspace_bytes", u, dt, a, b, c,
                                                options, terms...);
  return detail::numbers_bytes<accumulator_t<Scalar>>(
      given.sequences.count(), u.heads, options.execution, detail::scan_numbers(u.cols, a.cols));
}

/// The same for one sequence: u and dt T x channels, a channels x d_state, b and c T x d_state -> T
/// x channels.
///
/// @code
/// const heed::rows<float> u = heed::rows<float>::Random(20, 8),
///                         dt = heed::rows<float>::Constant(20, 8, 0.1f);
/// const heed::rows<float> a = heed::rows<float>::Constant(8, 4, -1.0f),
///                         b = heed::rows<float>::Random(20, 4);
/// const auto out = heed::selective_scan(u, dt, a, b, b);  // 20 x 8
/// @endcode
template <typename U, typename Dt, typename A, typename B, typename C, typename... Terms>
auto selective_scan(const U& u, const Dt& dt, const A& a, const B& b, const C& c,
                    const selective_scan_options& options = {}, const Terms&... terms) {
  static_assert(detail::is_eigen<U> && detail::is_eigen<Dt> && detail::is_eigen<A> &&
                    detail::is_eigen<B> && detail::is_eigen<C>,
                "u, dt, a, b and c must be Eigen matrices, Maps, blocks or expressions");
  using Scalar = typename detail::scalar_of<U>::type;
  const detail::input<Scalar, U> u_in(u);
  const detail::input<Scalar, Dt> dt_in(dt);
  const detail::input<accumulator_t<Scalar>, A> a_in(a);
  const detail::input<Scalar, B> b_in(b);
  const detail::input<Scalar, C> c_in(c);
  rows<Scalar> out(u_in.view.rows, u_in.view.cols);
  workspace memory;
  detail::run_selective_scan("selective_scan", u_in.view, dt_in.view, a_in.view, b_in.view,
                             c_in.view, writable_view(out), options, memory, terms...);
  return out;
}

HEED_NAMESPACE_END
