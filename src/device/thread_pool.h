#pragma once
// The thread pool of a rank. Waiting threads spin for some microseconds and then sleep on a futex, so that ranks that
// share cores do not starve each other. Libraries called from a task must use one thread.
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>

namespace trainer::device {

class ThreadPool {
 public:
  /// `threads` counts the caller too, so it is at least 1. Throws Code::plan if the system refuses a thread.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  /// Calls fn(task) or fn(task, worker) for every task in [0, tasks), worker in [0, threads()). A worker first runs its
  /// own share of consecutive tasks, in order, so the rows that it handles in one operator are in its caches for the
  /// next one. Then it takes over tasks of other workers, so the result of a task must not depend on which worker runs
  /// it. Returns when all tasks are done, and rethrows the first exception. A call from inside a task runs serially as
  /// worker 0.
  template <typename F>
  void parallel_for(int64_t tasks, F&& fn) {
    auto call = [](void* context, int64_t task, int worker) {
      auto& f = *static_cast<std::remove_reference_t<F>*>(context);
      if constexpr (std::is_invocable_v<F, int64_t, int>) {
        f(task, worker);
      } else {
        f(task);
      }
    };
    run(tasks, call, const_cast<void*>(static_cast<const void*>(&fn)));
  }

  /// The same, but a worker's own share is every threads()-th task, from task `worker` on.
  template <typename F>
  void deal(int64_t tasks, F&& fn) {
    if (tasks <= 1) return parallel_for(tasks, fn);
    const int64_t all = threads(), each = (tasks + all - 1) / all;
    parallel_for(each * all, [&](int64_t card, int worker) {
      if (const int64_t task = card % each * all + card / each; task < tasks) fn(task, worker);
    });
  }
  /// Starts background work instead of the previous one: during the calls of parallel_for that follow, half of the
  /// threads, rounded down, first run background tasks, in order, until the other threads are done with the call's
  /// tasks. So no background task is running between two calls. If one throws, the call rethrows the exception, and no
  /// more of them are run.
  void start_background(int64_t tasks, std::function<void(int64_t task)> work);
  /// Runs those of the first `tasks` background tasks that no thread has run yet, on all threads. Rethrows the
  /// exception of a background task that has thrown before.
  void finish_background(int64_t tasks);

  /// Returns the first task of a worker's own share in parallel_for; for worker = threads, the number of tasks.
  static int64_t first_task(int64_t tasks, int worker, int threads) { return (tasks * worker + threads - 1) / threads; }

 private:
  using Call = void (*)(void* context, int64_t task, int worker);
  void run(int64_t tasks, Call call, void* context);

  struct State;
  std::unique_ptr<State> state_;
};

/// Returns cores / local ranks, at least 1.
int share_of_cores(int local_ranks);
int default_threads(int local_ranks = 1);

}  // namespace trainer::device
