#pragma once

#include <heed/detail/abi.hpp>
#include <heed/detail/caught.hpp>
#include <heed/execution.hpp>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

HEED_NAMESPACE_BEGIN

/// Where the work of a call runs. Implement it to lend your pool to the library (see
/// execution::executor).
class executor {
 public:
  /// The work of one worker, by its number.
  using work_function = void (*)(void* context, int worker);

  virtual ~executor() = default;
  /// How many workers a call should have.
  virtual int workers() const = 0;
  /// Calls work(context, w) once for each w in [0, workers), on any threads, one after the other or
  /// at the same time, and returns when all have returned. The workers share out the tasks among
  /// themselves, so a worker that starts late, or not in parallel, costs time only. Not called
  /// where one worker is enough (one task, or workers() of 1 or less): the calling thread does the
  /// work.
  virtual void run(int workers, work_function work, void* context) = 0;
  /// Called by each worker after each of its tasks, on its thread, also where run is not called: a
  /// place to show progress, or to do work that must not wait for the end of the call. A task is a
  /// few blocks of queries or a part of the keys. It must not throw. Does nothing by default.
  virtual void after_task(int worker) { static_cast<void>(worker); }
};

/// Starts threads for each call and joins them: nothing to keep, about ten microseconds per thread
/// and call, and memory for the handles.
class thread_executor : public executor {
 public:
  /// With this many workers, the calling thread included.
  explicit thread_executor(int workers) : workers_(workers) {}
  int workers() const override { return workers_; }
  void run(int workers, work_function work, void* context) override {
    std::vector<std::thread> threads;
    int started = 1;
#if HEED_EXCEPTIONS
    try {
#endif
      threads.reserve(static_cast<std::size_t>(workers > 1 ? workers - 1 : 0));
      for (; started < workers; ++started) threads.emplace_back(work, context, started);
#if HEED_EXCEPTIONS
    } catch (const std::exception&) {
      // The system has no more threads, or no memory for them, to give: this one does their work.
    }
#endif
    work(context, 0);
    for (int w = started; w < workers; ++w) work(context, w);
    for (std::thread& thread : threads) thread.join();
  }

 private:
  int workers_;
};

/// Lends a pool that has Schedule(function) and NumThreads(), such as Eigen::ThreadPool. The
/// calling thread works too, and may be one of the pool's: it does the work that the pool has not
/// begun, and waits only for work that runs on other threads.
///
/// @code
/// struct pool {  // such as Eigen::ThreadPool; this one works at once
///   void Schedule(const std::function<void()>& work) { work(); }
///   int NumThreads() const { return 1; }
/// } mine;
/// heed::pool_executor<pool> lent(mine);
/// heed::attention_options options;
/// options.execution.executor = &lent;
/// const heed::rows<float> x = heed::rows<float>::Random(1000, 64);
/// const auto out = heed::attention(x, x, x, options);
/// @endcode
template <typename Pool>
class pool_executor : public executor {
 public:
  /// Lends `pool`, which must outlive the executor.
  explicit pool_executor(Pool& pool) : pool_(pool) {}
  int workers() const override { return static_cast<int>(pool_.NumThreads()) + 1; }
  void run(int workers, work_function work, void* context) override {
    const auto shared =
        std::make_shared<claims>();  // outlives this call where the pool begins a function late
    shared->next = 1;
#if HEED_EXCEPTIONS
    try {
#endif
      for (int w = 1; w < workers; ++w)
        pool_.Schedule([shared, work, context, workers] {
          const int mine = shared->next++;
          if (mine >= workers) return;  // the calling thread has done it, and `context` may be gone
          work(context, mine);
          const std::lock_guard<std::mutex> lock(shared->mutex);
          ++shared->finished;
          shared->all_done.notify_one();
        });
#if HEED_EXCEPTIONS
    } catch (const std::exception&) {
      // What the pool has no memory for, this thread does. It may not leave while the others work
      // on its `context`.
    }
#endif
    work(context, 0);
    int others = workers - 1;
    for (int mine; (mine = shared->next++) < workers; --others) work(context, mine);
    // The others are about to finish too, before this thread would wake up again if it slept.
    for (int turn = 0; turn < 200 && shared->finished < others; ++turn) std::this_thread::yield();
    std::unique_lock<std::mutex> lock(shared->mutex);
    shared->all_done.wait(lock, [&] { return shared->finished == others; });
  }

 private:
  /// Who is which worker: the first to claim a number does its work.
  struct claims {
    std::atomic<int> next{0}, finished{0};
    std::mutex mutex;
    std::condition_variable all_done;
  };
  Pool& pool_;
};

#ifdef _OPENMP
/// Runs the workers as one OpenMP parallel region.
class openmp_executor : public executor {
 public:
  /// With this many workers, the calling thread included.
  explicit openmp_executor(int workers) : workers_(workers) {}
  int workers() const override { return workers_; }
  void run(int workers, work_function work, void* context) override {
#pragma omp parallel for num_threads(workers) schedule(static, 1)
    for (int w = 0; w < workers; ++w) work(context, w);
  }

 private:
  int workers_;
};
#endif

namespace detail {

/// How many workers a call may have.
inline int workers_of(const execution& how) {
  const int workers = how.executor ? how.executor->workers() : how.threads;
  return workers > 1 ? workers : 1;
}
/// The same, but no more than there is work for: what a plan sets memory aside for.
inline int workers_of(const execution& how, std::ptrdiff_t tasks) {
  const int workers = workers_of(how);
  return tasks < workers ? (tasks > 1 ? static_cast<int>(tasks) : 1) : workers;
}

/// Runs task(index, worker) for every index in [0, tasks), each once, shared out among the workers
/// in ascending order. What a task throws, if only for want of memory, reaches the caller once all
/// workers have stopped; tasks that had not begun by then are left out.
template <typename Task>
void for_each_task(std::ptrdiff_t tasks, int workers, executor* pool, const Task& task) {
  if (tasks < workers) workers = static_cast<int>(tasks);
  if (workers <= 1) {
    for (std::ptrdiff_t t = 0; t < tasks; ++t) {
      task(t, 0);
      if (pool) pool->after_task(0);
    }
    return;
  }
  struct shared {
    const Task& task;
    executor* pool;
    std::ptrdiff_t tasks;
    std::atomic<std::ptrdiff_t> next{0};
    caught_exception caught{};
  } context{task, pool, tasks};
  const heed::executor::work_function work = [](void* pointer, int worker) {
    shared& s = *static_cast<shared*>(pointer);
    for (std::ptrdiff_t t; (t = s.next.fetch_add(1, std::memory_order_relaxed)) < s.tasks;) {
      s.caught.guard([&] { s.task(t, worker); });
      if (s.pool) s.pool->after_task(worker);
    }
  };
  if (pool) {
    pool->run(workers, work, &context);
  } else {
    thread_executor(workers).run(workers, work, &context);
  }
  context.caught.rethrow();
}

}  // namespace detail
HEED_NAMESPACE_END
