// The promise of attention_into: nothing is allocated once the workspace has grown; and of
// workspaces and caches that cannot grow. test_allocations.cpp has the other calls.

#include "support/allocations_of.hpp"

#include <array>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <heed/heatmap.hpp>
#include <heed/linear_attention.hpp>
#include <heed/multi_head.hpp>
#include <heed/paged_kv_cache.hpp>
#include <heed/workspace.hpp>

#include <cstdint>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "support/example.hpp"
#include "support/isas.hpp"
#include "support/refusal.hpp"
#include "support/tokens.hpp"

using testing::allocations_of;

TEST_CASE("the counters see what they are there for") {
  CHECK(allocations_of([] {}) == 0);
  CHECK(allocations_of([] { ::operator delete(::operator new(8)); }) ==
        1);  // a call, which a compiler may not leave out
  CHECK(allocations_of([] { Eigen::VectorXf(100).setZero(); }) == 1);
  const testing::example<float> e(20, 30, 8, 4);
  CHECK(allocations_of([&] { heed::reference_attention(e.query, e.key, e.value); }) > 0);
}

TEMPLATE_TEST_CASE("attention_into allocates nothing once its workspace has grown", "", float,
                   double, Eigen::bfloat16, Eigen::half) {
  for (const heed::isa target : testing::isas())
    for (const heed::size_type n_q : {1, 5, 100})
      for (const heed::causal causal : {heed::causal::none, heed::causal::bottom_right}) {
        CAPTURE(testing::name_of(target), n_q);
        testing::example<TestType> e(n_q, 300, 32, 24);
        e.options.execution.target = target;
        e.options.causal = causal;
        e.bias = testing::random_rows<heed::accumulator_t<TestType>>(n_q, 300, 4);
        e.keep = testing::random_mask(n_q, 300, 5);
        heed::attention_result<TestType> result(n_q, 24);
        const Eigen::Matrix<TestType, Eigen::Dynamic, Eigen::Dynamic> columns =
            e.key;  // what must be packed is packed in the workspace
        heed::workspace memory;
        const auto call = [&] {
          heed::attention_into(e.query, columns, e.value, result.out, result.lse, e.options, memory,
                               heed::bias(e.bias), heed::keep(e.keep));
        };
        call();
        CHECK(allocations_of(call) == 0);
        testing::check_result(result, e);
      }
}

TEST_CASE("multi_head_attention_into allocates nothing once its workspace has grown") {
  const heed::size_type batch = 2, heads = 4, kv_heads = 2, n_kv = 200, d = 32;
  for (const heed::size_type n_q : {1, 70}) {
    const heed::rows<float> query = testing::random_rows<float>(batch * heads * n_q, d, 1),
                            key = testing::random_rows<float>(batch * kv_heads * n_kv, d, 2);
    heed::rows<float> out(batch * heads * n_q, d);
    heed::workspace memory;
    const auto call = [&] {
      const auto keys = heed::bhnd(key.data(), batch, kv_heads, n_kv, d);
      heed::multi_head_attention_into(heed::bhnd(query.data(), batch, heads, n_q, d), keys, keys,
                                      heed::bhnd(out.data(), batch, heads, n_q, d), {}, {}, memory);
    };
    call();
    CHECK(allocations_of(call) == 0);
  }
}

TEST_CASE("a workspace gives aligned memory and grows to the largest need") {
  heed::workspace memory;
  CHECK(memory.capacity() == 0);
  for (const heed::size_type bytes : {1, 1000, 10})
    CHECK(reinterpret_cast<std::uintptr_t>(memory.reserve(bytes)) % 64 == 0);
  CHECK(memory.capacity() == 1000);
  const long before = testing::allocations;
  memory.reserve(1000);
  CHECK(testing::allocations == before);
}

TEST_CASE("a workspace has no room below 0") {
  heed::workspace memory;
  testing::check_refused([&] { memory.reserve(-1); }, {"heed::workspace::reserve: bytes", "-1"});
}

TEST_CASE("a workspace that could not grow, or was moved from, can be used again") {
  heed::workspace memory;
  memory.reserve(100);
  testing::allocations_until_failure = 0;
  bool failed = false;
  try {
    memory.reserve(1000);
  } catch (const std::bad_alloc&) {
    failed = true;
  }
  testing::allocations_until_failure = -1;
  CHECK(failed);
  CHECK(memory.capacity() == 0);
  memory.reserve(10);
  CHECK(memory.capacity() == 10);
  const heed::workspace taken = std::move(memory);
  CHECK(taken.capacity() == 10);
  CHECK(memory.capacity() == 0);  // NOLINT: moved from on purpose
  memory.reserve(5);
  CHECK(memory.capacity() == 5);
}

TEST_CASE("a cache that could not grow is as it was") {
  const std::vector<float> numbers(64, 1.0f);
  const heed::tensor_view<const float> both = heed::bhnd(numbers.data(), 2, 1, 4, 2),
                                       one = heed::bhnd(numbers.data(), 1, 1, 4, 2);
  heed::kv_cache<std::int8_t> cache(2, 1, 2, 2, 4);
  cache.append(1, one, one);
  const auto same = [](const heed::kv_cache<std::int8_t>& c) {
    CHECK(c.capacity() == 4);
    CHECK(c.length(0) == 0);
    CHECK(c.length(1) == 4);
    CHECK(c.bytes() == 2 * 2 * 4 * (2 + 4));
  };
  CHECK(testing::fail_each_allocation(
            cache, [&](auto& c) { c.append(both, both); }, same) == 4);
  CHECK(testing::fail_each_allocation(
            cache, [&](auto& c) { c.reserve(9); }, same) == 4);
}

TEST_CASE("a paged cache that could not grow its lists is as it was") {
  const std::vector<float> numbers(64, 1.0f);
  const heed::tensor_view<const float> three = heed::bhnd(numbers.data(), 1, 1, 3, 2),
                                       twelve = heed::bhnd(numbers.data(), 1, 1, 12, 2);
  heed::paged_kv_cache<float> cache(16, 2, 1, 2, 2);
  const heed::size_type s = cache.add_sequence();
  cache.append(s, three, three);
  cache.fork(s);
  const auto same = [&](const heed::paged_kv_cache<float>& c) {
    CHECK(c.free_pages() == 14);
    CHECK(c.length(s) == 3);
    bool third = true;
    try {
      c.length(2);
    } catch (const std::invalid_argument&) {
      third = false;
    }
    CHECK(!third);
  };
  CHECK(testing::fail_each_allocation(
            cache, [&](auto& c) { c.append(s, twelve, twelve); }, same) > 0);
  CHECK(testing::fail_each_allocation(
            cache, [&](auto& c) { c.fork(s); }, same) > 0);
  CHECK(testing::fail_each_allocation(
            cache, [&](auto& c) { c.truncate(s, 0); }, same) > 0);
  CHECK(testing::fail_each_allocation(
            cache, [&](auto& c) { c.remove_sequence(s); }, same) > 0);
  CHECK(testing::fail_each_allocation(
            cache, [&](auto& c) { c.add_sequence(); }, same) > 0);
  const std::vector<heed::size_type> both{s, 1};
  CHECK(testing::fail_each_allocation(
            cache, [&](auto& c) { c.batch(both); }, same) == 0);  // it owns nothing
  heed::paged_kv_cache<float> other(3, 4, 1, 2, 2);
  other.append(other.add_sequence(), three, three);
  CHECK(testing::fail_each_allocation(
            cache, [&](auto& c) { c = other; }, same) > 0);
}

TEST_CASE("a paged cache of int8 that could not be assigned is as it was, its numbers too") {
  const testing::tokens<double> t(7, 2, 1, 8, 6, 1);
  heed::paged_kv_cache<std::int8_t> cache(6, 4, 1, 8, 6), other(2, 2, 3, 1, 1);
  const std::vector<heed::size_type> one{cache.add_sequence()};
  t.append(cache, one[0], 0, 7);
  const auto answer = [&](const auto& c) {
    return testing::reference_from(c.batch(one), t, 4, 7, {});
  };
  const heed::rows<double> before = answer(cache);
  const auto same = [&](const auto& c) { CHECK(answer(c) == before); };
  CHECK(testing::fail_each_allocation(
            cache, [&](auto& c) { c = other; }, same) > 0);
}

TEST_CASE("a block mask that could not be assigned is as it was") {
  heed::block_mask mask(1, 2, 20, 30, 4, 8), other(1, 1, 200, 300, 4, 8);
  mask.show(0, 1, 2, 3);
  const auto same = [](const heed::block_mask& m) {
    CHECK(m.heads() == 2);
    CHECK(m.n_q() == 20);
    CHECK(m.n_kv() == 30);
    CHECK(m.q_blocks() == 5);
    CHECK(m.kv_blocks() == 4);
    CHECK(m.shows(0, 1, 2, 3));
    CHECK(m.density() == 1.0 / 40);
  };
  CHECK(testing::fail_each_allocation(
            mask, [&](auto& m) { m = other; }, same) == 1);
  const auto make = [](auto& m) {
    m = heed::block_mask::of([](auto...) { return true; }, 1, 1, 200, 300, 4, 8);
  };
  CHECK(testing::fail_each_allocation(mask, make, same) == 1);
}

TEST_CASE("a heat map's page that could not take a map, or be assigned, is as it was") {
  const Eigen::MatrixXd weights = Eigen::MatrixXd::Constant(2, 3, 1.0 / 3);
  const std::vector<std::string> rows{"a", "b"},
      cols{"c", "d", "a label that is too long for a short string"};
  heed::heatmap_page page(rows, cols), other(cols, rows);
  page.add(weights);
  other.add(weights.transpose(), 1, 2, "another map, the title of which is not short either");
  const std::string before = page.html();
  const auto same = [&](const heed::heatmap_page& p) {
    CHECK((p.html() == before));
  };  // not 30 KB of text where it is not
  CHECK(testing::fail_each_allocation(
            page, [&](auto& p) { p.add(weights, 3, 4); }, same) > 0);
  CHECK(testing::fail_each_allocation(
            page, [&](auto& p) { p = other; }, same) > 0);
}

namespace {
/// A pool whose threads begin after the call, if at all.
struct late_pool {
  int NumThreads() const { return 3; }
  void Schedule(std::function<void()> function) { late.push_back(std::move(function)); }
  std::vector<std::function<void()>> late;
};

/// Runs ten tasks for four workers with the k-th allocation failing, for every k. Each task runs
/// once, or none where the call throws; what is left over after the call does nothing.
template <typename MakeExecutor>
void check_tasks_without_memory(const MakeExecutor& make_executor) {
  for (long k = 0;; ++k) {
    CAPTURE(k);
    late_pool pool;
    const auto executor = make_executor(pool);
    std::array<std::atomic<int>, 10> runs{};
    bool thrown = false;
    testing::allocations_until_failure = k;
    try {
      heed::detail::for_each_task(10, 4, executor.get(), [&](std::ptrdiff_t task, int) {
        ++runs[static_cast<std::size_t>(task)];
      });
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
    const bool none_failed = testing::allocations_until_failure >= 0;
    testing::allocations_until_failure = -1;
    for (const auto& function : pool.late) function();
    for (const auto& times : runs) CHECK(times == (thrown ? 0 : 1));
    if (none_failed) break;
  }
}
}  // namespace

TEST_CASE("workers for whom memory runs out leave their work to the caller") {
  check_tasks_without_memory([](late_pool&) { return std::make_unique<heed::thread_executor>(4); });
  check_tasks_without_memory(
      [](late_pool& pool) { return std::make_unique<heed::pool_executor<late_pool>>(pool); });
}

TEST_CASE("a worker that runs out of memory ends the call and not the program") {
  const std::ptrdiff_t heads = 4, tokens = 6, d = 8;
  const heed::rows<float> in = testing::random_rows<float>(heads * tokens, d, 1);
  const auto view = heed::bhnd(in.data(), 1, heads, tokens, d);
  heed::rows<float> want(heads * tokens, d), out(heads * tokens, d);
  heed::linear_attention_options options;
  const auto call = [&](heed::rows<float>& result) {
    heed::recurrent_multi_head_linear_attention_into(
        view, view, view, heed::bhnd(result.data(), 1, heads, tokens, d), options);
  };
  call(want);
  options.execution.threads = 3;
  long failures = 0;
  for (long k = 0;; ++k) {
    testing::allocations_until_failure = k;
    try {
      call(out);
    } catch (const std::bad_alloc&) {
      ++failures;
    }
    const bool none_failed = testing::allocations_until_failure >= 0;
    testing::allocations_until_failure = -1;
    call(out);
    CHECK(out == want);
    if (none_failed) break;
  }
  CHECK(failures > 0);
}
