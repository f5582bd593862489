#include "device/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

using trainer::device::ThreadPool;

TEST(ThreadPool, RunsEveryTaskExactlyOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (int repeat = 0; repeat < 200; ++repeat) {
      const int64_t tasks = repeat % 37;
      std::vector<std::atomic<int>> hits(static_cast<size_t>(tasks));
      const auto hit = [&](int64_t task, int worker) {
        ASSERT_LT(worker, threads);
        hits[static_cast<size_t>(task)]++;
      };
      pool.parallel_for(tasks, hit);
      for (auto& each : hits) ASSERT_EQ(each, 1);
      pool.deal(tasks, hit);
      for (auto& each : hits) ASSERT_EQ(each, 2);
    }
  }
}

TEST(ThreadPool, WorkersBeginWithTheirOwnSharesInOrder) {
  const int threads = 3;
  for (const int64_t tasks : {3, 4, 8, 100}) {
    ThreadPool pool(threads);
    std::atomic<int> arrived{0};
    std::vector<int64_t> latest(threads, -1);  // by worker: the latest task of its own share
    pool.parallel_for(tasks, [&](int64_t task, int worker) {
      const int64_t first = ThreadPool::first_task(tasks, worker, threads);
      int64_t& own = latest[static_cast<size_t>(worker)];
      if (own < 0) {
        EXPECT_EQ(task, first) << tasks << " tasks, worker " << worker;
        ++arrived;
        while (arrived.load() < threads) std::this_thread::yield();
      }
      if (task < first || task >= ThreadPool::first_task(tasks, worker + 1, threads)) return;
      EXPECT_GT(task, own) << tasks << " tasks, worker " << worker;
      own = task;
    });
  }
}

TEST(ThreadPool, WorkersAreDealtTasksInTurn) {
  const int threads = 3;
  ThreadPool pool(threads);
  std::atomic<int> arrived{0};
  std::vector<int64_t> firsts(threads, -1);
  pool.deal(10, [&](int64_t task, int worker) {
    int64_t& first = firsts[static_cast<size_t>(worker)];
    if (first >= 0) return;
    first = task;
    ++arrived;
    while (arrived.load() < threads) std::this_thread::yield();
  });
  EXPECT_EQ(firsts, (std::vector<int64_t>{0, 1, 2}));
}

TEST(ThreadPool, WorkersTakeOverTheTasksOfABusyWorker) {
  const int64_t tasks = 64;
  ThreadPool pool(2);
  for (const int64_t stuck : {int64_t{0}, tasks / 2}) {  // the first task of each worker
    std::atomic<int64_t> done{0};
    pool.parallel_for(tasks, [&](int64_t task) {
      if (task == stuck)
        while (done.load() < tasks - 1) std::this_thread::yield();
      ++done;
    });
    EXPECT_EQ(done, tasks);
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
