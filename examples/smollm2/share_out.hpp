#pragma once

#include <heed/executor.hpp>
#include <heed/types.hpp>

#include <atomic>

namespace smollm2 {

using heed::size_type;

/// Runs task(i, worker) for each i in [0, tasks), on the workers of a pool as they come free.
template <typename Task>
void share_out(heed::executor& pool, size_type tasks, const Task& task) {
  struct work {
    const Task& task;
    size_type tasks;
    std::atomic<size_type> next{0};
  } shared{task, tasks};
  pool.run(
      pool.workers(),
      [](void* context, int worker) {
        work& w = *static_cast<work*>(context);
        for (size_type i; (i = w.next.fetch_add(1, std::memory_order_relaxed)) < w.tasks;)
          w.task(i, worker);
      },
      &shared);
}

}  // namespace smollm2
