// A transformer block of today: RMSNorm, grouped-query attention with rotary positions, and in the
// place of one wide feed-forward layer a router that sends each token to the best k of several
// SwiGLU experts. Each token pays for k experts; the block has all of them.

#include <heed/heed.hpp>

#include "support/command_line.hpp"
#include "support/table.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace {

using heed::size_type;

constexpr size_type d_model = 256, num_heads = 8, num_kv_heads = 2, head_dim = 32, num_experts = 8,
                    chosen = 2, hidden = 512;

template <typename Scalar>
struct expert {
  heed::rows<Scalar> gate, up, down;
};

/// The weights of the block, in float for the fast form and in double for the plain one.
template <typename Scalar>
struct block {
  heed::rows<Scalar> w_q, w_k, w_v, w_o, router;
  std::vector<expert<Scalar>> experts;

  block<double> in_double() const {
    block<double> wide{w_q.template cast<double>(),    w_k.template cast<double>(),
                       w_v.template cast<double>(),    w_o.template cast<double>(),
                       router.template cast<double>(), {}};
    for (const expert<Scalar>& e : experts)
      wide.experts.push_back({e.gate.template cast<double>(), e.up.template cast<double>(),
                              e.down.template cast<double>()});
    return wide;
  }
};

heed::rows<float> draw(size_type n, size_type m, std::mt19937& bits) {
  std::normal_distribution<float> normal(0, 1 / std::sqrt(float(n)));
  return heed::rows<float>::NullaryExpr(n, m, [&] { return normal(bits); });
}

block<float> draw_block(std::mt19937& bits) {
  block<float> b{draw(d_model, num_heads * head_dim, bits),
                 draw(d_model, num_kv_heads * head_dim, bits),
                 draw(d_model, num_kv_heads * head_dim, bits),
                 draw(num_heads * head_dim, d_model, bits),
                 draw(d_model, num_experts, bits),
                 {}};
  for (size_type e = 0; e < num_experts; ++e)
    b.experts.push_back(
        {draw(d_model, hidden, bits), draw(d_model, hidden, bits), draw(hidden, d_model, bits)});
  return b;
}

template <typename Scalar>
heed::rows<Scalar> rms_norm(const heed::rows<Scalar>& x) {
  heed::rows<Scalar> out = x;
  for (size_type i = 0; i < x.rows(); ++i)
    out.row(i) /= std::sqrt(x.row(i).squaredNorm() / Scalar(x.cols()) + Scalar(1e-6));
  return out;
}

/// gate(x) * sigmoid(gate(x)) * up(x), element by element (Shazeer 2020).
template <typename Scalar>
heed::rows<Scalar> swiglu(const heed::rows<Scalar>& gate, const heed::rows<Scalar>& up) {
  return gate.array() / (1 + (-gate.array()).exp()) * up.array();
}

/// What each token owes to each expert: the softmax over its k largest scores, 0 for the others.
template <typename Scalar>
heed::rows<Scalar> route(const heed::rows<Scalar>& scores) {
  heed::rows<Scalar> masked = heed::rows<Scalar>::Constant(
      scores.rows(), scores.cols(), -std::numeric_limits<Scalar>::infinity());
  std::vector<size_type> order(static_cast<std::size_t>(scores.cols()));
  for (size_type t = 0; t < scores.rows(); ++t) {
    for (std::size_t e = 0; e < order.size(); ++e) order[e] = size_type(e);
    std::partial_sort(order.begin(), order.begin() + chosen, order.end(),
                      [&](size_type a, size_type b) { return scores(t, a) > scores(t, b); });
    for (size_type n = 0; n < chosen; ++n)
      masked(t, order[std::size_t(n)]) = scores(t, order[std::size_t(n)]);
  }
  return heed::scaled_softmax(masked);
}

heed::attention_options causal() {
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  return options;
}

/// The first half of the block: x + attention(norm(x)) W_O.
heed::rows<float> attend(const block<float>& w, const heed::rows<float>& x) {
  auto p = heed::project_qkv(rms_norm(x), w.w_q, w.w_k, w.w_v);
  heed::apply_rope(heed::split_heads(heed::writable_view(p.query), num_heads));
  heed::apply_rope(heed::split_heads(heed::writable_view(p.key), num_kv_heads));
  return x + heed::project(heed::packed_multi_head_attention(p.query, p.key, p.value,
                                                             {num_heads, num_kv_heads}, causal()),
                           w.w_o);
}

/// The second half: each expert works on the tokens that were sent to it, gathered into one matrix.
/// `counts` are their numbers.
heed::rows<float> think(const block<float>& w, const heed::rows<float>& x,
                        std::vector<size_type>& counts) {
  const heed::rows<float> normed = rms_norm(x),
                          share = route<float>(heed::project(normed, w.router));
  heed::rows<float> out = x;
  counts.assign(std::size_t(num_experts), 0);
  for (size_type e = 0; e < num_experts; ++e) {
    std::vector<size_type> tokens;
    for (size_type t = 0; t < x.rows(); ++t)
      if (share(t, e) > 0) tokens.push_back(t);
    heed::rows<float> sent(size_type(tokens.size()), d_model);
    for (std::size_t n = 0; n < tokens.size(); ++n) sent.row(size_type(n)) = normed.row(tokens[n]);
    const expert<float>& mine = w.experts[std::size_t(e)];
    const heed::rows<float> answer = heed::project(
        swiglu<float>(heed::project(sent, mine.gate), heed::project(sent, mine.up)), mine.down);
    for (std::size_t n = 0; n < tokens.size(); ++n)
      out.row(tokens[n]) += share(tokens[n], e) * answer.row(size_type(n));
    counts[std::size_t(e)] = size_type(tokens.size());
  }
  return out;
}

/// The whole block with nothing clever: head by head from the reference, every expert on every
/// token, in Eigen and double.
heed::rows<double> plain_block(const block<double>& w, const heed::rows<double>& x) {
  const heed::rows<double> normed = rms_norm(x);
  heed::rows<double> query = normed * w.w_q, key = normed * w.w_k;
  const heed::rows<double> value = normed * w.w_v;
  const auto rotate = [](heed::rows<double>& heads) {  // each pair (c, c + head_dim / 2) of token i
                                                       // turns by i 10000^(-2c / head_dim)
    const heed::rows<double> before = heads;
    for (size_type i = 0; i < heads.rows(); ++i)
      for (size_type c = 0; c < heads.cols(); ++c) {
        const size_type at = c % head_dim, half = head_dim / 2;
        const double angle =
            double(i) * std::pow(10000.0, -2.0 * double(at % half) / double(head_dim));
        heads(i, c) = before(i, c) * std::cos(angle) +
                      (at < half ? -before(i, c + half) : before(i, c - half)) * std::sin(angle);
      }
  };
  rotate(query);
  rotate(key);
  heed::rows<double> heads(x.rows(), num_heads * head_dim);
  for (size_type h = 0; h < num_heads; ++h) {
    const size_type shared = h / (num_heads / num_kv_heads);
    heads.middleCols(h * head_dim, head_dim) = heed::reference_attention(
        query.middleCols(h * head_dim, head_dim), key.middleCols(shared * head_dim, head_dim),
        value.middleCols(shared * head_dim, head_dim), causal());
  }
  const heed::rows<double> attended = x + heads * w.w_o, again = rms_norm(attended),
                           share = route<double>(again * w.router);
  heed::rows<double> out = attended;
  for (size_type e = 0; e < num_experts; ++e) {
    const expert<double>& mine = w.experts[std::size_t(e)];
    out += share.col(e).asDiagonal() *
           (swiglu<double>(again * mine.gate, again * mine.up) * mine.down);
  }
  return out;
}

template <typename Call>
double time_of(const Call& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  using heed::size_type;  // not the one of <strings.h>
  bool quick = false;
  support::command_line command(
      "05_mixture_of_experts",
      "a transformer block with grouped-query attention and routed experts, counted and checked");
  command.flag("--quick", "fewer tokens", quick);
  if (const auto status = command.parse(argc, argv)) return *status;

  std::mt19937 bits(7);
  const block<float> weights = draw_block(bits);
  const size_type n = quick ? 128 : 1024;
  const heed::rows<float> x = std::sqrt(float(n)) * draw(n, d_model, bits);
  std::vector<size_type> counts;
  heed::rows<float> attended, out;
  attend(weights, x);
  const double attention_time = time_of([&] { attended = attend(weights, x); }),
               expert_time = time_of([&] { out = think(weights, attended, counts); });
  const block<double> wide = weights.in_double();
  const heed::rows<double> want = plain_block(wide, x.cast<double>());

  std::cout << "\n"
            << n << " tokens, d_model " << d_model << ", " << num_heads << " heads on "
            << num_kv_heads << " key/value heads, " << chosen << " of " << num_experts
            << " experts a token.\n\n";
  support::table table({"expert", "tokens", "share", ""});
  size_type routed = 0;
  for (size_type e = 0; e < num_experts; ++e) {
    const size_type count = counts[std::size_t(e)];
    const std::string bar(std::size_t(40 * count * num_experts / (2 * n * chosen)), '#');
    table.add({std::to_string(e), std::to_string(count),
               support::fixed(100.0 * double(count) / double(n * chosen), 1) + " %",
               bar + std::string(40 - (std::min)(bar.size(), std::size_t(40)), ' ')});
    routed += count;
  }
  table.print(std::cout);

  const double shared = double((2 * num_heads + 2 * num_kv_heads) * head_dim * d_model +
                               d_model * num_experts),
               one = 3.0 * d_model * hidden;
  std::cout << "\nParameters: " << support::fixed((shared + num_experts * one) / 1e6, 2)
            << " million, of which a token uses "
            << support::fixed((shared + chosen * one) / 1e6, 2) << " million.\nAttention took "
            << support::seconds(attention_time) << ", the experts " << support::seconds(expert_time)
            << ".\n";
  const double largest = want.cwiseAbs().maxCoeff(),
               difference = (out.cast<double>() - want).cwiseAbs().maxCoeff();
  std::cout
      << "Largest difference from the plain block in double, where every expert sees every token: "
      << support::scientific(difference) << " (numbers up to " << support::fixed(largest, 1)
      << ").\n";
  // The longest sums have hidden = 512 terms, five of them one after the other: 5 * 512 * 2^-24 of
  // the largest number bounds their rounding.
  return routed == n * chosen && difference < 5.0 * hidden * 0x1p-24 * largest ? 0 : 1;
}
