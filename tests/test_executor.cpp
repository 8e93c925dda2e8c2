#include <heed/executor.hpp>
#include <heed/multi_head.hpp>
#include <heed/projection.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <thread>
#include <unsupported/Eigen/CXX11/ThreadPool>

#include "support/example.hpp"

namespace {

/// Runs the workers one after the other, the last first, and counts them.
class counting_executor : public heed::executor {
 public:
  explicit counting_executor(int workers) : workers_(workers) {}
  int workers() const override { return workers_; }
  void run(int workers, work_function work, void* context) override {
    for (int w = workers - 1; w >= 0; --w) work(context, w);
    seen += workers;
  }
  int seen = 0;

 private:
  int workers_;
};

/// Runs one worker only: the others never come to work.
class lazy_executor : public heed::executor {
 public:
  int workers() const override { return 4; }
  void run(int workers, work_function work, void* context) override {
    work(context, workers - 1);
    for (int w = 0; w < workers - 1; ++w) work(context, w);
  }
};

}  // namespace

TEST_CASE("every task runs once, on every kind of executor") {
  Eigen::ThreadPool pool(2);
  heed::pool_executor<Eigen::ThreadPool> lent(pool);
  heed::thread_executor own(3);
  counting_executor counting(3);
  lazy_executor lazy;
  for (heed::executor* executor :
       {static_cast<heed::executor*>(nullptr), static_cast<heed::executor*>(&lent),
        static_cast<heed::executor*>(&own), static_cast<heed::executor*>(&counting),
        static_cast<heed::executor*>(&lazy)})
    for (const std::ptrdiff_t tasks : {0, 1, 2, 3, 100})
      for (const int workers : {1, 3, 8}) {
        CAPTURE(tasks, workers);
        std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
        std::atomic<int> bad_workers{0};
        heed::detail::for_each_task(tasks, workers, executor, [&](std::ptrdiff_t task, int worker) {
          ++runs[static_cast<std::size_t>(task)];
          if (worker < 0 || worker >= workers) ++bad_workers;
        });
        for (const std::atomic<int>& count : runs) CHECK(count == 1);
        CHECK(bad_workers == 0);
      }
}

TEST_CASE("attention gives the same bits on any executor") {
  const heed::size_type heads = 3, n = 150, d = 16;
  const heed::rows<float> query = testing::random_rows<float>(heads * n, d, 1),
                          key = testing::random_rows<float>(heads * n, d, 2);
  const auto run = [&](int threads, heed::executor* executor) {
    heed::attention_options options;
    options.execution.threads = threads;
    options.execution.executor = executor;
    heed::rows<float> out(heads * n, d);
    heed::workspace memory;
    const auto keys = heed::bhnd(key.data(), heed::size_type(1), heads, n, d);
    heed::multi_head_attention_into(heed::bhnd(query.data(), heed::size_type(1), heads, n, d), keys,
                                    keys, heed::bhnd(out.data(), heed::size_type(1), heads, n, d),
                                    {}, options, memory);
    return out;
  };
  const heed::rows<float> want = run(1, nullptr);
  Eigen::ThreadPool pool(2);
  heed::pool_executor<Eigen::ThreadPool> lent(pool);
  heed::thread_executor own(3);
  counting_executor counting(3);
  for (heed::executor* executor :
       {static_cast<heed::executor*>(&lent), static_cast<heed::executor*>(&own),
        static_cast<heed::executor*>(&counting)})
    CHECK(run(3, executor) == want);
}

TEST_CASE("a call sets memory aside for as many workers as it has tasks, however many may come") {
  const testing::example<float> e(40, 50, 16, 16), few(1, 600, 16, 16);
  const auto grown = [](const testing::example<float>& inputs, int threads) {
    heed::attention_options options;
    options.execution.threads = threads;
    heed::workspace memory;
    heed::rows<float> out(inputs.query.rows(), inputs.value.cols());
    heed::attention_into(inputs.query, inputs.key, inputs.value, out, {}, options, memory);
    CHECK(out == heed::attention(inputs.query, inputs.key, inputs.value));
    return memory.capacity();
  };
  CHECK(grown(e, (std::numeric_limits<int>::max)()) == grown(e, 64));
  CHECK(grown(few, (std::numeric_limits<int>::max)()) == grown(few, 64));
}

TEST_CASE("an executor without workers leaves the work to the caller") {
  const testing::example<float> e(40, 50, 16, 16);
  for (const int workers : {0, -3}) {
    counting_executor none(workers);
    heed::attention_options options;
    options.execution.executor = &none;
    CHECK(heed::attention(e.query, e.key, e.value, options) ==
          heed::attention(e.query, e.key, e.value));
    CHECK(heed::project(e.query, e.key.transpose(), options) ==
          heed::project(e.query, e.key.transpose()));
    CHECK(none.seen == 0);
  }
}

TEST_CASE("a call from within a task of the pool that it is lent does not wait for the pool") {
  const heed::size_type n = 150, heads = 6, d = 16;
  const heed::rows<float> x = testing::random_rows<float>(heads * n, d, 1);
  const auto view = heed::bhnd(x.data(), heed::size_type(1), heads, n, d);
  heed::workspace memory_of_want;
  heed::rows<float> want(heads * n, d);
  heed::multi_head_attention_into(view, view, view,
                                  heed::bhnd(want.data(), heed::size_type(1), heads, n, d), {}, {},
                                  memory_of_want);
  for (const int threads : {1, 2}) {
    Eigen::ThreadPool pool(threads);
    heed::pool_executor<Eigen::ThreadPool> lent(pool);
    // As many calls as threads and more: each thread is in a call of its own, and no thread is left
    // to help.
    const int calls = threads + 2;
    std::vector<heed::rows<float>> got(std::size_t(calls), heed::rows<float>(heads * n, d));
    std::atomic<int> finished{0};
    for (int c = 0; c < calls; ++c)
      pool.Schedule([&, c] {
        heed::attention_options options;
        options.execution.executor = &lent;
        heed::workspace memory;
        heed::multi_head_attention_into(
            view, view, view,
            heed::bhnd(got[std::size_t(c)].data(), heed::size_type(1), heads, n, d), {}, options,
            memory);
        ++finished;
      });
    const auto begin = std::chrono::steady_clock::now();
    while (finished < calls && std::chrono::steady_clock::now() - begin < std::chrono::seconds(60))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (finished < calls) {  // nothing can be cleaned up: the pool's destructor would wait for ever
      std::fprintf(stderr, "a pool of %d threads: %d of %d calls came back\n", threads,
                   int(finished), calls);
      std::abort();
    }
    for (const heed::rows<float>& out : got) CHECK(out == want);
  }
}

TEST_CASE("after_task is called once for each task, on one worker and on several") {
  class following_executor : public counting_executor {
   public:
    using counting_executor::counting_executor;
    void after_task(int worker) override { tasks += worker >= 0; }
    int tasks = 0;
  };
  for (const int workers : {1, 3}) {
    following_executor following(workers);
    heed::detail::for_each_task(7, workers, &following, [](std::ptrdiff_t, int) {});
    CHECK(following.tasks == 7);
    CHECK(following.seen == (workers > 1 ? workers : 0));
  }
}
