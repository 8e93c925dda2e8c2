#pragma once

#include <heed/detail/inputs.hpp>
#include <heed/detail/recurrence.hpp>

#include <algorithm>
#include <optional>
#include <type_traits>

HEED_NAMESPACE_BEGIN

/// The function after the convolution.
enum class activation : unsigned char { none, silu };

/// The options of the causal convolution.
struct causal_conv_options {
  /// The function that each sum goes through.
  heed::activation activation = heed::activation::none;
  /// Instruction set (`automatic` only: there are no kernels), threads, pool.
  heed::execution execution{};
};

namespace detail {
/// Numbers of x's type, or of the sums': float beside half and bfloat16.
template <typename Scalar, typename Number>
constexpr bool fits_sums =
    std::is_same<Number, Scalar>::value || std::is_same<Number, accumulator_t<Scalar>>::value;

template <typename Scalar>
struct channel_bias_term {
  tensor_view<const Scalar> view;
};

template <typename Scalar>
struct circular_carry_term {
  tensor_view<Scalar> view;
  index_list tokens;
};
/// One call has one past.
template <typename Scalar>
struct purpose_of<circular_carry_term<Scalar>> {
  using type = carry_term<Scalar>;
};

template <typename Scalar>
struct causal_conv_terms {
  using Acc = accumulator_t<Scalar>;
  std::optional<tensor_view<const Scalar>> channel_bias;
  std::optional<tensor_view<const Acc>>
      wide_channel_bias;  // of the sums' type, where that is another
  std::optional<tensor_view<Acc>> carry;
  std::optional<index_list> tokens;  // before the call's, where carry is circular
  std::optional<index_list> starts;

  template <typename Number>
  void add(const channel_bias_term<Number>& term) {
    static_assert(fits_sums<Scalar, Number>,
                  "channel_bias has the scalar of x, or that of its sums");
    if constexpr (std::is_same<Number, Scalar>::value) {
      channel_bias = term.view;
    } else {
      wide_channel_bias = term.view;
    }
  }
  void add(const carry_term<Acc>& term) { carry = term.view; }
  void add(const circular_carry_term<Acc>& term) {
    carry = term.view;
    tokens = term.tokens;
  }
  void add(const sequence_starts_term& term) { starts = term.starts; }
  template <typename Other>
  void add(const Other&) {
    static_assert(sizeof(Other) == 0,
                  "not a term of causal_conv, or one of another scalar type: carry has that of the "
                  "state "
                  "(float for float, half and bfloat16; double for double)");
  }
};
}  // namespace detail

/// Added to each output of a channel: an Eigen vector, one number per channel.
template <typename Vector>
detail::channel_bias_term<typename Vector::Scalar> channel_bias(
    const Eigen::DenseBase<Vector>& bias) {
  static_assert(detail::has_memory<Vector> && bool(Vector::IsVectorAtCompileTime),
                "channel_bias takes an Eigen vector, one number per channel");
  return {{bias.derived().data(), 1, 1, 1, bias.size(), 0, 0, 0, bias.derived().innerStride()}};
}

/// A carry that no row is moved in: of S >= taps - 1 rows, token t of the sequence is in row t % S.
/// state [B, H, S, channels]; tokens are how many each sequence has had before this call, which
/// the caller counts on. Rows of tokens that have not been are read as they are: zeros at the start
/// of a sequence.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(20, 8),
///                         weight = heed::rows<float>::Random(8, 4);
/// heed::rows<float> state = heed::rows<float>::Zero(16, 8);
/// for (heed::size_type t = 0; t < 20; ++t) {
///   const std::vector<heed::size_type> tokens{t};
///   const auto out = heed::causal_conv(x.row(t), weight, {}, heed::circular_carry(state, tokens));
/// }
/// @endcode
template <typename Scalar>
detail::circular_carry_term<Scalar> circular_carry(const tensor_view<Scalar>& state,
                                                   const index_list& tokens) {
  return {state, tokens};
}

/// The state of one head: a matrix, Map or block.
template <typename State, typename = std::enable_if_t<detail::is_eigen<State>>>
auto circular_carry(State&& state, const index_list& tokens)
    -> detail::circular_carry_term<typename std::decay_t<State>::Scalar> {
  return {writable_view(state), tokens};
}

namespace detail {
/// causal_conv_into under the name of the function that was called.
template <typename X, typename Weight, typename Scalar, typename... Terms>
void run_causal_conv(const char* name, const tensor_view<X>& x, const tensor_view<Weight>& weight,
                     const tensor_view<Scalar>& out, const causal_conv_options& options,
                     const Terms&... terms) {
  using Acc = accumulator_t<Scalar>;
  static_assert(std::is_same<std::remove_const_t<X>, Scalar>::value,
                "x and out must have one scalar type");
  static_assert(fits_sums<Scalar, std::remove_const_t<Weight>>,
                "weight has the scalar of x, or that of its sums: float for half and bfloat16");
  causal_conv_terms<Scalar> given;
  add_terms(given, terms...);
  check_view(name, "x", x);
  check_execution_without_kernels(name, options.execution);
  check_view(name, "weight", weight);
  const size_type channels = x.cols, taps = weight.cols, past = taps - 1;
  if (taps < 1) fail_with("heed::", name, ": weight: taps must be 1 or more, but is ", taps);
  check_extent(name, "weight", "batch", weight.batch, x.batch);
  check_extent(name, "weight", "heads", weight.heads, x.heads);
  check_equal(name, "weight: channels", weight.rows, "x's channels", channels);
  check_sequence(name, "out", out, "x", x);
  check_axis(name, "out", "channels", out.cols, "x", channels);
  const auto check_bias = [&](const auto& bias) {
    if (!bias) return;
    check_view(name, "channel_bias", *bias);
    check_equal(name, "channel_bias: size", bias->cols, "x's channels", channels);
  };
  check_bias(given.channel_bias);
  check_bias(given.wide_channel_bias);
  if (options.activation > activation::silu)
    fail_with("heed::", name, ": activation must be none or silu, but is ",
              int(options.activation));
  const sequences packed(name, "x", x, given.starts);
  const size_type room = given.tokens ? (std::max)(given.carry->rows, past) : past;  // for rows
  check_carry(name, given.carry, packed.count(), x.heads, room, "weight's taps - 1,", channels,
              "x's channels");
  if (given.tokens) {
    check_list(name, "circular_carry: tokens", *given.tokens);
    check_equal(name, "circular_carry: tokens: entries", given.tokens->size, "the call's batch",
                packed.count());
    for (size_type b = 0; b < packed.count(); ++b)
      if ((*given.tokens)[b] < 0)
        fail_with("heed::", name, ": circular_carry: tokens must not be negative, but entry ", b,
                  " is ", (*given.tokens)[b]);
  }
  check_apart(name, {"out", out}, {"carry", given.carry}, "x", x, "weight", weight, "channel_bias",
              given.channel_bias, "channel_bias", given.wide_channel_bias, "sequence_starts",
              given.starts, "circular_carry: tokens", given.tokens);

  for_each_head(packed.count(), x.heads, options.execution, [&](size_type b, size_type h) {
    const matrix_view<Weight> weights = broadcast_head(weight, given.starts ? 0 : b, h);
    const tensor_view<X> xs = packed.of(x, b);
    const tensor_view<Scalar> outs = packed.of(out, b);
    const size_type length = packed.length(b);
    // Token t of z, which counts from the oldest input of the past, and its row in a carry before
    // the call.
    const size_type first = given.tokens && room > 0 ? (*given.tokens)[b] % room : 0;
    const auto row_of = [&](size_type t) {
      return given.tokens ? (first + room - past + t) % room : t;
    };
    const auto z = [&](size_type t, size_type c) {
      if (t >= past) return Acc(xs(0, h, t - past, c));
      return given.carry ? Acc((*given.carry)(b, h, row_of(t), c)) : Acc(0);
    };
    for (size_type t = 0; t < length; ++t)
      for (size_type c = 0; c < channels; ++c) {
        Acc sum(0);
        for (size_type i = 0; i < taps; ++i) sum += Acc(Acc(weights(c, i)) * z(t + i, c));
        if (given.channel_bias) sum += Acc((*given.channel_bias)(0, 0, 0, c));
        if (given.wide_channel_bias) sum += (*given.wide_channel_bias)(0, 0, 0, c);
        outs(0, h, t, c) = Scalar(options.activation == activation::silu ? silu(sum) : sum);
      }
    if (!given.carry) return;
    const size_type kept = given.tokens ? (std::min)(length, room) : past;
    for (size_type t = past + length - kept; t < past + length; ++t)  // a row is read before it is
      for (size_type c = 0; c < channels; ++c)                        // written
        (*given.carry)(b, h, given.tokens ? row_of(t) : t - length, c) = z(t, c);
  });
}
}  // namespace detail

/// A causal convolution of each channel with its own few weights along time (the short convolution
/// before Mamba's scan and before DeltaNet's keys). With z = [past | x], past the last `taps` - 1
/// inputs before x:
///   out(t, c) = activation(bias(c) + sum_i weight(c, i) z(t + i, c))
///
/// x [B, H, T, channels], weight [B, H, channels, taps] (batch and heads may each be 1) ->
/// out [B, H, T, channels]. For half and bfloat16 the weights, and the bias, may be float. Terms:
/// channel_bias, and carry [B, H, taps - 1, channels], the past, oldest row first, which is left
/// ready for the next call, or circular_carry; without it the past is 0; and sequence_starts.
/// Throws std::invalid_argument for sizes that do not fit together, and where out or carry overlaps
/// itself, the other or an input, before anything is written.
template <typename X, typename Weight, typename Scalar, typename... Terms>
void causal_conv_into(const tensor_view<X>& x, const tensor_view<Weight>& weight,
                      const tensor_view<Scalar>& out, const causal_conv_options& options,
                      const Terms&... terms) {
  detail::run_causal_conv("causal_conv_into", x, weight, out, options, terms...);
}

/// The same for one sequence: x T x channels, weight channels x taps -> T x channels.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(20, 8),
///                         weight = heed::rows<float>::Random(8, 4);
/// heed::causal_conv_options options;
/// options.activation = heed::activation::silu;
/// const auto out = heed::causal_conv(x, weight, options);  // 20 x 8
/// @endcode
template <typename X, typename Weight, typename... Terms>
auto causal_conv(const X& x, const Weight& weight, const causal_conv_options& options = {},
                 const Terms&... terms) {
  static_assert(detail::is_eigen<X> && detail::is_eigen<Weight>,
                "x and weight must be Eigen matrices, Maps, blocks or expressions");
  using Scalar = typename detail::scalar_of<X>::type;
  const detail::input<Scalar, X> x_in(x);
  const detail::input<typename detail::scalar_of<Weight>::type, Weight> weight_in(weight);
  rows<Scalar> out(x_in.view.rows, x_in.view.cols);
  detail::run_causal_conv("causal_conv", x_in.view, weight_in.view, writable_view(out), options,
                          terms...);
  return out;
}

HEED_NAMESPACE_END
