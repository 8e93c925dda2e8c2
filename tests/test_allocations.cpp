// The promise of every call that writes into the caller's memory: it allocates nothing once its
// workspace has grown; and what …_workspace_bytes says of it: all that it takes.

#include "support/allocations_of.hpp"

#include <heed/backward.hpp>
#include <heed/causal_conv.hpp>
#include <heed/delta_rule.hpp>
#include <heed/linear_attention.hpp>
#include <heed/multi_head.hpp>
#include <heed/paged_kv_cache.hpp>
#include <heed/position.hpp>
#include <heed/projection.hpp>
#include <heed/projection_backward.hpp>
#include <heed/ragged.hpp>
#include <heed/rwkv7.hpp>
#include <heed/selective_scan.hpp>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "support/isas.hpp"
#include "support/refusal.hpp"
#include "support/tokens.hpp"

using testing::allocations_of;

namespace {

/// Two workers: the caller's thread, and one that is there from the beginning.
class standing_executor : public heed::executor {
 public:
  standing_executor() : thread_([this] { serve(); }) {}
  ~standing_executor() override {
    give(nullptr, nullptr, true);
    thread_.join();
  }
  int workers() const override { return 2; }
  void run(int workers, work_function work, void* context) override {
    REQUIRE(workers == 2);
    give(work, context, false);
    work(context, 0);
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return !work_; });
  }

 private:
  void give(work_function work, void* context, bool last) {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_ = work, context_ = context, last_ = last;
    changed_.notify_all();
  }
  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return work_ || last_; });
      if (last_) return;
      lock.unlock();
      work_(context_, 1);
      lock.lock();
      work_ = nullptr;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  work_function work_ = nullptr;
  void* context_ = nullptr;
  bool last_ = false;
  std::thread thread_;
};
standing_executor two_workers;

/// call(options, memory) on one worker and on two: nothing is allocated the second time.
template <typename Options, typename Call>
void check_call(Options options, const Call& call) {
  for (heed::executor* const executor :
       {static_cast<heed::executor*>(nullptr), static_cast<heed::executor*>(&two_workers)}) {
    CAPTURE(executor != nullptr);
    options.execution.executor = executor;
    heed::workspace memory;
    call(options, memory);
    const heed::size_type grown = memory.capacity();
    CHECK(allocations_of([&] { call(options, memory); }) == 0);
    CHECK(memory.capacity() == grown);
  }
}
/// The same, and bytes(options) are what an empty workspace grows to; one that has them does not
/// grow.
template <typename Options, typename Call, typename Bytes>
void check_call(Options options, const Call& call, const Bytes& bytes) {
  check_call(options, [&](const Options& on, heed::workspace& memory) {
    const bool first = memory.capacity() == 0;
    call(on, memory);
    if (!first) return;
    const heed::size_type said = bytes(on);
    CHECK(memory.capacity() == said);
    heed::workspace exact;
    exact.reserve(said);
    CHECK(allocations_of([&] { call(on, exact); }) == 0);
    CHECK(exact.capacity() == said);
  });
}

template <typename Scalar>
heed::tensor_view<Scalar> split(const heed::tensor_view<Scalar>& packed, heed::size_type heads,
                                heed::size_type batch = 1) {
  return heed::split_heads(packed, heads, batch);
}

const auto slower = [](float score, heed::size_type, heed::size_type, heed::size_type i,
                       heed::size_type j) { return score - 0.01f * float(i - j); };
const auto slower_double = [](double score, heed::size_type, heed::size_type, heed::size_type i,
                              heed::size_type j) { return score - 0.01 * double(i - j); };
template <typename Scalar>
const auto& slower_for() {
  if constexpr (std::is_same<Scalar, double>::value) {
    return slower_double;
  } else {
    return slower;
  }
}
const auto odd = [](heed::size_type, heed::size_type, heed::size_type i, heed::size_type j) {
  return (i + j) % 3 != 0;
};

}  // namespace

TEMPLATE_TEST_CASE(
    "attention on tensors allocates nothing once its workspace has grown, whatever its terms", "",
    float, double, Eigen::bfloat16, Eigen::half) {
  using Acc = heed::accumulator_t<TestType>;
  const heed::size_type batch = 2, heads = 4, kv_heads = 2, d_k = 24, d_v = 16;
  for (const heed::size_type n_kv : {40, 2100})
    for (const heed::size_type n_q : {1, 5, 70}) {
      const auto query = testing::random_rows<TestType>(batch * n_q, heads * d_k, 1),
                 key = testing::random_rows<TestType>(batch * n_kv, kv_heads * d_k, 2),
                 value = testing::random_rows<TestType>(batch * n_kv, kv_heads * d_v, 3);
      heed::rows<TestType> out(batch * n_q, heads * d_v);
      heed::row_vector<Acc> lse(batch * heads * n_q);
      const auto bias = testing::random_rows<Acc>(n_q, n_kv, 4);
      const auto near_keys = testing::random_rows<Acc>(40, d_k, 6),
                 near_values = testing::random_rows<Acc>(40, d_v, 7);
      const auto keep = testing::random_mask(n_q, n_kv, 5);
      const std::vector<std::uint8_t> bytes(std::size_t(n_q * n_kv), 1),
          bits(std::size_t(n_q * ((n_kv + 7) / 8)), 0xb5);
      const heed::row_vector<Acc> slopes = heed::alibi_slopes<Acc>(heads),
                                  ones = heed::row_vector<Acc>::Constant(heads, Acc(1));
      const std::vector<heed::size_type> lengths{n_kv / 2, n_kv}, rows{n_q / 2, n_q};
      heed::row_vector<Acc> largest(heads);
      const heed::block_mask blocks = heed::block_mask::of(odd, 1, 1, n_q, n_kv, 16, 64);
      for (const std::string form : {"dense",          "side by side",   "lse",
                                     "causal",         "window",         "softcap",
                                     "keep",           "keep bytes",     "keep_bits",
                                     "bias",           "alibi",          "sinks",
                                     "logit_scales",   "key_lengths",    "query_lengths",
                                     "first_keys",     "max_logits",     "blocks",
                                     "score_function", "mask_function",  "dropout",
                                     "relative",       "weight_function"}) {
        CAPTURE(n_q, n_kv, form);
        const auto is = [&](const char* name) { return form == name; };
        heed::attention_options options;
        if (is("causal")) options.causal = heed::causal::bottom_right;
        if (is("window")) options.window_left = 20, options.window_right = 3;
        if (is("softcap")) options.softcap = 5;
        const auto dense = [&](const auto& m, heed::size_type h, heed::size_type n,
                               heed::size_type d) {
          return is("dense") ? heed::bhnd(m.data(), batch, h, n, d)
                             : heed::bnhd(m.data(), batch, n, h, d);
        };
        const auto with_terms = [&](const auto& call) {
          return call(
              heed::when(is("keep"), heed::keep(keep)), heed::when(is("bias"), heed::bias(bias)),
              heed::when(is("keep_bits"),
                         heed::keep_bits(heed::bhnd(bits.data(), 1, 1, n_q, (n_kv + 7) / 8), n_kv)),
              heed::when(is("alibi"), heed::alibi(slopes)),
              heed::when(is("relative"), heed::relative_keys(near_keys, 30, 9)),
              heed::when(is("relative"), heed::relative_values(near_values, 9, 30)),
              heed::when(is("weight_function"), heed::weight_function(slower_for<TestType>())),
              heed::when(is("sinks"), heed::sinks(ones)),
              heed::when(is("logit_scales"), heed::logit_scales(ones)),
              heed::when(is("key_lengths"), heed::key_lengths(lengths)),
              heed::when(is("query_lengths"), heed::query_lengths(rows)),
              heed::when(is("first_keys"), heed::first_keys(lengths)),
              heed::when(is("max_logits"), heed::max_logits(largest)),
              heed::when(is("blocks"), heed::blocks(blocks)),
              heed::when(is("score_function"), heed::score_function(slower_for<TestType>())),
              heed::when(is("mask_function"), heed::mask_function(odd)),
              heed::when(is("dropout"), heed::dropout(0.3, 7)));
        };
        const auto q = dense(query, heads, n_q, d_k);
        const auto k = dense(key, kv_heads, n_kv, d_k);
        const auto v = dense(value, kv_heads, n_kv, d_v);
        const heed::tensor_view<TestType> o = heed::bnhd(out.data(), batch, n_q, heads, d_v);
        const auto l =
            is("lse") ? heed::bhnd(lse.data(), batch, heads, n_q, 1) : heed::tensor_view<Acc>{};
        check_call(
            options,
            [&](const auto& on, heed::workspace& memory) {
              with_terms([&](const auto&... terms) {
                heed::multi_head_attention_into(q, k, v, o, l, on, memory, terms...);
              });
            },
            [&](const auto& on) {
              return with_terms([&](const auto&... terms) {
                return heed::multi_head_attention_workspace_bytes(q, k, v, on, terms...);
              });
            });
        if (is("keep bytes"))
          check_call(options, [&](const auto& on, heed::workspace& memory) {
            heed::multi_head_attention_into(q, k, v, o, {}, on, memory,
                                            heed::keep(heed::bhnd(bytes.data(), 1, 1, n_q, n_kv)));
          });
      }
    }
}

TEMPLATE_TEST_CASE(
    "attention_into takes the bytes that attention_workspace_bytes says, on every instruction set",
    "", float, double, Eigen::bfloat16, Eigen::half) {
  for (const heed::isa target : testing::isas())
    for (const heed::size_type n_kv : {0, 1, 300, 5000})
      for (const heed::size_type n_q : {0, 1, 3, 100}) {
        CAPTURE(testing::name_of(target), n_q, n_kv);
        const testing::example<TestType> e(n_q, n_kv, 32, 24);
        const Eigen::Matrix<TestType, Eigen::Dynamic, Eigen::Dynamic> columns = e.key;
        heed::attention_result<TestType> result(n_q, 24);
        heed::attention_options options;
        options.execution.target = target;
        check_call(
            options,
            [&](const auto& on, heed::workspace& memory) {
              heed::attention_into(e.query, columns, e.value, result.out, result.lse, on, memory);
            },
            [&](const auto& on) {
              return heed::attention_workspace_bytes(e.query, columns, e.value, on);
            });
      }
  const testing::example<long double> e(3, 4, 8, 8);
  CHECK(heed::attention_workspace_bytes(e.query, e.key, e.value) == 0);
}

TEMPLATE_TEST_CASE(
    "the gradient allocates nothing once its workspace has grown, whatever its terms, and takes "
    "what multi_head_attention_backward_workspace_bytes says",
    "", float, double, Eigen::bfloat16, Eigen::half) {
  using Acc = heed::accumulator_t<TestType>;
  const heed::size_type batch = 2, heads = 4, kv_heads = 2, d_k = 24, d_v = 16;
  for (const heed::size_type n_kv : {0, 40, 300})
    for (const heed::size_type n_q : {0, 1, 130}) {
      const auto query = testing::random_rows<TestType>(batch * n_q, heads * d_k, 1),
                 key = testing::random_rows<TestType>(batch * n_kv, kv_heads * d_k, 2),
                 value = testing::random_rows<TestType>(batch * n_kv, kv_heads * d_v, 3),
                 grad_out = testing::random_rows<TestType>(batch * n_q, heads * d_v, 4);
      const Eigen::Matrix<TestType, Eigen::Dynamic, Eigen::Dynamic> columns = grad_out;
      heed::rows<TestType> out = grad_out, grad_query = query, grad_key = key, grad_value = value;
      Eigen::Matrix<TestType, Eigen::Dynamic, Eigen::Dynamic> grad_columns = query;
      const heed::rows<Acc> lse = heed::rows<Acc>::Zero(batch * n_q, heads);
      const auto bias = testing::random_rows<Acc>(n_q, n_kv, 5);
      heed::rows<Acc> grad_bias = bias;
      const auto keep = testing::random_mask(n_q, n_kv, 6);
      const heed::row_vector<Acc> ones = heed::row_vector<Acc>::Constant(heads, Acc(1));
      heed::row_vector<Acc> grad_of_heads = ones;
      const std::vector<heed::size_type> lengths{n_kv / 2, n_kv};
      const heed::block_mask blocks = heed::block_mask::of(odd, 1, 1, n_q, n_kv, 16, 64);
      const auto half = [](Acc, heed::size_type, heed::size_type, heed::size_type,
                           heed::size_type) { return Acc(1); };
      for (const std::string form : {"plain", "column-major", "causal", "softcap", "keep", "bias",
                                     "alibi", "sinks", "logit_scales", "grad_lse", "key_lengths",
                                     "blocks", "score_function", "mask_function", "dropout"}) {
        CAPTURE(n_q, n_kv, form);
        const auto is = [&](const char* name) { return form == name; };
        heed::attention_options options;
        if (is("causal")) options.causal = heed::causal::bottom_right;
        if (is("softcap")) options.softcap = 5;
        const auto with_arguments = [&](const auto& call) {
          using heed::view;
          using heed::when;
          using heed::writable_view;
          const auto apart = is("column-major");
          return call(
              split(view(query), heads, batch), split(view(key), kv_heads, batch),
              split(view(value), kv_heads, batch), split(writable_view(out), heads, batch),
              split(view(lse), heads, batch),
              split(apart ? view(columns) : view(grad_out), heads, batch),
              split(apart ? writable_view(grad_columns) : writable_view(grad_query), heads, batch),
              split(writable_view(grad_key), kv_heads, batch),
              split(writable_view(grad_value), kv_heads, batch), when(is("keep"), heed::keep(keep)),
              when(is("bias"), heed::bias(bias)), when(is("bias"), heed::grad_bias(grad_bias)),
              when(is("alibi"), heed::alibi(ones)),
              when(is("alibi"), heed::grad_alibi(grad_of_heads)),
              when(is("sinks"), heed::sinks(ones)),
              when(is("sinks"), heed::grad_sinks(grad_of_heads)),
              when(is("logit_scales"), heed::logit_scales(ones)),
              when(is("logit_scales"), heed::grad_logit_scales(grad_of_heads)),
              when(is("grad_lse"), heed::grad_lse(split(view(lse), heads, batch))),
              when(is("key_lengths"), heed::key_lengths(lengths)),
              when(is("blocks"), heed::blocks(blocks)),
              when(is("score_function"), heed::score_function(slower_for<TestType>(), half)),
              when(is("mask_function"), heed::mask_function(odd)),
              when(is("dropout"), heed::dropout(0.3, 7)));
        };
        check_call(
            options,
            [&](const auto& on, heed::workspace& memory) {
              with_arguments([&](const auto& q, const auto& k, const auto& v, const auto& o,
                                 const auto& l, const auto& g, const auto& dq, const auto& dk,
                                 const auto& dv, const auto&... terms) {
                heed::multi_head_attention_backward_into(q, k, v, o, l, g, dq, dk, dv, on, memory,
                                                         terms...);
              });
            },
            [&](const auto& on) {
              return with_arguments([&](const auto& q, const auto& k, const auto& v, const auto& o,
                                        const auto& l, const auto& g, const auto& dq,
                                        const auto& dk, const auto& dv, const auto&... terms) {
                return heed::multi_head_attention_backward_workspace_bytes(q, k, v, o, l, g, dq, dk,
                                                                           dv, on, terms...);
              });
            });
      }
    }
}

TEST_CASE("a ragged batch allocates nothing once its workspace has grown") {
  const heed::size_type heads = 4, kv_heads = 2, d = 16;
  const std::vector<std::int32_t> query_starts{0, 1, 1, 61, 65}, key_starts{0, 700, 700, 760, 2260};
  const auto query = testing::random_rows<float>(65, heads * d, 1),
             key = testing::random_rows<float>(2260, kv_heads * d, 2);
  heed::rows<float> out(65, heads * d);
  const auto q = split(heed::view(query), heads), k = split(heed::view(key), kv_heads);
  for (const heed::causal causal : {heed::causal::none, heed::causal::bottom_right}) {
    heed::attention_options options;
    options.causal = causal;
    check_call(
        options,
        [&](const auto& on, heed::workspace& memory) {
          heed::ragged_attention_into(q, k, k, split(heed::writable_view(out), heads), {},
                                      query_starts, key_starts, on, memory,
                                      heed::score_function(slower));
        },
        [&](const auto& on) {
          return heed::ragged_attention_workspace_bytes(q, k, k, query_starts, key_starts, on,
                                                        heed::score_function(slower));
        });
    const heed::rows<float> lse = heed::rows<float>::Zero(65, heads);
    heed::rows<float> grad_query = query, grad_key = key, grad_value = key;
    check_call(options, [&](const auto& on, heed::workspace& memory) {
      heed::ragged_attention_backward_into(
          q, k, k, split(heed::writable_view(out), heads), split(heed::view(lse), heads), q,
          split(heed::writable_view(grad_query), heads),
          split(heed::writable_view(grad_key), kv_heads),
          split(heed::writable_view(grad_value), kv_heads), query_starts, key_starts, on, memory);
    });
  }
}

TEST_CASE("the gradient of one head allocates nothing once its workspace has grown") {
  for (const heed::size_type n_q : {1, 100})
    for (const heed::size_type n_kv : {1, 300}) {
      CAPTURE(n_q, n_kv);
      const testing::example<float> e(n_q, n_kv, 32, 24);
      const heed::attention_result<float> forward = e.reference();
      heed::rows<float> dq = e.query, dk = e.key, dv = e.value;
      check_call(heed::attention_options(), [&](const auto& on, heed::workspace& memory) {
        heed::attention_backward_into(e.query, e.key, e.value, forward.out, forward.lse,
                                      forward.out, dq, dk, dv, on, memory);
      });
    }
}

namespace {

/// Lengths up to `capacity` where something changes: the parts of decode, its place against the
/// forward kernel, blocks of keys.
std::vector<heed::size_type> lengths_up_to(heed::size_type capacity) {
  std::vector<heed::size_type> lengths;
  for (const heed::size_type n :
       {1,   2,   3,    47,   48,   49,   127,  128,  129,  255,   256,   511,   512,   528,
        529, 700, 1023, 1024, 1056, 1057, 2047, 2048, 3000, 16896, 16897, 16927, 16928, 17500})
    if (n < capacity) lengths.push_back(n);
  lengths.push_back(capacity);
  return lengths;
}

/// Appends tokens to sequences 0 and 1 of a cache, and attends with n_q queries at each of the
/// lengths: after the first call nothing is allocated, and all that the workspace has is what
/// cached_attention_workspace_bytes has said of the empty cache.
template <typename Scalar, typename Cache, typename Batch>
void check_loop(Cache& cache, const Batch& batch, heed::size_type capacity, heed::size_type n_q,
                heed::attention_options options) {
  const heed::size_type heads = 4, kv_heads = 2, d = 8;
  const testing::tokens<Scalar> t(capacity, heads, kv_heads, d, d, 1);
  auto query = t.query_view(0, n_q);
  query.batch = 2, query.batch_stride = 0;
  heed::rows<Scalar> out(2 * n_q, heads * d);
  const auto to = heed::bnhd(out.data(), 2, n_q, heads, d);
  heed::workspace memory;
  const heed::size_type said = heed::cached_attention_workspace_bytes(query, batch, options);
  heed::size_type length = 0;
  long allocated = 0;
  for (const heed::size_type next : lengths_up_to(capacity)) {
    CAPTURE(next);
    const auto step = [&] {
      for (const heed::size_type s : {0, 1}) t.append(cache, s, length, next);
      heed::cached_attention_into(query, batch, to, {}, options, memory);
    };
    if (length == 0) {
      step();
    } else {
      allocated += allocations_of(step);
    }
    length = next;
    CHECK(allocated == 0);
    CHECK(memory.capacity() == said);
    CHECK(heed::cached_attention_workspace_bytes(query, batch, options) == said);
  }
}

template <typename Check>
void for_each_loop(const Check& check) {
  for (heed::executor* const executor :
       {static_cast<heed::executor*>(nullptr), static_cast<heed::executor*>(&two_workers)})
    for (const heed::size_type capacity : {1, 100, 1100, 17600})
      for (const heed::size_type n_q : {1, 4, 8, 20})
        for (const bool window : {false, true}) {
          if (n_q > capacity) continue;
          CAPTURE(capacity, n_q, window, executor != nullptr);
          heed::attention_options options;
          options.execution.executor = executor;
          options.causal = heed::causal::bottom_right;
          if (window) options.window_left = 600;
          check(capacity, n_q, options);
        }
}

}  // namespace

TEMPLATE_TEST_CASE(
    "a decode loop up to the capacity of its cache takes its workspace at the first token, and "
    "allocates nothing after",
    "", float, double, Eigen::bfloat16, std::int8_t) {
  using Scalar = std::conditional_t<std::is_same<TestType, double>::value, double, float>;
  for_each_loop(
      [](heed::size_type capacity, heed::size_type n_q, const heed::attention_options& options) {
        heed::kv_cache<TestType> cache(2, 2, 8, 8, capacity);
        check_loop<Scalar>(cache, cache, capacity, n_q, options);
      });
}

TEMPLATE_TEST_CASE("so does one on a paged cache whose tables have room", "", float, std::int8_t) {
  for_each_loop(
      [](heed::size_type capacity, heed::size_type n_q, const heed::attention_options& options) {
        constexpr heed::size_type page_rows = 16;
        heed::paged_kv_cache<TestType> cache(2 * ((capacity + page_rows - 1) / page_rows),
                                             page_rows, 2, 8, 8);
        const std::vector<heed::size_type> both{cache.add_sequence(), cache.add_sequence()};
        for (const heed::size_type s : both) cache.reserve(s, capacity);
        check_loop<float>(cache, cache.batch(both), capacity, n_q, options);

        const long again = allocations_of([&] {  // the tables of sequences that come and go stay
          cache.remove_sequence(0);
          const heed::size_type s = cache.add_sequence();
          cache.append(s, heed::bhnd(static_cast<const float*>(nullptr), 1, 2, 0, 8),
                       heed::bhnd(static_cast<const float*>(nullptr), 1, 2, 0, 8));
          cache.batch(both);
        });
        CHECK(again == 0);
      });
}

TEST_CASE("a rolling cache that has grown to twice its window allocates nothing more") {
  const heed::size_type window = 40;
  heed::kv_cache<float> cache(2, 2, 8, 8, 10, window);
  const testing::tokens<float> t(1, 4, 2, 8, 8, 1);
  auto query = t.query_view(0, 1);
  query.batch = 2, query.batch_stride = 0;
  heed::rows<float> out(2, 32);
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  options.window_left = window;
  heed::workspace memory;
  const auto step = [&] {
    for (const heed::size_type s : {0, 1}) t.append(cache, s, 0, 1);
    heed::cached_attention_into(query, cache, heed::bnhd(out.data(), 2, 1, 4, 8), {}, options,
                                memory);
  };
  for (heed::size_type i = 0; i < 2 * window + 2; ++i) step();
  for (heed::size_type i = 0; i < 5 * window; ++i) CHECK(allocations_of(step) == 0);
}

TEST_CASE("a loop over key_lengths takes its workspace at the first call") {
  const heed::size_type n_kv = 1100, heads = 2, d = 8;
  const auto query = testing::random_rows<float>(8 * heads, d, 1),
             key = testing::random_rows<float>(n_kv * heads, d, 2);
  heed::rows<float> out(8 * heads, d);
  for (const heed::size_type n_q : {1, 4, 8}) {
    std::vector<heed::size_type> lengths{0};
    heed::workspace memory;
    const auto k = heed::bhnd(key.data(), 1, heads, n_kv, d),
               q = heed::bhnd(query.data(), 1, heads, n_q, d);
    const auto call = [&] {
      heed::multi_head_attention_into(q, k, k, heed::bhnd(out.data(), 1, heads, n_q, d), {}, {},
                                      memory, heed::key_lengths(lengths));
    };
    call();
    for (const heed::size_type length : lengths_up_to(n_kv)) {
      lengths[0] = length;
      CHECK(allocations_of(call) == 0);
      CHECK(memory.capacity() ==
            heed::multi_head_attention_workspace_bytes(q, k, k, {}, heed::key_lengths(lengths)));
    }
  }
}

TEMPLATE_TEST_CASE("projections allocate nothing once their workspace has grown", "", float, double,
                   Eigen::bfloat16, Eigen::half) {
  for (const heed::isa target : testing::isas())
    for (const heed::size_type n : {0, 1, 4, 5, 300})
      for (const heed::size_type depth : {0, 40}) {
        CAPTURE(testing::name_of(target), n, depth);
        const auto x = testing::random_rows<TestType>(n, depth, 1),
                   weight = testing::random_rows<TestType>(depth, 140, 2);
        heed::rows<TestType> out(n, 70);
        const auto check_weight = [&](const auto& w) {
          heed::attention_options options;
          options.execution.target = target;
          check_call(
              options,
              [&](const auto& on, heed::workspace& memory) {
                heed::project_into(x, w, out, on, memory);
              },
              [&](const auto& on) { return heed::project_workspace_bytes(x, w, on); });
        };
        check_weight(weight.leftCols(70));
        check_weight(Eigen::Map<const heed::rows<TestType>, 0, Eigen::Stride<Eigen::Dynamic, 2>>(
            weight.data(), depth, 70, Eigen::Stride<Eigen::Dynamic, 2>(140, 2)));
      }
}

TEMPLATE_TEST_CASE("recurrences allocate nothing once their workspace has grown", "", float, double,
                   Eigen::bfloat16, Eigen::half) {
  using Acc = heed::accumulator_t<TestType>;
  const heed::size_type heads = 3, n = 20, d = 8;
  const auto some = [&](unsigned seed) {
    return testing::random_rows<TestType>(heads * n, d, seed);
  };
  const heed::rows<TestType> q = some(1), k = some(2), v = some(3), a = some(4), b = some(5);
  const heed::rows<Acc> decay = testing::random_rows<Acc>(heads * n, d, 6).cwiseAbs() * Acc(0.1),
                        gates = -decay, rates = -testing::random_rows<Acc>(d, 5, 7).cwiseAbs();
  heed::rows<Acc> state = testing::random_rows<Acc>(heads * d, d, 8);
  heed::rows<TestType> out(heads * n, d);
  const auto of = [&](const auto& m) { return heed::bhnd(m.data(), 1, heads, n, d); };
  const auto to = heed::bhnd(out.data(), 1, heads, n, d);
  for (const bool carried : {false, true}) {
    CAPTURE(carried);
    const auto carry = heed::when(carried, heed::carry(heed::bhnd(state.data(), 1, heads, d, d)));
    const auto gate = heed::log_gate(of(gates));
    const auto beta = heed::bhnd(decay.data(), 1, heads, n, 1);
    for (const heed::isa target : testing::isas()) {
      CAPTURE(testing::name_of(target));
      heed::linear_attention_options linear;
      linear.execution.target = target;
      const auto check_linear = [&](const auto& query, const auto& key, const auto& value,
                                    const auto& into) {
        check_call(
            linear,
            [&](const auto& on, heed::workspace& memory) {
              heed::multi_head_linear_attention_into(query, key, value, into, on, memory, gate,
                                                     carry);
            },
            [&](const auto& on) {
              return heed::multi_head_linear_attention_workspace_bytes(query, key, value, on, gate,
                                                                       carry);
            });
      };
      check_linear(of(q), of(k), of(v), to);
      const auto beside = [&](const auto& m) {
        return heed::bnhd(m.data(), 1, n, heads, d);
      };  // heads that take turns
      check_linear(beside(q), beside(k), beside(v), heed::bnhd(out.data(), 1, n, heads, d));
      heed::delta_rule_options delta;
      delta.execution.target = target;
      check_call(
          delta,
          [&](const auto& on, heed::workspace& memory) {
            heed::multi_head_delta_rule_into(of(q), of(k), of(v), beta, to, on, memory, gate,
                                             carry);
          },
          [&](const auto& on) {
            return heed::multi_head_delta_rule_workspace_bytes(of(q), of(k), of(v), beta, on, gate,
                                                               carry);
          });
    }
    check_call(
        heed::rwkv7_options{},
        [&](const auto& on, heed::workspace& memory) {
          heed::multi_head_rwkv7_into(of(q), of(decay), of(k), of(v), of(a), of(b), to, on, memory,
                                      carry);
        },
        [&](const auto& on) {
          return heed::multi_head_rwkv7_workspace_bytes(of(q), of(decay), of(k), of(v), of(a),
                                                        of(b), on, carry);
        });
    const auto scan_carry =
        heed::when(carried, heed::carry(heed::bhnd(state.data(), 1, heads, d, 5)));
    const auto b5 = heed::bhnd(b.data(), 1, heads, n, 5), c5 = heed::bhnd(a.data(), 1, heads, n, 5);
    heed::selective_scan_options softplus;
    softplus.softplus = true;
    check_call(
        softplus,
        [&](const auto& on, heed::workspace& memory) {
          heed::selective_scan_into(of(q), of(k), heed::view(rates), b5, c5, to, on, memory,
                                    heed::silu_gate(of(v)), scan_carry);
        },
        [&](const auto& on) {
          return heed::selective_scan_workspace_bytes(of(q), of(k), heed::view(rates), b5, c5, on,
                                                      heed::silu_gate(of(v)), scan_carry);
        });
  }
}

TEMPLATE_TEST_CASE("calls without a workspace need none", "", float, double, Eigen::bfloat16,
                   Eigen::half) {
  using Acc = heed::accumulator_t<TestType>;
  const heed::size_type heads = 3, n = 20, d = 160;  // more pairs than rope turns at a time
  heed::rows<TestType> x = testing::random_rows<TestType>(heads * n, d, 1), out(heads * n, d);
  const auto view = heed::bhnd(x.data(), 1, heads, n, d);
  for (const heed::rope_scaling scaling :
       {heed::rope_scaling::none, heed::rope_scaling::yarn, heed::rope_scaling::llama3}) {
    heed::rope_options rope;
    rope.scaling = scaling;
    rope.factor = 4;
    CHECK(allocations_of([&] { heed::apply_rope(view, rope, 5); }) == 0);
  }
  const heed::rows<Acc> cos = testing::random_rows<Acc>(n, d / 2, 2),
                        sin = testing::random_rows<Acc>(n, d / 2, 3);
  std::vector<heed::size_type> positions(n);
  CHECK(allocations_of([&] { heed::rotate_into(view, cos, sin, positions); }) == 0);

  const heed::rows<TestType> weight = testing::random_rows<TestType>(d, 4, 4);
  heed::rows<Acc> past = testing::random_rows<Acc>(heads * 3, d, 5);
  heed::causal_conv_options options;
  for (heed::executor* const executor :
       {static_cast<heed::executor*>(nullptr), static_cast<heed::executor*>(&two_workers)}) {
    options.execution.executor = executor;
    const auto call = [&] {
      heed::causal_conv_into(view, heed::view(weight), heed::bhnd(out.data(), 1, heads, n, d),
                             options, heed::carry(heed::bhnd(past.data(), 1, heads, 3, d)));
    };
    CHECK(allocations_of(call) == 0);
  }
}

TEST_CASE(
    "linear attention takes no workspace where it takes the recurrent form, or has nothing to do") {
  const heed::rows<long double> wide = heed::rows<long double>::Ones(4, 3);
  const heed::rows<float> x = heed::rows<float>::Ones(4, 3);
  const heed::row_vector<long double> wide_beta = heed::row_vector<long double>::Ones(4);
  CHECK(heed::multi_head_linear_attention_workspace_bytes(heed::view(wide), heed::view(wide),
                                                          heed::view(wide), {}) == 0);
  CHECK(heed::multi_head_delta_rule_workspace_bytes(
            heed::view(wide), heed::view(wide), heed::view(wide), heed::view(wide_beta), {}) == 0);
  const auto none = heed::bnhd(x.data(), 1, 4, 0, 3);  // of no heads
  CHECK(heed::multi_head_linear_attention_workspace_bytes(none, none, none, {}) == 0);
  CHECK(heed::multi_head_linear_attention_workspace_bytes(heed::view(x), heed::view(x),
                                                          heed::view(x), {}) > 0);
}

TEST_CASE("bytes are refused for what the call refuses") {
  const heed::rows<float> x(4, 8), y(4, 6);
  testing::check_refused([&] { heed::attention_workspace_bytes(x, y, x); },
                         {"heed::attention_workspace_bytes: key: head_dim 6", "8"});
  testing::check_refused(
      [&] {
        heed::multi_head_linear_attention_workspace_bytes(heed::view(x), heed::view(y),
                                                          heed::view(x), {});
      },
      {"heed::multi_head_linear_attention_workspace_bytes: key: head_dim 6", "8"});
  testing::check_refused([&] { heed::project_workspace_bytes(x, y); },
                         {"heed::project_workspace_bytes: weight: rows 4", "8"});
}

TEMPLATE_TEST_CASE(
    "gradients take the bytes that their ..._workspace_bytes says and allocate nothing after", "",
    float, double, Eigen::bfloat16, Eigen::half) {
  using Acc = heed::accumulator_t<TestType>;
  using rows = heed::rows<TestType>;
  const heed::size_type n = 130, heads = 4, kv_heads = 2, d = 24;
  const auto query = testing::random_rows<TestType>(n, heads * d, 1),
             key = testing::random_rows<TestType>(n, kv_heads * d, 2),
             grad_out = testing::random_rows<TestType>(n, heads * d, 3);
  rows out(n, heads * d), dq(n, heads * d), dk(n, kv_heads * d), dv(n, kv_heads * d);
  heed::rows<Acc> lse(n, heads);
  const std::vector<heed::size_type> starts{0, 1, 1, 101, n};
  heed::workspace first;
  heed::attention_options options;
  options.causal = heed::causal::bottom_right;
  const auto q = split(heed::view(query), heads), g = split(heed::view(grad_out), heads),
             k = split(heed::view(key), kv_heads);
  const auto o = split(heed::writable_view(out), heads);
  const auto l = split(heed::writable_view(lse), heads);
  const auto to_q = split(heed::writable_view(dq), heads);
  const auto to_k = split(heed::writable_view(dk), kv_heads),
             to_v = split(heed::writable_view(dv), kv_heads);
  SECTION("heads") {
    heed::multi_head_attention_into(q, k, k, o, l, options, first);
    check_call(
        options,
        [&](const auto& on, heed::workspace& memory) {
          heed::multi_head_attention_backward_into(q, k, k, o, l, g, to_q, to_k, to_v, on, memory);
        },
        [&](const auto& on) {
          return heed::multi_head_attention_backward_workspace_bytes(q, k, k, o, l, g, to_q, to_k,
                                                                     to_v, on);
        });
  }
  SECTION("ragged") {
    heed::ragged_attention_into(q, k, k, o, l, starts, starts, options, first);
    check_call(
        options,
        [&](const auto& on, heed::workspace& memory) {
          heed::ragged_attention_backward_into(q, k, k, o, l, g, to_q, to_k, to_v, starts, starts,
                                               on, memory);
        },
        [&](const auto& on) {
          return heed::ragged_attention_backward_workspace_bytes(q, k, k, o, l, g, to_q, to_k, to_v,
                                                                 starts, starts, on);
        });
  }
  SECTION("one head, whose gradients are columns of matrices") {
    const auto one = query.leftCols(d), grad = grad_out.leftCols(d);
    heed::attention_result<TestType> result(n, d);
    heed::attention_into(one, key.leftCols(d), key.rightCols(d), result.out, result.lse, options,
                         first);
    check_call(
        options,
        [&](const auto& on, heed::workspace& memory) {
          heed::attention_backward_into(one, key.leftCols(d), key.rightCols(d), result.out,
                                        result.lse, grad, dq.leftCols(d), dk.leftCols(d),
                                        dk.rightCols(d), on, memory);
        },
        [&](const auto& on) {
          return heed::attention_backward_workspace_bytes(
              one, key.leftCols(d), key.rightCols(d), result.out, result.lse, grad, dq.leftCols(d),
              dk.leftCols(d), dk.rightCols(d), on);
        });
  }
  SECTION("projections") {
    rows weight = testing::random_rows<TestType>(heads * d, 40, 4),
         grad = testing::random_rows<TestType>(n, 40, 5), dw(heads * d, 40);
    check_call(
        options,
        [&](const auto& on, heed::workspace& memory) {
          heed::project_backward_into(query, weight, grad, dq, dw, on, memory);
        },
        [&](const auto& on) {
          return heed::project_backward_workspace_bytes(query, weight, grad, on);
        });
  }
}
