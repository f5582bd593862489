#include "device/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
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

TEST(ThreadPool, BackgroundTasksRunOnceInOrderWithinLaterCalls) {
  for (const int threads : {1, 2, 3, 8}) {
    SCOPED_TRACE(threads);
    ThreadPool pool(threads);
    constexpr int64_t kTasks = 500;
    std::vector<std::atomic<int>> hits(kTasks);
    std::atomic<int64_t> calls{0}, begun{0};
    std::atomic<bool> between_calls{true};
    pool.start_background(kTasks, [&](int64_t task) {
      EXPECT_FALSE(between_calls);
      hits[static_cast<size_t>(task)]++;
      ++begun;
    });
    for (int repeat = 0; repeat < 20; ++repeat) {
      between_calls = false;
      pool.parallel_for(20, [&](int64_t) { ++calls; });
      between_calls = true;
    }
    EXPECT_EQ(calls, 400);
    int64_t done = 0;
    while (done < kTasks && hits[static_cast<size_t>(done)] == 1) ++done;
    EXPECT_EQ(begun, done) << "in order";
    if (threads == 1) EXPECT_EQ(done, 0);
    between_calls = false;
    pool.finish_background(done);  // nothing to do
    EXPECT_EQ(begun, done);
    const int64_t more = std::min(kTasks, done + 7);
    pool.finish_background(more);
    EXPECT_GE(begun, more);
    pool.finish_background(kTasks + 5);
    pool.finish_background(kTasks);
    for (auto& each : hits) ASSERT_EQ(each, 1);
    EXPECT_EQ(begun, kTasks);
  }
}

TEST(ThreadPool, BackgroundTasksLeaveHalfOfTheThreadsToTheCall) {
  for (const int threads : {2, 3, 5}) {
    SCOPED_TRACE(threads);
    ThreadPool pool(threads);
    const int others = threads / 2;
    std::atomic<int> now{0}, most{0}, waiting{0};
    pool.start_background(1000, [&](int64_t) {
      const int running = ++now;
      for (int seen = most; seen < running && !most.compare_exchange_weak(seen, running);) continue;
      while (most < others) std::this_thread::yield();
      --now;
    });
    // The tasks of the call wait for as many background tasks as may run at a time.
    pool.parallel_for(threads, [&](int64_t) {
      ++waiting;
      while (most < others || waiting < threads - others) std::this_thread::yield();
    });
    EXPECT_EQ(waiting, threads);
    EXPECT_EQ(most, others);
  }
}

TEST(ThreadPool, AnExceptionInTheBackgroundDropsItsOtherTasks) {
  ThreadPool pool(2);
  for (const bool finishes : {false, true}) {
    std::atomic<int> begun{0};
    pool.start_background(100, [&](int64_t task) {
      ++begun;
      if (task == 3) throw std::runtime_error("task 3");
    });
    const auto use = [&] {
      if (finishes) return pool.finish_background(10);
      for (int repeat = 0; repeat < 1000 && begun < 4; ++repeat)
        pool.parallel_for(2, [](int64_t) { std::this_thread::yield(); });
    };
    EXPECT_THROW(use(), std::runtime_error);
    const int before = begun;
    EXPECT_THROW(pool.finish_background(100), std::runtime_error);
    std::atomic<int> count{0};
    pool.parallel_for(50, [&](int64_t) { ++count; });
    EXPECT_EQ(count, 50);
    EXPECT_EQ(begun, before);
    pool.start_background(0, {});
    pool.finish_background(100);
  }
}

TEST(ThreadPool, AnExceptionInACallLeavesTheBackgroundTasks) {
  ThreadPool pool(2);
  std::atomic<int> begun{0};
  pool.start_background(100, [&](int64_t) { ++begun; });
  EXPECT_THROW(pool.parallel_for(10, [](int64_t) { throw std::runtime_error("a task"); }), std::runtime_error);
  pool.finish_background(100);
  EXPECT_EQ(begun, 100);
}

TEST(ThreadPool, NewBackgroundWorkReplacesTheOld) {
  ThreadPool pool(2);
  std::atomic<int> old{0}, now{0};
  pool.start_background(1000, [&](int64_t) { ++old; });
  pool.finish_background(10);
  EXPECT_EQ(old, 10);
  pool.start_background(5, [&](int64_t) { ++now; });
  pool.finish_background(1000);
  EXPECT_EQ(old, 10);
  EXPECT_EQ(now, 5);
}
