// The promise of attention_into: nothing is allocated once the workspace has grown; and of workspaces and caches that cannot grow.
// test_allocations.cpp has the other calls.

#include "support/allocations_of.hpp"

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

using testing::allocations_of;

TEST_CASE("the counters see what they are there for") {
  CHECK(allocations_of([] {}) == 0);
  CHECK(allocations_of([] { ::operator delete(::operator new(8)); }) == 1);  // a call, which a compiler may not leave out
  CHECK(allocations_of([] { Eigen::VectorXf(100).setZero(); }) == 1);
  const testing::example<float> e(20, 30, 8, 4);
  CHECK(allocations_of([&] { heed::reference_attention(e.query, e.key, e.value); }) > 0);
}

TEMPLATE_TEST_CASE("attention_into allocates nothing once its workspace has grown", "", float, double, Eigen::bfloat16, Eigen::half) {
  for (const heed::isa target : testing::isas())
    for (const heed::index n_q : {1, 5, 100})
      for (const heed::causal causal : {heed::causal::none, heed::causal::bottom_right}) {
        CAPTURE(testing::name_of(target), n_q);
        testing::example<TestType> e(n_q, 300, 32, 24);
        e.options.target = target;
        e.options.causal = causal;
        e.bias = testing::random_rows<heed::accumulator_t<TestType>>(n_q, 300, 4);
        e.keep = testing::random_mask(n_q, 300, 5);
        heed::attention_result<TestType> result(n_q, 24);
        const Eigen::Matrix<TestType, Eigen::Dynamic, Eigen::Dynamic> columns =
            e.key;  // what must be packed is packed in the workspace
        heed::workspace memory;
        const auto call = [&] {
          heed::attention_into(e.query, columns, e.value, result.out, result.lse, e.options, memory, heed::bias(e.bias),
                               heed::keep(e.keep));
        };
        call();
        CHECK(allocations_of(call) == 0);
        testing::check_result(result, e);
      }
}

TEST_CASE("multi_head_attention_into allocates nothing once its workspace has grown") {
  const heed::index batch = 2, heads = 4, kv_heads = 2, n_kv = 200, d = 32;
  for (const heed::index n_q : {1, 70}) {
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
  for (const heed::index bytes : {1, 1000, 10}) CHECK(reinterpret_cast<std::uintptr_t>(memory.reserve(bytes)) % 64 == 0);
  CHECK(memory.capacity() == 1000);
  const long before = testing::allocations;
  memory.reserve(1000);
  CHECK(testing::allocations == before);
}

TEST_CASE("a workspace has no room below 0") {
  heed::workspace memory;
  testing::check_refused([&] { memory.reserve(-1); }, {"heed::workspace::reserve: bytes", "-1"});
}

namespace {
/// Calls `change` on a copy of `object` with the k-th allocation failing, for every k until none does. After each failure `same` must
/// hold of the copy, and the change must go through when it is tried again. Returns how many allocations failed.
template <typename Object, typename Change, typename Same>
long fail_each_allocation(const Object& object, const Change& change, const Same& same) {
  for (long k = 0;; ++k) {
    Object copy = object;
    testing::allocations_until_failure = k;
    bool failed = false;
    try {
      change(copy);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    testing::allocations_until_failure = -1;
    if (!failed) return k;
    same(copy);
    change(copy);
  }
}
}  // namespace

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
  const heed::tensor_view<const float> both = heed::bhnd(numbers.data(), 2, 1, 4, 2), one = heed::bhnd(numbers.data(), 1, 1, 4, 2);
  heed::kv_cache<std::int8_t> cache(2, 1, 2, 2, 4);
  cache.append(1, one, one);
  const auto same = [](const heed::kv_cache<std::int8_t>& c) {
    CHECK(c.capacity() == 4);
    CHECK(c.length(0) == 0);
    CHECK(c.length(1) == 4);
    CHECK(c.bytes() == 2 * 2 * 4 * (2 + 4));
  };
  CHECK(fail_each_allocation(cache, [&](auto& c) { c.append(both, both); }, same) == 4);
  CHECK(fail_each_allocation(cache, [&](auto& c) { c.reserve(9); }, same) == 4);
}

TEST_CASE("a paged cache that could not grow its lists is as it was") {
  const std::vector<float> numbers(64, 1.0f);
  const heed::tensor_view<const float> three = heed::bhnd(numbers.data(), 1, 1, 3, 2), twelve = heed::bhnd(numbers.data(), 1, 1, 12, 2);
  heed::paged_kv_cache<float> cache(16, 2, 1, 2, 2);
  const heed::index s = cache.add_sequence();
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
  CHECK(fail_each_allocation(cache, [&](auto& c) { c.append(s, twelve, twelve); }, same) > 0);
  CHECK(fail_each_allocation(cache, [&](auto& c) { c.fork(s); }, same) > 0);
  CHECK(fail_each_allocation(cache, [&](auto& c) { c.truncate(s, 0); }, same) > 0);
}
