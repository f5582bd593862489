#include "device/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

using trainer::device::ThreadPool;

TEST(ThreadPool, RunsEveryTaskExactlyOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (int repeat = 0; repeat < 200; ++repeat) {
      const int64_t tasks = repeat % 37;
      std::vector<std::atomic<int>> hits(static_cast<size_t>(tasks));
      pool.parallel_for(tasks, [&](int64_t task, int worker) {
        ASSERT_LT(worker, threads);
        hits[static_cast<size_t>(task)]++;
      });
      for (auto& hit : hits) ASSERT_EQ(hit, 1);
    }
  }
}

TEST(ThreadPool, RethrowsTheFirstExceptionAndStaysUsable) {
  ThreadPool pool(3);
  EXPECT_THROW(pool.parallel_for(50,
                                 [](int64_t task) {
                                   if (task == 17) throw std::runtime_error("task 17");
                                 }),
               std::runtime_error);
  std::atomic<int> count{0};
  pool.parallel_for(50, [&](int64_t) { ++count; });
  EXPECT_EQ(count, 50);
}

TEST(ThreadPool, NestedCallsRunSerially) {
  ThreadPool pool(2);
  std::atomic<int> count{0};
  pool.parallel_for(4, [&](int64_t) { pool.parallel_for(5, [&](int64_t) { ++count; }); });
  EXPECT_EQ(count, 20);
}
