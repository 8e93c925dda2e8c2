#include "../catch.hpp"
#include "decoder.hpp"
#include "model_at_hand.hpp"
#include "session.hpp"

#include <heed/kv_cache.hpp>
#include <heed/paged_kv_cache.hpp>
#include <heed/weights.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace smollm2 {
namespace {

const model& smollm() {
  static const model made(gguf_file(gguf_file::read(model_file()), "model"));
  return made;
}

token likeliest(const Eigen::VectorXf& logits) {
  size_type best = 0;
  logits.maxCoeff(&best);
  return token(best);
}

}  // namespace

TEST_CASE("Greedy answers and logits are those of float64") {
  if (!model_at_hand()) return;
  for (const char* const name : {"plain_capital", "plain_story", "plain_unicode", "chat_capital",
                                 "chat_poem", "chat_long"}) {
    const auto example = right_answers(name);
    CAPTURE(name);
    session s(smollm(), cache_type::float32, 1);
    Eigen::VectorXf logits = s.read(example["prompt_ids"].get<std::vector<token>>());
    for (const auto& top : example["top5_last_prompt"])
      CHECK(std::abs(logits(top[0].get<size_type>()) - top[1].get<float>()) < 1e-3f);
    std::vector<token> answer;
    for (std::size_t i = 0; i < 32; ++i) {
      answer.push_back(likeliest(logits));
      CHECK(std::abs(logits(answer.back()) - example["greedy_top1_logit"][i].get<float>()) < 1e-3f);
      logits = s.read({answer.back()});
    }
    CHECK(answer == example["greedy_ids"].get<std::vector<token>>());
  }
}

TEST_CASE("Caches of fewer bits choose the same tokens where the choice is clear") {
  if (!model_at_hand()) return;
  for (const char* const name : {"plain_unicode", "chat_poem", "chat_long"}) {
    const auto example = right_answers(name);
    for (const cache_type type : {cache_type::bfloat16, cache_type::int8, cache_type::int8_block}) {
      CAPTURE(name, int(type));
      session s(smollm(), type, 1);
      Eigen::VectorXf logits = s.read(example["prompt_ids"].get<std::vector<token>>());
      int clear = 0;
      for (std::size_t i = 0; i < 32; ++i) {
        const token right = example["greedy_ids"][i].get<token>();
        if (example["greedy_margins"][i].get<double>() > 0.2) {
          CHECK(likeliest(logits) == right);
          ++clear;
        }
        logits = s.read({right});
      }
      CHECK(clear > 10);
    }
  }
}

TEST_CASE("The first layer's attention has the right numbers") {
  if (!model_at_hand()) return;
  const auto example = right_answers("attn_layer0");
  const std::string text = example["text"];
  const tokenizer words(gguf_file(gguf_file::read(model_file()), "model"));
  session s(smollm(), cache_type::float32, 1);
  // A float has 2^-24 of a value; sums of 576 products of weights and inputs lose a little more.
  // The file has 7 digits.
  const auto close = [&](const char* field, double got, const nlohmann::json& data,
                         std::size_t at) {
    const double want = data[at].get<double>();
    INFO(field << "[" << at << "]: " << got << " instead of " << want);
    CHECK(std::abs(got - want) < 2e-5 * (1 + std::abs(want)));
  };
  bool looked = false;
  s.watch([&](const attention_step& step) {
    if (step.layer != 0) return;
    looked = true;
    const auto check_heads = [&](const char* field, const heed::tensor_view<const float>& view) {
      const auto& data = example[field]["data"];
      REQUIRE(data.size() == std::size_t(view.rows * view.heads * view.cols));
      std::size_t at = 0;
      for (size_type i = 0; i < view.rows; ++i)
        for (size_type h = 0; h < view.heads; ++h)
          for (size_type c = 0; c < view.cols; ++c)
            close(field, double(view(0, h, i, c)), data, at++);
    };
    const auto check_matrix = [&](const char* field, const matrix& m) {
      check_heads(field, {m.data(), 1, 1, m.rows(), m.cols(), 0, 0, m.cols(), 1});
    };
    check_matrix("attn_in", step.input);
    check_heads("q", step.query);
    check_heads("k", step.key);
    check_heads("v", step.value);
    check_heads("attn_out_heads", step.out);
    check_matrix("attn_out_proj", step.projected);

    heed::attention_options options;
    options.causal = heed::causal::bottom_right;
    std::size_t at = 0;
    for (size_type h = 0; h < step.query.heads; ++h) {
      using heads_map = Eigen::Map<const matrix, 0, Eigen::OuterStride<>>;
      const auto map = [&](const heed::tensor_view<const float>& view, size_type head) {
        return heads_map(view.data + head * view.head_stride, view.rows, view.cols,
                         Eigen::OuterStride<>(view.row_stride));
      };
      const size_type kv = h / (step.query.heads / step.key.heads);
      const auto seen = heed::attention_with_weights(map(step.query, h), map(step.key, kv),
                                                     map(step.value, kv), options);
      for (size_type i = 0; i < seen.weights.rows(); ++i)
        for (size_type j = 0; j < seen.weights.cols(); ++j)
          close("attn_weights", double(seen.weights(i, j)), example["attn_weights"]["data"], at++);
    }
  });
  s.read(words.encode(text));
  CHECK(looked);
}

TEST_CASE("Chunks, threads and reading token by token change nothing that matters") {
  if (!model_at_hand()) return;
  const auto ids = right_answers("chat_poem")["prompt_ids"].get<std::vector<token>>();
  session whole(smollm(), cache_type::float32, 1), threaded(smollm(), cache_type::float32, 3),
      single(smollm(), cache_type::float32, 1);
  const Eigen::VectorXf logits = whole.read(ids);
  CHECK(threaded.read(ids) == logits);
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) single.read({ids[i]});
  CHECK((single.read({ids.back()}) - logits).cwiseAbs().maxCoeff() < 1e-3f);
  CHECK(whole.position() == size_type(ids.size()));
  CHECK_THROWS_WITH(whole.read({}), "there is nothing to read");
  CHECK_THROWS_WITH(whole.read({49152}), "there is no token 49152");
  CHECK_THROWS_WITH(whole.read(std::vector<token>(8192, 1)),
                    ContainsSubstring("the model's context has 8192"));
}

TEST_CASE("A sequence in a batch gets the logits that it gets alone, to the bit") {
  if (!model_at_hand()) return;
  const model_config& c = smollm().config();
  const auto ids = right_answers("chat_poem")["prompt_ids"].get<std::vector<token>>();
  const auto part = [&](std::ptrdiff_t from, std::ptrdiff_t to) {
    return std::vector<token>(ids.begin() + from, ids.begin() + to);
  };
  // Chunks of many tokens and of few, with one that asks nothing, and a fork that goes on
  // otherwise.
  const std::vector<std::vector<next_tokens>> steps{
      {{0, part(0, 20), false}},
      {{0, part(20, 21)}, {1, part(0, 30)}, {2, part(7, 10)}},
      {{3, part(3, 8)}, {2, part(10, 30), false}, {1, part(30, 31)}, {0, part(21, 22)}}};
  decoder together(smollm(), 2);
  std::vector<heed::paged_kv_cache<Eigen::bfloat16>> pages;
  for (size_type l = 0; l < c.layers; ++l) {
    pages.emplace_back(24, 8, c.kv_heads, c.head_dim, c.head_dim);
    for (int s = 0; s < 3; ++s) pages.back().add_sequence();
  }
  std::vector<matrix> logits;
  for (const std::vector<next_tokens>& step : steps) {
    if (&step == &steps.back())
      for (auto& layer : pages) layer.fork(0);  // sequence 3
    logits.push_back(together.read(step, pages));
  }
  REQUIRE(logits[0].rows() == 0);
  REQUIRE(logits[2].rows() == 3);

  for (size_type s = 0; s < 4; ++s) {
    decoder single(smollm(), 1);
    std::vector<heed::kv_cache<Eigen::bfloat16>> caches(
        std::size_t(c.layers),
        heed::kv_cache<Eigen::bfloat16>(1, c.kv_heads, c.head_dim, c.head_dim));
    for (std::size_t i = 0; i < steps.size(); ++i) {
      size_type row = 0;
      for (const next_tokens& next : steps[i]) {
        const bool inherited = s == 3 && next.sequence == 0 && i < 2;
        if (next.sequence == s || inherited) {
          CAPTURE(s, i);
          const matrix& right = single.read({{0, next.tokens, next.asks}}, caches);
          if (next.asks) CHECK((right.row(0) == logits[i].row(row)));
        }
        row += next.asks ? 1 : 0;
      }
    }
  }
}

}  // namespace smollm2
