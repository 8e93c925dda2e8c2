#pragma once

#include "decoder.hpp"
#include "language_model.hpp"
#include "session.hpp"
#include "stopwatch.hpp"
#include "tokenizer.hpp"

#include "../support/table.hpp"

#include <heed/cached_attention.hpp>
#include <heed/kv_cache.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace smollm2 {

/// By how much a layer's attention is off with keys and values stored like that, relative to what
/// it made of floats, in the Frobenius norm.
template <typename Stored>
double stored_error(const attention_step& exact) {
  const heed::tensor_view<const float>& q = exact.query;
  heed::kv_cache<Stored> cache(1, exact.key.heads, q.cols, q.cols, q.rows);
  cache.append(exact.key, exact.value);
  matrix out(q.rows, q.heads * q.cols);
  const heed::tensor_view<float> to = heed::bnhd(out.data(), 1, q.rows, q.heads, q.cols);
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  heed::workspace memory;
  heed::ragged_cached_attention_into(q, cache, to, {}, std::vector<size_type>{0, q.rows}, options,
                                     memory);
  double off = 0, all = 0;
  for (size_type h = 0; h < q.heads; ++h)
    for (size_type i = 0; i < q.rows; ++i)
      for (size_type c = 0; c < q.cols; ++c) {
        const double right = double(exact.out(0, h, i, c));
        off += std::pow(double(to(0, h, i, c)) - right, 2), all += right * right;
      }
  return std::sqrt(off / all);
}

/// What a text costs a model with each type of cache: the bytes of a token, the error of a layer
/// whose inputs are those with a cache of float (mean over the layers), the negative log-likelihood
/// of a token, and the time to read one.
inline support::table compare_caches(const language_model& m, const std::vector<token>& text,
                                     int threads) {
  std::array<double, cache_names.size()> errors{};
  session exact(m.layers, cache_type::float32, threads);
  exact.watch([&](const attention_step& step) {
    const std::array<double, cache_names.size()> here{0,
                                                      stored_error<Eigen::bfloat16>(step),
                                                      stored_error<heed::float8_e4m3>(step),
                                                      stored_error<std::int8_t>(step),
                                                      stored_error<heed::int8_block>(step),
                                                      stored_error<heed::int4_block>(step)};
    for (std::size_t i = 0; i < here.size(); ++i)
      errors[i] += here[i] / double(m.layers.config().layers);
  });
  exact.read(
      {text.begin(), text.begin() + (std::min)(std::ptrdiff_t(text.size()), std::ptrdiff_t(512))});

  support::table table({"cache", "bytes a token", "error of a layer", "nats a token",
                        "more than float", "time a token"});
  double with_float = 0;
  for (std::size_t i = 0; i < cache_names.size(); ++i) {
    session reader(m.layers, cache_type(i), threads);
    double surprise = 0;
    const stopwatch time;
    for (std::size_t t = 0; t + 1 < text.size(); ++t) {
      const Eigen::ArrayXd logits = reader.read({text[t]}).cast<double>().array();
      const double largest = logits.maxCoeff();
      surprise += largest + std::log((logits - largest).exp().sum()) - logits(text[t + 1]);
    }
    const double tokens = double(text.size() - 1);
    if (i == 0) with_float = surprise;
    table.add({cache_names[i], std::to_string(reader.token_bytes()), support::scientific(errors[i]),
               support::fixed(surprise / tokens, 4),
               support::fixed((surprise - with_float) / tokens, 4),
               support::seconds(time.seconds() / tokens)});
  }
  return table;
}

}  // namespace smollm2
