#pragma once

#include <heed/detail/check.hpp>
#include <heed/detail/number.hpp>
#include <heed/tensor.hpp>
#include <heed/types.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

HEED_NAMESPACE_BEGIN

/// ALiBi slopes of num_heads heads, for the alibi term: with n the largest power of two that is not
/// above num_heads, 2^(-8 (h + 1) / n) for the first n heads and 2^(-4 (2 (h - n) + 1) / n) for the
/// rest (Press, Smith and Lewis 2022, and their code for other head counts).
template <typename Scalar>
row_vector<Scalar> alibi_slopes(size_type num_heads) {
  if (num_heads < 1)
    detail::fail_with("heed::alibi_slopes: num_heads must be 1 or more, but is ", num_heads);
  size_type n = 1;
  while (n <= num_heads / 2) n *= 2;
  row_vector<Scalar> slopes(num_heads);
  for (size_type h = 0; h < num_heads; ++h) {
    const double exponent =
        h < n ? -8.0 * double(h + 1) / double(n) : -4.0 * double(2 * (h - n) + 1) / double(n);
    slopes(h) = Scalar(std::exp2(exponent));
  }
  return slopes;
}

/// A bias that depends on how far a key is from its query alone: a number for each head and
/// distance, O(n_q + n_kv) memory, which `view` shows as the matrix that the term `bias` takes.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// const heed::distance_bias<float> fade(1, 10, 10, [](heed::size_type, heed::size_type distance) {
///   return -std::log1p(float(std::abs(distance)));
/// });
/// const auto out = heed::attention(x, x, x, {}, heed::bias(fade.view()));
/// @endcode
template <typename Scalar>
class distance_bias {
  size_type n_q_, n_kv_;
  rows<Scalar> values_;  // heads x (n_q + n_kv - 1): distances from -(n_kv - 1) to n_q - 1

 public:
  /// For up to n_q queries and n_kv keys: value(h, distance) is what head h adds to the score of a
  /// key `distance` tokens after its query.
  template <typename Value>
  distance_bias(size_type num_heads, size_type n_q, size_type n_kv, const Value& value)
      : n_q_(detail::checked_size("distance_bias", "n_q", n_q)),
        n_kv_(detail::checked_size("distance_bias", "n_kv", n_kv)),
        values_(detail::checked_size("distance_bias", "num_heads", num_heads),
                (std::max)(n_q + n_kv - 1, size_type{0})) {
    for (size_type h = 0; h < values_.rows(); ++h)
      for (size_type place = 0; place < values_.cols(); ++place)
        values_(h, place) = value(h, place - (n_kv - 1));
  }

  /// For a call of n_q queries and n_kv keys, at most those that it was made for: [1, heads, n_q,
  /// n_kv], in which the last query stands at the last key. It must not outlive the object.
  tensor_view<const Scalar> view(size_type n_q, size_type n_kv) const {
    if (n_q < 0 || n_q > n_q_ || n_kv < 0 || n_kv > n_kv_)
      detail::fail_with("heed::distance_bias::view: ", n_q, " queries and ", n_kv,
                        " keys are not within the ", n_q_, " and ", n_kv_, " that it is for");
    if (n_q == 0 || n_kv == 0) return {nullptr, 1, values_.rows(), n_q, n_kv, 0, 0, 0, 0};
    return {values_.data() + (n_kv_ - 1) - (n_kv - n_q),
            1,
            values_.rows(),
            n_q,
            n_kv,
            0,
            values_.cols(),
            -1,
            1};
  }
  /// For a call of all the queries and keys.
  tensor_view<const Scalar> view() const { return view(n_q_, n_kv_); }
};

/// Of T5's relative positions (Raffel et al. 2020), the parameters of a model.
struct t5_options {
  bool bidirectional = true;  ///< keys after a query have buckets of their own; false: the first's
  size_type max_distance = 128;  ///< from which on all keys share the last bucket
};

/// The bucket of a key `distance` tokens after its query: half of the buckets of a direction are
/// for one distance each, the others grow with its logarithm (_relative_position_bucket of Hugging
/// Face's transformers).
///
/// @code
/// assert(heed::t5_bucket(0, 32) == 0 && heed::t5_bucket(3, 32) == 16 + 3);
/// @endcode
inline size_type t5_bucket(size_type distance, size_type num_buckets,
                           const t5_options& options = {}) {
  const size_type of_direction = options.bidirectional ? num_buckets / 2 : num_buckets,
                  exact = of_direction / 2;
  if (exact < 1)
    detail::fail_with("heed::t5_bucket: num_buckets must be ", options.bidirectional ? 4 : 2,
                      " or more, but is ", num_buckets);
  if (options.max_distance <= exact)
    detail::fail_with("heed::t5_bucket: max_distance ", options.max_distance,
                      " must be more than the ", exact, " distances with a bucket of their own");
  const size_type first = options.bidirectional && distance > 0 ? of_direction : 0;
  const size_type steps = options.bidirectional && distance > 0 ? distance
                          : distance < 0                        ? -distance
                                                                : 0;
  if (steps < exact) return first + steps;
  if (steps >= options.max_distance) return first + of_direction - 1;
  const double growth = std::log(double(steps) / double(exact)) /
                        std::log(double(options.max_distance) / double(exact));
  // A distance at which a bucket begins has a whole number here, once it is a float.
  const auto place = static_cast<size_type>(float(growth * double(of_direction - exact)));
  return first + (std::min)(exact + place, of_direction - 1);
}

/// T5's relative position bias: adds table(bucket, h) to the scores of head h, with the bucket of
/// t5_bucket (Raffel et al. 2020). table num_buckets x heads, the weight of the model's embedding,
/// for calls of up to n_q queries and n_kv keys. T5's scale is 1.
///
/// @code
/// const heed::rows<float> x = heed::rows<float>::Random(10, 64);
/// const heed::rows<float> table = heed::rows<float>::Random(32, 1);  // for one head
/// const auto distances = heed::t5_bias(table, 10, 10);
/// heed::attention_options options;
/// options.scale = 1;
/// const auto out = heed::attention(x, x, x, options, heed::bias(distances.view()));
/// @endcode
template <typename Table>
auto t5_bias(const Table& table, size_type n_q, size_type n_kv, const t5_options& options = {}) {
  static_assert(detail::is_eigen<Table>, "the table of T5's bias is an Eigen matrix");
  using Scalar = typename Table::Scalar;
  t5_bucket(0, table.rows(), options);  // refuses what is no table
  return distance_bias<Scalar>(table.cols(), n_q, n_kv, [&](size_type h, size_type distance) {
    return Scalar(table(t5_bucket(distance, table.rows(), options), h));
  });
}

/// Which elements of a head are a pair: 2c and 2c + 1 (`interleaved`, GPT-J), or c and c +
/// rotary_dim / 2 (`half_split`, GPT-NeoX, llama).
enum class rope_layout : unsigned char { half_split, interleaved };

/// Which way pairs turn. `backward` is the gradient of `forward`: by the negative angles and with
/// the same magnitude, so from the gradient with respect to rotated queries to that with respect to
/// queries. Where the magnitude is 1 (all scalings but yarn) it is the inverse too.
enum class rope_direction : unsigned char { forward, backward };

/// How the frequencies are changed for contexts longer than the model was trained on.
enum class rope_scaling : unsigned char {
  none,
  linear,  ///< positions divided by factor (Chen et al. 2023)
  ntk,  ///< base raised to base * factor^(d / (d - 2)), so that the slowest frequency is divided by
        ///< factor
  yarn,  ///< slow frequencies divided by factor, fast ones kept, a ramp between, and larger scores
         ///< (Peng et al. 2023)
  llama3,  ///< as yarn's ramp in wavelengths, with scores as they are (the llama 3.1 reference
           ///< code)
  /// ntk by how far the sequence is past the training: base * (factor n / L - factor + 1)^(d / (d -
  /// 2)) for a sequence_length n above L = original_length, and nothing up to it ("dynamic" in
  /// Hugging Face's transformers). Queries and keys of one call must be rotated for the same n.
  dynamic_ntk
};

/// Rotary position embedding (Su et al. 2021). An aggregate; the defaults are the paper's.
struct rope_options {
  double base = 10000;  ///< pair c of d / 2 is rotated by base^(-2 c / d) radians a position
  /// How many of a head's elements are rotated, an even number; the rest stay as they are. 0: all.
  size_type rotary_dim = 0;
  rope_layout layout = rope_layout::half_split;  ///< which elements are a pair
  rope_scaling scaling = rope_scaling::none;  ///< how the frequencies are changed for long contexts
  double factor = 1;  ///< how many times longer the context is than in training (all scalings)
  double original_length =
      8192;               ///< the context length of the training (yarn, llama3, dynamic_ntk)
  double beta_fast = 32;  ///< turns over original_length from which on yarn keeps a frequency
  double beta_slow =
      1;  ///< turns over original_length up to which yarn divides a frequency by factor
  double low_freq_factor = 1;   ///< as beta_slow, for llama3
  double high_freq_factor = 4;  ///< as beta_fast, for llama3
  /// Whether yarn's ramp begins and ends at whole pairs, rounded outwards, as in the paper's code;
  /// gpt-oss does not round.
  bool truncate = true;
  size_type sequence_length = 0;  ///< how many tokens the sequence has, 1 or more (dynamic_ntk)
  rope_direction direction = rope_direction::forward;  ///< backward: the gradient (apply_rope)
};

/// The parameters of a rotation: the angle of a pair is position * frequencies(pair); yarn also
/// multiplies q and k by `magnitude`.
struct rope_frequencies_result {
  row_vector<double> frequencies;  ///< rotary_dim / 2 numbers, in radians per position
  double magnitude = 1;            ///< the factor on q and k; 1 but for yarn
};

namespace detail {
inline void check_layout(const char* function, rope_layout layout) {
  if (layout > rope_layout::interleaved)
    fail_with("heed::", function, ": layout must be half_split or interleaved, but is ",
              int(layout));
}
inline void check_direction(const char* function, rope_direction direction) {
  if (direction > rope_direction::backward)
    fail_with("heed::", function, ": direction must be forward or backward, but is ",
              int(direction));
}
/// The parameters of a ramp are checked where the scaling has one.
inline void check_rope(const char* function, size_type head_dim, const rope_options& options) {
  const size_type rotary = options.rotary_dim == 0 ? head_dim : options.rotary_dim;
  if (rotary < 0 || rotary > head_dim || rotary % 2 != 0)
    fail_with("heed::", function, ": rotary_dim must be even and at most head_dim ", head_dim,
              ", but is ", rotary);
  check_layout(function, options.layout);
  check_direction(function, options.direction);
  const rope_scaling scaling = options.scaling;
  if (scaling > rope_scaling::dynamic_ntk)
    fail_with("heed::", function,
              ": scaling must be none, linear, ntk, yarn, llama3 or dynamic_ntk, but is ",
              int(scaling));
  const auto positive = [&](const char* what, double x) {
    if (!is_finite(x) || x <= 0)
      fail_with("heed::", function, ": ", what, " must be positive and finite, but is ", x);
  };
  const auto rises = [&](const char* low_name, double low, const char* high_name, double high) {
    positive(low_name, low);
    positive(high_name, high);
    if (low >= high)
      fail_with("heed::", function, ": ", low_name, " ", low, " must be less than ", high_name, " ",
                high);
  };
  positive("base", options.base);
  positive("factor", options.factor);
  if (scaling >= rope_scaling::yarn) positive("original_length", options.original_length);
  if (scaling == rope_scaling::yarn) {
    if (options.base <= 1)
      fail_with("heed::", function, ": base must be more than 1 for yarn, but is ", options.base);
    rises("beta_slow", options.beta_slow, "beta_fast", options.beta_fast);
  }
  if (scaling == rope_scaling::llama3)
    rises("low_freq_factor", options.low_freq_factor, "high_freq_factor", options.high_freq_factor);
  if (scaling == rope_scaling::dynamic_ntk && options.sequence_length < 1)
    fail_with("heed::", function, ": sequence_length must be 1 or more for dynamic_ntk, but is ",
              options.sequence_length);
}

/// What options make of the pairs of a head.
class rope {
 public:
  /// Checks the options of `function`.
  rope(const char* function, size_type head_dim, const rope_options& given) : options(given) {
    check_rope(function, head_dim, options);
    rotary = options.rotary_dim == 0 ? head_dim : options.rotary_dim;
    const double d = double(rotary), factor = options.factor,
                 past = double(options.sequence_length) / options.original_length;
    double stretch = 1;  // of the slowest frequency
    if (options.scaling == rope_scaling::ntk) stretch = factor;
    if (options.scaling == rope_scaling::dynamic_ntk && past > 1)
      stretch = factor * past - (factor - 1);
    base = rotary > 2 ? options.base * std::pow(stretch, d / (d - 2)) : options.base;

    // yarn ramps over the pair number between the pairs that make beta_fast and beta_slow turns in
    // original_length
    if (options.scaling == rope_scaling::yarn) {
      const auto pair_of_turns = [&](double turns) {
        return d * std::log(options.original_length / (turns * two_pi)) /
               (2 * std::log(options.base));
      };
      first = pair_of_turns(options.beta_fast), last = pair_of_turns(options.beta_slow);
      if (options.truncate) first = std::floor(first), last = std::ceil(last);
      first = (std::max)(first, 0.0), last = (std::min)(last, d - 1);
    }

    if (pairs() == 0) return;
    // Unscaled frequencies rise or fall from pair to pair, and scaling divides them by at most
    // factor: most calls look at two of them.
    const double largest =
        (std::max)(unscaled(0), unscaled(pairs() - 1)) * (std::max)(1.0, 1 / factor);
    if (is_finite(largest * 0x2p63)) return;  // the 2 is for rounding
    for (size_type c = 0; c < pairs(); ++c)
      if (!is_finite(frequency(c) * 0x1p63))  // times any position
        fail_with("heed::", function, ": base ", options.base, " and factor ", factor,
                  " make the frequency of pair ", c, " too large: ", frequency(c));
  }

  size_type pairs() const { return rotary / 2; }
  /// Radians per position.
  double frequency(size_type c) const {
    const double as_trained = unscaled(c);
    double keep = 1;  // 1: as trained, 0: divided by factor
    if (options.scaling == rope_scaling::linear) keep = 0;
    if (options.scaling == rope_scaling::yarn)
      keep = 1 - (std::min)((std::max)((double(c) - first) / (std::max)(last - first, 0.001), 0.0),
                            1.0);
    if (options.scaling == rope_scaling::llama3) {
      const double turns = options.original_length * as_trained / two_pi;
      keep =
          (turns - options.low_freq_factor) / (options.high_freq_factor - options.low_freq_factor);
      keep = (std::min)((std::max)(keep, 0.0), 1.0);
    }
    return as_trained * keep + as_trained / options.factor * (1 - keep);
  }
  double magnitude() const {
    return options.scaling == rope_scaling::yarn && options.factor > 1
               ? 0.1 * std::log(options.factor) + 1
               : 1;
  }

 private:
  static constexpr double two_pi = 6.283185307179586476925286766559;
  double unscaled(size_type c) const { return std::pow(base, -2.0 * double(c) / double(rotary)); }

  rope_options options;
  size_type rotary;
  double base, first = 0, last = 0;
};
}  // namespace detail

/// The frequencies base^(-2c / rotary_dim) of a head of head_dim elements, scaled as the options
/// say. Throws std::invalid_argument for a rotary_dim that is odd or larger than head_dim, and
/// where base, factor or a parameter of the scaling is not positive and finite, yarn's base not
/// more than 1, beta_slow not less than beta_fast, low_freq_factor not less than high_freq_factor
/// or dynamic_ntk's sequence_length less than 1.
inline rope_frequencies_result rope_frequencies(size_type head_dim,
                                                const rope_options& options = {}) {
  const detail::rope rope("rope_frequencies", head_dim, options);
  rope_frequencies_result result;
  result.frequencies.resize(rope.pairs());
  for (size_type c = 0; c < rope.pairs(); ++c) result.frequencies(c) = rope.frequency(c);
  result.magnitude = rope.magnitude();
  return result;
}

namespace detail {
/// What the angle or the sine of a rotation is multiplied by.
constexpr double sign_of(rope_direction direction) {
  return direction == rope_direction::backward ? -1 : 1;
}

/// Turns the pair (a, b) by the angle whose cosine and sine are given.
template <typename Scalar, typename Acc>
void turn(Scalar& a, Scalar& b, Acc cos, Acc sin) {
  const Acc x(a), y(b);
  a = Scalar(x * cos - y * sin);
  b = Scalar(y * cos + x * sin);
}

/// A table that is computed at every look might be computed from what is rotated: it is evaluated
/// first.
template <typename Table>
decltype(auto) table_of(const Eigen::DenseBase<Table>& table) {
  if constexpr (has_memory<Table>) {
    return (table.derived());
  } else {
    return rows<typename Table::Scalar>(table.derived());
  }
}

/// Turns pairs [first, last) out of `pairs` of token i of batch entry b, in every head, by the
/// angles whose cos(c) and sin(c) are given.
template <typename Scalar, typename Cos, typename Sin>
void rotate_token(const tensor_view<Scalar>& x, size_type b, size_type i, size_type first,
                  size_type last, size_type pairs, rope_layout layout, const Cos& cos,
                  const Sin& sin) {
  using Acc = accumulator_t<Scalar>;
  const size_type step = layout == rope_layout::interleaved ? 2 : 1,
                  partner = layout == rope_layout::interleaved ? 1 : pairs;
  for (size_type h = 0; h < x.heads; ++h)
    for (size_type c = first; c < last; ++c)
      turn(x(b, h, i, step * c), x(b, h, i, step * c + partner), Acc(cos(c)), Acc(sin(c)));
}
}  // namespace detail

/// Rotates every head of x [B, H, n, d] in place with tables of cosines and sines that are given:
/// cos and sin are [positions, rotary_dim / 2] and token i of batch entry b takes row positions(b *
/// n + i) of them. The rotary_dim is twice the tables' columns; elements past it stay as they are.
/// With rope_direction::backward the sines count with the other sign: the gradient. Throws
/// std::invalid_argument where the sizes do not fit together, a position is not in the tables, or x
/// overlaps the tables, the positions or itself.
///
/// @code
/// heed::rows<float> query =
///     heed::rows<float>::Random(3, 64);  // one head, tokens 5, 6 and 7 of a sequence
/// const std::vector<heed::size_type> positions{5, 6, 7};
/// const Eigen::VectorXd frequencies = heed::rope_frequencies(64).frequencies;
/// const Eigen::MatrixXd angles = Eigen::VectorXd::LinSpaced(16, 0, 15) * frequencies.transpose();
/// heed::rotate_into(heed::writable_view(query), angles.array().cos().matrix().cast<float>(),
///                   angles.array().sin().matrix().cast<float>(), positions,
///                   heed::rope_layout::half_split);
/// @endcode
template <typename Scalar, typename Cos, typename Sin>
void rotate_into(const tensor_view<Scalar>& x, const Eigen::DenseBase<Cos>& cos,
                 const Eigen::DenseBase<Sin>& sin, const index_list& positions,
                 rope_layout layout = rope_layout::half_split,
                 rope_direction direction = rope_direction::forward) {
  using Acc = accumulator_t<Scalar>;
  detail::check_view("rotate_into", "x", x);
  detail::check_memory("rotate_into", "cos", cos);
  detail::check_memory("rotate_into", "sin", sin);
  detail::check_layout("rotate_into", layout);
  detail::check_direction("rotate_into", direction);
  detail::check_equal("rotate_into", "sin: rows", sin.rows(), "cos's rows", cos.rows());
  detail::check_equal("rotate_into", "sin: columns", sin.cols(), "cos's columns", cos.cols());
  detail::check_list("rotate_into", "positions", positions);
  detail::check_equal("rotate_into", "positions:", positions.size, "batch * n", x.batch * x.rows);
  if (2 * cos.cols() > x.cols)
    detail::fail_with("heed::rotate_into: cos: rotary_dim ", 2 * cos.cols(),
                      " is larger than x's head_dim ", x.cols);
  for (size_type t = 0; t < x.batch * x.rows; ++t)
    if (positions[t] < 0 || positions[t] >= cos.rows())
      detail::fail_with("heed::rotate_into: position ", positions[t], " of token ", t,
                        " is not in the tables' ", cos.rows(), " rows");
  detail::check_apart("rotate_into", {"x", x}, "cos", cos, "sin", sin, "positions", positions);
  const auto& cosines = detail::table_of(cos);
  const auto& sines = detail::table_of(sin);
  const Acc sign = Acc(detail::sign_of(direction));
  for (size_type b = 0; b < x.batch; ++b)
    for (size_type i = 0; i < x.rows; ++i) {
      const size_type position = positions[b * x.rows + i];
      detail::rotate_token(
          x, b, i, 0, cosines.cols(), cosines.cols(), layout,
          [&](size_type c) { return cosines(position, c); },
          [&](size_type c) { return Acc(Acc(sines(position, c)) * sign); });
    }
}

/// Rotary position embedding of every head of x [B, H, n, d] in place; token i of every batch entry
/// has position first_position + i. Apply it to queries and keys before attention; angles are
/// computed in double. With options.direction backward, the gradient with respect to x from that
/// with respect to the rotated x, in place too. Throws as rope_frequencies does, for positions that
/// no index can hold, and where x overlaps itself. Allocates nothing.
///
/// @code
/// heed::rows<float> query = heed::rows<float>::Random(10, 64);  // one head
/// const heed::rows<float> before = query;
/// heed::rope_options options;
/// heed::apply_rope(heed::writable_view(query), options);
/// options.direction = heed::rope_direction::backward;
/// heed::apply_rope(heed::writable_view(query), options);
/// assert((query - before).norm() < 1e-4f);
/// @endcode
template <typename Scalar>
void apply_rope(const tensor_view<Scalar>& x, const rope_options& options = {},
                size_type first_position = 0) {
  using Acc = accumulator_t<Scalar>;
  detail::check_view("apply_rope", "x", x);
  detail::check_apart("apply_rope", {"x", x});
  const detail::rope rope("apply_rope", x.cols, options);
  if (first_position > (std::numeric_limits<size_type>::max)() - x.rows)
    detail::fail_with("heed::apply_rope: first_position ", first_position, " and ", x.rows,
                      " tokens are more than an index can hold");
  constexpr size_type most = 64;  // pairs at a time: those of a usual head
  const double magnitude = rope.magnitude(), sign = detail::sign_of(options.direction);
  double frequency[most];
  Acc cos[most], sin[most];
  for (size_type first = 0; first < rope.pairs(); first += most) {
    const size_type last = (std::min)(first + most, rope.pairs());
    for (size_type c = first; c < last; ++c) frequency[c - first] = rope.frequency(c);
    for (size_type i = 0; i < x.rows; ++i) {
      for (size_type c = first; c < last; ++c) {
        const double angle = double(first_position + i) * frequency[c - first];
        cos[c - first] = Acc(magnitude * std::cos(angle));
        sin[c - first] = Acc(sign * magnitude * std::sin(angle));
      }
      for (size_type b = 0; b < x.batch; ++b)
        detail::rotate_token(
            x, b, i, first, last, rope.pairs(), options.layout,
            [&](size_type c) { return cos[c - first]; },
            [&](size_type c) { return sin[c - first]; });
    }
  }
}

HEED_NAMESPACE_END
