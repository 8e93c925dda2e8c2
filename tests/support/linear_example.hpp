#pragma once

// Inputs of linear attention and of the delta rule, the recurrence that says what is right, and how
// wrong the library's own may be.

#include <heed/delta_rule.hpp>
#include <heed/linear_attention.hpp>

#include "example.hpp"

namespace testing {

template <typename Scalar>
struct linear_result {
  heed::rows<Scalar> out;
  heed::rows<heed::accumulator_t<Scalar>> state;
};

/// One head. Terms that are empty are absent.
template <typename Scalar>
struct linear_example {
  using accumulator = heed::accumulator_t<Scalar>;

  heed::rows<Scalar> query, key, value;
  heed::rows<accumulator> log_gate, state;
  heed::row_vector<accumulator> beta, bonus;
  heed::linear_attention_options options;

  linear_example() = default;
  /// gate_cols 0: no gate; 1: one a token; d_k: one a key dimension.
  linear_example(size_type length, size_type d_k, size_type d_v, size_type gate_cols, unsigned seed)
      : query(random_rows<Scalar>(length, d_k, 7 * seed)),
        key(random_rows<accumulator>(length, d_k, 7 * seed + 1)
                .rowwise()
                .normalized()
                .template cast<Scalar>()),
        value(random_rows<Scalar>(length, d_v, 7 * seed + 2)),
        log_gate(random_rows<accumulator>(length, gate_cols, 7 * seed + 3).cwiseAbs() *
                 accumulator(-0.3)),
        state(random_rows<accumulator>(d_k, d_v, 7 * seed + 4)) {}

  linear_example& with_beta(unsigned seed) {
    beta = random_rows<accumulator>(query.rows(), 1, 7 * seed + 5).cwiseAbs() * accumulator(0.5);
    return *this;
  }
  /// Positive, so that a normaliser stays away from 0.
  linear_example& with_bonus(unsigned seed) {
    bonus = random_rows<accumulator>(query.cols(), 1, 7 * seed + 6).cwiseAbs();
    return *this;
  }
  /// Feature map and normaliser of Katharopoulos et al.
  linear_example& normalised() {
    options.feature_map = heed::feature_map::elu_plus_one;
    options.normalise = true;
    state.conservativeResize(Eigen::NoChange, value.cols() + 1);
    state.col(value.cols()).setOnes();
    return *this;
  }

  template <typename Other>
  linear_example<Other> cast() const {
    using acc = heed::accumulator_t<Other>;
    linear_example<Other> other;
    other.query = query.template cast<Other>();
    other.key = key.template cast<Other>();
    other.value = value.template cast<Other>();
    other.log_gate = log_gate.template cast<acc>();
    other.state = state.template cast<acc>();
    other.beta = beta.template cast<acc>();
    other.bonus = bonus.template cast<acc>();
    other.options = options;
    return other;
  }

  /// Tokens [first, end), from a state of zeros.
  linear_example from(size_type first) const {
    linear_example tail = *this;
    const size_type count = query.rows() - first;
    tail.query = query.bottomRows(count), tail.key = key.bottomRows(count),
    tail.value = value.bottomRows(count);
    tail.log_gate = log_gate.bottomRows(count).eval();
    if (beta.size() > 0) tail.beta = beta.tail(count).eval();
    tail.state.setZero();
    return tail;
  }

  /// The recurrence as its formula reads.
  linear_result<Scalar> exact() const {
    using std::exp;
    using column = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;
    const bool mapped = options.feature_map == heed::feature_map::elu_plus_one;
    const auto phi = [mapped](const Scalar& x) {
      return !mapped ? x : x > 0 ? Scalar(x + 1) : Scalar(exp(x));
    };
    const Scalar scale = options.scale ? Scalar(*options.scale)
                         : mapped      ? Scalar(1)
                                       : Scalar(1 / std::sqrt(double(query.cols())));
    linear_result<Scalar> result{heed::rows<Scalar>(query.rows(), value.cols()), state};
    Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic> s = state;
    for (size_type t = 0; t < query.rows(); ++t) {
      const column q = query.row(t).transpose().unaryExpr(phi),
                   k = key.row(t).transpose().unaryExpr(phi);
      column v(s.cols()), before(s.cols());
      v.head(value.cols()) = value.row(t).transpose();
      if (options.normalise) v(value.cols()) = 1;
      if (bonus.size() > 0) before = s.transpose() * q + q.dot(bonus.cwiseProduct(k)) * v;
      if (log_gate.cols() == 1) s *= exp(log_gate(t, 0));
      if (log_gate.cols() > 1)
        s = log_gate.row(t).transpose().array().exp().matrix().asDiagonal() * s;
      if (beta.size() > 0) v = beta(t) * (v - s.transpose() * k);
      s += k * v.transpose();
      const column read = scale * (bonus.size() > 0 ? before : column(s.transpose() * q));
      result.out.row(t) = read.head(value.cols()).transpose();
      if (options.normalise) result.out.row(t) /= read(value.cols()) + Scalar(options.epsilon);
    }
    result.state = s;
    return result;
  }

  /// Tokens [first, first + count) by the recurrent form, or in chunks; the state is carried on.
  heed::rows<Scalar> run(size_type first, size_type count, bool recurrent,
                         heed::rows<accumulator>& carried) const {
    const auto q = query.middleRows(first, count), k = key.middleRows(first, count),
               v = value.middleRows(first, count);
    const heed::rows<accumulator> gate = log_gate.middleRows(first, count);
    const auto gates = heed::when(log_gate.cols() > 0, heed::log_gate(gate));
    if (beta.size() > 0) {
      heed::delta_rule_options same;
      same.scale = options.scale;
      same.chunk = options.chunk;
      same.execution.target = options.execution.target;
      const auto b = beta.segment(first, count);
      return recurrent ? heed::recurrent_delta_rule(q, k, v, b, same, gates, heed::carry(carried))
                       : heed::delta_rule(q, k, v, b, same, gates, heed::carry(carried));
    }
    const auto u = heed::when(bonus.size() > 0, heed::bonus(bonus));
    return recurrent
               ? heed::recurrent_linear_attention(q, k, v, options, gates, u, heed::carry(carried))
               : heed::linear_attention(q, k, v, options, gates, u, heed::carry(carried));
  }
  linear_result<Scalar> run(bool recurrent) const {
    linear_result<Scalar> result{{}, state};
    result.out = run(0, query.rows(), recurrent, result.state);
    return result;
  }
};

/// What was forgotten at token `at` reaches no later read, whatever it was: `e` with NaN in its
/// state, and in a key and a value of the token before, against its tail alone.
template <typename Scalar, typename Isas>
void check_forgotten(linear_example<Scalar> e, size_type at, const Isas& isas) {
  using accumulator = heed::accumulator_t<Scalar>;
  e.log_gate.row(at).setConstant(-std::numeric_limits<accumulator>::infinity());
  const linear_example<Scalar> tail = e.from(at);
  const auto exact = tail.template cast<wider_t<Scalar>>().exact();
  const auto same = tail.run(true);
  const size_type unread =
      e.bonus.size() > 0 ? 1 : 0;  // with a bonus the token itself still reads the old state
  const size_type rows = tail.query.rows() - unread;
  const long double out_error = max_error(same.out.bottomRows(rows), exact.out.bottomRows(rows)),
                    state_error = max_error(same.state, exact.state);
  e.state.setConstant(std::numeric_limits<accumulator>::quiet_NaN());
  if (at > 0) e.key(at - 1, 0) = e.value(at - 1, 1) = std::numeric_limits<Scalar>::quiet_NaN();
  const auto check = [&](const linear_result<Scalar>& got) {
    for (size_type t = 0; t < at + unread; ++t)
      CHECK(std::isnan(static_cast<double>(got.out(t, 1))));
    check_error(got.out.bottomRows(rows), exact.out.bottomRows(rows), out_error);
    check_error(got.state, exact.state, state_error);
  };
  check(e.run(true));
  for (const heed::isa target : isas)
    for (const size_type chunk : {0, 1, 3, 16, 48}) {
      CAPTURE(int(target), chunk);
      e.options.execution.target = target;
      e.options.chunk = chunk;
      check(e.run(false));
    }
}

/// What the recurrent form is wrong by, on examples like make(seed): as many as it takes to see
/// some five hundred tokens.
struct linear_error {
  long double out = 0, state = 0;
};
template <typename Make>
linear_error recurrent_error(const Make& make) {
  using Scalar = typename decltype(make(1u).query)::Scalar;
  linear_error largest;
  size_type seen = 0;
  for (unsigned seed = 1; seed <= 48 && seen < 500; ++seed) {
    const linear_example<Scalar> e = make(seed);
    const linear_result<Scalar> same = e.run(true);
    const linear_result<wider_t<Scalar>> exact = e.template cast<wider_t<Scalar>>().exact();
    largest.out = (std::max)(largest.out, max_error(same.out, exact.out));
    largest.state = (std::max)(largest.state, max_error(same.state, exact.state));
    seen += (std::max)(e.query.rows(), size_type(1));
  }
  return largest;
}

/// Out and state may be wrong by twice what the recurrence in the same type is wrong by.
template <typename Scalar, typename Exact>
void check_linear(const linear_result<Scalar>& got, const linear_result<Exact>& exact,
                  const linear_error& error) {
  check_error(got.out, exact.out, error.out);
  check_error(got.state, exact.state, error.state);
}

}  // namespace testing
