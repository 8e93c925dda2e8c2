// Sparse attention with an indexer: a cheap score for every key in few dimensions, the best k of
// them, and attention to these alone (DeepSeek-AI 2025).

#include <heed/heed.hpp>

#include "support/command_line.hpp"
#include "support/table.hpp"

#include <algorithm>
#include <iostream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

using heed::size_type;
using matrix = heed::rows<float>;

constexpr size_type heads = 8, d = 64, index_dim = 24;

matrix normal(size_type n, size_type cols, std::mt19937& engine) {
  std::normal_distribution<float> distribution;
  matrix m(n, cols);
  for (size_type c = 0; c < m.size(); ++c) m.data()[c] = distribution(engine);
  return m;
}

/// A text of `n` tokens whose last `n_q` ask: a token is about one of some topics, and each head of
/// a query looks for the topic of its token, in its own way and more or less sharply. All heads
/// share keys and values, as in latent attention.
struct layer {
  matrix query, key, value;  // n_q x (heads * d), n x d, n x d

  layer(size_type n, size_type n_q, std::mt19937& engine) {
    const size_type topics = 64;
    const matrix topic = normal(topics, d, engine);
    key = normal(n, d, engine);
    value = normal(n, d, engine);
    query = normal(n_q, heads * d, engine);
    for (size_type j = 0; j < n; ++j) {
      const size_type about = static_cast<size_type>(engine() % topics);
      key.row(j) += topic.row(about);
      for (size_type h = 0; h < heads && j >= n - n_q; ++h)
        query.row(j - (n - n_q)).segment(h * d, d) += (0.7f + 0.1f * float(h)) * topic.row(about);
    }
  }
};

/// score_i(j) = sum over heads of w_h ReLU(q_h . k_j), on the queries and keys of the layer in a
/// few random dimensions. (A model trains this projection, and w.)
class indexer {
 public:
  indexer(const layer& x, std::mt19937& engine) {
    const matrix projection = normal(d, index_dim, engine);
    key_ = x.key * projection;
    query_ = matrix(x.query.rows(), heads * index_dim);
    for (size_type h = 0; h < heads; ++h)
      query_.middleCols(h * index_dim, index_dim) = x.query.middleCols(h * d, d) * projection;
  }
  /// The k best keys of each query, k x n_q; -1 where it has fewer.
  Eigen::MatrixXi best(size_type k) const {
    const size_type n_q = query_.rows(), before = key_.rows() - n_q;
    const float weight = 1.0f / float(heads);
    Eigen::MatrixXi lists = Eigen::MatrixXi::Constant(k, n_q, -1);
    std::vector<int> keys;
    for (size_type i = 0; i < n_q; ++i) {
      const size_type seen = before + i + 1;  // causal
      Eigen::VectorXf score = Eigen::VectorXf::Zero(seen);
      for (size_type h = 0; h < heads; ++h)
        score += weight *
                 (key_.topRows(seen) * query_.row(i).segment(h * index_dim, index_dim).transpose())
                     .cwiseMax(0.0f);
      keys.resize(static_cast<std::size_t>(seen));
      std::iota(keys.begin(), keys.end(), 0);
      const auto some = keys.begin() + (std::min)(k, seen);
      std::nth_element(keys.begin(), some - 1, keys.end(),
                       [&](int a, int b) { return score(a) > score(b); });
      std::copy(keys.begin(), some, lists.col(i).data());
    }
    return lists;
  }

 private:
  matrix query_, key_;
};

/// Attention of all heads, and the log-sum-exp of each row.
struct result {
  matrix out, lse;

  template <typename... Terms>
  result(const layer& x, const heed::attention_options& options, const Terms&... terms)
      : out(x.query.rows(), heads * d), lse(x.query.rows(), heads) {
    heed::workspace memory;
    heed::packed_multi_head_attention_into(x.query, x.key, x.value, {heads, 1}, out, lse, options,
                                           memory, terms...);
  }
  /// The share of all weight that the keys of this have: exp(own lse - lse of all).
  double caught(const result& all) const { return double((lse - all.lse).array().exp().mean()); }
  double error(const result& all) const { return double((out - all.out).norm() / all.out.norm()); }
};

std::string percent(double share) { return support::fixed(100 * share, 1) + " %"; }

}  // namespace

int main(int argc, char** argv) {
  bool quick = false;
  support::command_line command("14_selected_keys",
                                "attention to the keys that an indexer selects, against all keys");
  command.flag("--quick", "a shorter text", quick);
  if (const auto status = command.parse(argc, argv)) return *status;

  const size_type n = quick ? 512 : 16384, n_q = quick ? 16 : 128;
  std::mt19937 engine(1);
  const layer x(n, n_q, engine);
  const indexer index(x, engine);
  heed::attention_options causal;
  causal.causal = heed::causal::bottom_right;
  const result all(x, causal);

  std::cout << "A text of " << n << " tokens; its last " << n_q << " attend with " << heads
            << " heads of " << d << " that share their keys. The indexer has " << heads
            << " heads of " << index_dim << ".\n\n";
  support::table table{{"keys", "of all", "weight caught", "error", "by the latest keys", "error"}};
  double most = 0;
  for (size_type k = n / 64; k <= n; k *= 2) {
    const result selected(x, causal, heed::selected_keys(index.best(k)));
    heed::attention_options window = causal;
    window.window_left = k - 1;
    const result latest(x, window);
    table.add({std::to_string(k), percent(double(k) / double(n)), percent(selected.caught(all)),
               percent(selected.error(all)), percent(latest.caught(all)),
               percent(latest.error(all))});
    most = selected.error(all);
  }
  table.print(std::cout);
  std::cout << "\nWeight caught: how much of the softmax over all keys falls on the selected ones, "
               "on average over queries and heads.\nError: of the output, relative to that of "
               "attention to all keys.\n";
  return most < 1e-5 ? 0 : 1;  // in the last line all keys are selected
}
