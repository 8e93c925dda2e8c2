// What holds for the functions of a user on every path: for which pairs they are called, and what
// becomes of their exceptions.

#include <heed/heed.hpp>

#include <array>
#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support/example.hpp"
#include "support/isas.hpp"

namespace {

/// Two sequences of two heads that share one key/value head.
struct batch_of_two {
  heed::size_type n_q, n_kv;
  heed::rows<float> query, key, value, out;

  batch_of_two(heed::size_type queries, heed::size_type keys)
      : n_q(queries),
        n_kv(keys),
        query(testing::random_rows<float>(4 * n_q, 8, 1)),
        key(testing::random_rows<float>(2 * n_kv, 8, 2)),
        value(testing::random_rows<float>(2 * n_kv, 4, 3)),
        out(4 * n_q, 4) {}

  auto queries() const { return heed::bhnd(query.data(), 2, 2, n_q, 8); }
  auto keys() const { return heed::bhnd(key.data(), 2, 1, n_kv, 8); }
  auto values() const { return heed::bhnd(value.data(), 2, 1, n_kv, 4); }
  auto outs() { return heed::bhnd(out.data(), 2, 2, n_q, 4); }

  /// The gradients, of any results.
  template <typename... Terms>
  void backward(const heed::attention_options& options, heed::workspace& memory,
                const Terms&... terms) {
    const heed::rows<float> lse = heed::rows<float>::Zero(4 * n_q, 1);
    heed::rows<float> dq(4 * n_q, 8), dk(2 * n_kv, 8), dv(2 * n_kv, 4);
    out.setZero();
    heed::multi_head_attention_backward_into(
        queries(), keys(), values(), outs(), heed::bhnd(lse.data(), 2, 2, n_q, 1), outs(),
        heed::bhnd(dq.data(), 2, 2, n_q, 8), heed::bhnd(dk.data(), 2, 1, n_kv, 8),
        heed::bhnd(dv.data(), 2, 1, n_kv, 4), options, memory, terms...);
  }
};

/// Counts the pairs that it is called for and those of them that it should not be. `first_key` and
/// `first_query` are the numbers, within the sequence, of the call's first key and query.
struct record {
  heed::attention_options options;
  std::array<heed::size_type, 2> n_q, n_kv, first_key;
  bool tokens = false;  // in a cache i and j count tokens of the sequence
  mutable std::atomic<long> asked{0}, hidden{0};

  void look(heed::size_type b, heed::size_type i, heed::size_type j) const {
    const std::size_t s = static_cast<std::size_t>(b);
    const heed::size_type offset = options.causal == heed::causal::top_left ? 0 : n_kv[s] - n_q[s];
    const heed::size_type key = j - first_key[s], query = i - first_key[s] - (tokens ? offset : 0);
    const heed::size_type distance = query + offset - key;
    const bool seen = query >= 0 && query < n_q[s] && key >= 0 && key < n_kv[s] &&
                      (options.causal == heed::causal::none || distance >= 0) &&
                      (options.window_left < 0 || distance <= options.window_left) &&
                      (options.window_right < 0 || -distance <= options.window_right);
    ++asked;
    if (!seen) ++hidden;
  }
};

/// Runs call(terms...) with one user function after the other.
template <typename Call>
void check_asked(record& r, const Call& call) {
  const auto same = [&](float score, heed::size_type b, heed::size_type, heed::size_type i,
                        heed::size_type j) {
    r.look(b, i, j);
    return score;
  };
  const auto all = [&](heed::size_type b, heed::size_type, heed::size_type i, heed::size_type j) {
    r.look(b, i, j);
    return true;
  };
  const auto derivative = [&](float, heed::size_type b, heed::size_type, heed::size_type i,
                              heed::size_type j) {
    r.look(b, i, j);
    return 1.0f;
  };
  r.asked = r.hidden = 0;
  call(heed::score_function(same, derivative));  // the derivative: of a backward call alone
  CHECK(r.hidden == 0);
  const long asked = r.asked;
  call(heed::mask_function(all));
  CHECK(r.hidden == 0);
  CHECK((asked == 0) == (r.asked == 0));
}

/// Calls check(options) with every kind of band.
template <typename Check>
void for_each_band(const Check& check) {
  for (const heed::causal causal :
       {heed::causal::none, heed::causal::top_left, heed::causal::bottom_right})
    for (const heed::size_type left : {-1, 0, 20})
      for (const heed::size_type right : {-1, 3}) {
        heed::attention_options options;
        options.causal = causal;
        options.window_left = left;
        options.window_right = right;
        CAPTURE(int(causal), left, right);
        check(options);
      }
}

}  // namespace

TEST_CASE("functions are called only for pairs that position and lengths leave visible") {
  heed::workspace memory;
  for (const heed::size_type n_q : {1, 7, 70, 300})
    for (const heed::size_type n_kv : {5, 300, 2100}) {
      batch_of_two e(n_q, n_kv);
      const std::vector<heed::size_type> lengths{n_kv, n_kv / 2};
      for_each_band([&](const heed::attention_options& options) {
        record r{options, {n_q, n_q}, {n_kv, n_kv / 2}, {0, 0}};
        CAPTURE(n_q, n_kv);
        for (const heed::isa target : testing::isas()) {
          heed::attention_options on = options;
          on.execution.target = target;
          CAPTURE(testing::name_of(target));
          check_asked(r, [&](const auto& term) {
            heed::multi_head_attention_into(e.queries(), e.keys(), e.values(), e.outs(), {}, on,
                                            memory, heed::key_lengths(lengths), term);
          });
          if (n_q * n_kv <= 300 * 300)
            check_asked(r, [&](const auto& term) {
              e.backward(on, memory, heed::key_lengths(lengths), term);
            });
        }
        if (n_q * n_kv > 70 * 300) return;
        check_asked(r, [&](const auto& term) {
          heed::reference_multi_head_attention_into(e.queries(), e.keys(), e.values(), e.outs(), {},
                                                    options, heed::key_lengths(lengths), term);
        });
        // one head
        record one{options, {n_q, 0}, {n_kv, 0}, {0, 0}};
        const heed::rows<float> query = e.query.topRows(n_q), key = e.key.topRows(n_kv),
                                value = e.value.topRows(n_kv);
        check_asked(one, [&](const auto& term) {
          heed::streaming_attention(query, key, value, options, term);
        });
        check_asked(one, [&](const auto& term) {
          heed::attention_with_weights(query, key, value, options, term);
        });
      });
    }
}

TEST_CASE("functions are called only for pairs of their sequence in a ragged batch") {
  heed::workspace memory;
  const std::vector<heed::size_type> query_starts{0, 70, 71}, key_starts{0, 300, 1100};
  const heed::rows<float> query = testing::random_rows<float>(2 * 71, 8, 1),
                          key = testing::random_rows<float>(1100, 8, 2),
                          value = testing::random_rows<float>(1100, 4, 3);
  heed::rows<float> out(2 * 71, 4);
  for_each_band([&](const heed::attention_options& options) {
    record r{options, {70, 1}, {300, 800}, {0, 0}};
    check_asked(r, [&](const auto& term) {
      heed::ragged_attention_into(
          heed::bhnd(query.data(), 1, 2, 71, 8), heed::bhnd(key.data(), 1, 1, 1100, 8),
          heed::bhnd(value.data(), 1, 1, 1100, 4), heed::bhnd(out.data(), 1, 2, 71, 4), {},
          query_starts, key_starts, options, memory, term);
    });
  });
}

TEST_CASE("functions are called only for visible tokens of a cache, a rolling one too") {
  heed::workspace memory;
  const heed::size_type window = 40;
  for (const bool rolls : {false, true})
    for (const heed::size_type n : {1, 7, 70}) {
      heed::kv_cache<float> cache(2, 1, 8, 4, 64, rolls ? window : -1);
      batch_of_two e(n, n);
      const auto append = [&](heed::size_type b, heed::size_type times) {
        const heed::rows<float> key = e.key.topRows(n), value = e.value.topRows(n);
        for (heed::size_type t = 0; t < times; ++t)
          cache.append(b, heed::view(key), heed::view(value));
      };
      append(0, 300 / n);
      append(1, 2);
      for_each_band([&](const heed::attention_options& options) {
        if (options.causal != heed::causal::bottom_right) return;
        if (rolls && options.window_left < 0) return;
        record r{options,
                 {n, n},
                 {cache.length(0), cache.length(1)},
                 {cache.dropped()[0], cache.dropped()[1]}};
        r.tokens = true;
        CAPTURE(rolls, n);
        check_asked(r, [&](const auto& term) {
          heed::cached_attention_into(e.queries(), cache, e.outs(), {}, options, memory, term);
        });
        check_asked(r, [&](const auto& term) {
          heed::reference_cached_attention_into(e.queries(), cache, e.outs(), {}, options, term);
        });
      });
    }
}

TEST_CASE("what a function throws reaches the caller, who can go on") {
  const int threads = GENERATE(1, 2);
  const heed::size_type n_q =
      GENERATE(heed::size_type(1), heed::size_type(100));  // decoding; blocks of queries
  const heed::size_type n_kv = 700;
  const testing::example<float> e(n_q, n_kv, 8, 4);
  heed::attention_options options;
  options.execution.threads = threads;
  options.causal = heed::causal::bottom_right;
  std::atomic<heed::size_type> limit{n_kv / 2};
  const auto bend = [&](float score, heed::size_type, heed::size_type, heed::size_type,
                        heed::size_type j) {
    if (j >= limit) throw std::out_of_range("score of key " + std::to_string(j));
    return score / 2;
  };
  const auto odd = [&](heed::size_type, heed::size_type, heed::size_type, heed::size_type j) {
    if (j >= limit) throw std::out_of_range("mask of key " + std::to_string(j));
    return j % 2 == 1;
  };
  heed::workspace memory;
  heed::rows<float> out(n_q, 4);
  heed::row_vector<float> lse(n_q);

  const auto check = [&](const auto& run) {
    const auto check_with = [&](const auto& term, const char* whose) {
      limit = n_kv;
      const heed::rows<float> right = run(term);
      limit = n_kv / 2;
      CHECK_THROWS_WITH(run(term), ContainsSubstring(whose));
      CHECK_THROWS_AS(run(term), std::out_of_range);
      limit = n_kv;
      CHECK(run(term) == right);
    };
    check_with(heed::score_function(bend), "score of key ");
    check_with(heed::mask_function(odd), "mask of key ");
  };
  SECTION("attention") {
    check(
        [&](const auto& term) { return heed::attention(e.query, e.key, e.value, options, term); });
  }
  SECTION("attention_into") {
    check([&](const auto& term) {
      heed::attention_into(e.query, e.key, e.value, out, lse, options, memory, term);
      return out;
    });
  }
  SECTION("the reference") {
    check([&](const auto& term) {
      return heed::reference_attention(e.query, e.key, e.value, options, term);
    });
  }
  SECTION("the streaming form") {
    check([&](const auto& term) {
      return heed::streaming_attention(e.query, e.key, e.value, options, term);
    });
  }
  SECTION("weights") {
    const heed::row_vector<float> any = heed::row_vector<float>::Zero(n_q);
    check([&](const auto& term) {
      return heed::attention_weights(e.query, e.key, any, 0, n_q, options, term);
    });
  }
  SECTION("a ragged batch") {
    const std::vector<heed::size_type> query_starts{0, n_q}, key_starts{0, n_kv};
    check([&](const auto& term) {
      heed::ragged_attention_into(heed::view(e.query), heed::view(e.key), heed::view(e.value),
                                  heed::writable_view(out), heed::writable_view(lse), query_starts,
                                  key_starts, options, memory, term);
      return out;
    });
  }
  SECTION("a cache, which stays as it is") {
    heed::kv_cache<float> cache(1, 1, 8, 4);
    cache.append(heed::view(e.key), heed::view(e.value));
    check([&](const auto& term) {
      heed::cached_attention_into(heed::view(e.query), cache, heed::writable_view(out), {}, options,
                                  memory, term);
      return out;
    });
    CHECK(cache.length(0) == n_kv);
  }
}
