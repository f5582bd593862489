#include "device/thread_pool.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/cgroup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/futex.h"
#include "base/limits.h"
#include "base/spin.h"

namespace trainer::device {
namespace {

constexpr double kSpinSeconds = 30e-6;
thread_local bool inside_task = false;

/// Returns once `word` differs from `old`: spins briefly, then sleeps. `sleepers` lets publish() skip the wake-up call.
uint32_t wait_for_change(std::atomic<uint32_t>& word, uint32_t old, std::atomic<uint32_t>& sleepers) {
  const double start = now_seconds();
  for (;;) {
    for (int i = 0; i < 64; ++i) {
      const uint32_t value = word.load(std::memory_order_acquire);
      if (value != old) return value;
      spin_pause();
    }
    if (now_seconds() - start > kSpinSeconds) break;
  }
  for (;;) {
    sleepers.fetch_add(1);
    if (word.load() == old) futex_wait(word, old);
    sleepers.fetch_sub(1);
    const uint32_t value = word.load(std::memory_order_acquire);
    if (value != old) return value;
  }
}

void publish(std::atomic<uint32_t>& word, std::atomic<uint32_t>& sleepers) {
  word.fetch_add(1);
  if (sleepers.load() != 0) futex_wake(word);
}

}  // namespace

struct ThreadPool::State {
  int threads = 1;
  std::vector<std::thread> workers;

  // The job. The caller writes it before it changes `epoch`; workers read it after that.
  Call call = nullptr;
  void* context = nullptr;
  int64_t tasks = 0;
  /// The tasks of one thread that no thread has claimed yet.
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  std::vector<Share> shares;  // by worker
  Share background;
  std::function<void(int64_t)> background_work;
  std::exception_ptr background_error;
  std::mutex error_mutex;
  std::exception_ptr error;

  alignas(64) std::atomic<uint32_t> epoch{0}, epoch_sleepers{0};
  alignas(64) std::atomic<uint32_t> finished{0}, finished_sleepers{0};  // finished: counts the completed jobs
  alignas(64) std::atomic<int> busy{0};
  std::atomic<int> in_front{0};  // the threads that run no background tasks and still work on the job
  std::atomic<bool> stop{false};

  void divide() {
    for (int worker = 0; worker < threads; ++worker) {
      Share& share = shares[static_cast<size_t>(worker)];
      share.next.store(first_task(tasks, worker, threads), std::memory_order_relaxed);
      share.end = first_task(tasks, worker + 1, threads);
    }
  }

  /// Claims a task of the share; returns false if none is left.
  static bool claim(Share& share, int64_t& task) {
    if (share.next.load(std::memory_order_relaxed) >= share.end) return false;  // without taking the cache line
    task = share.next.fetch_add(1, std::memory_order_relaxed);
    return task < share.end;
  }

  int threads_in_front() const { return threads - threads / 2; }

  template <typename F>
  void attempt(F&& task) {
    try {
      task();
    } catch (...) {
      const std::lock_guard lock(error_mutex);
      if (!error) error = std::current_exception();
      for (Share& each : shares) each.next.store(tasks, std::memory_order_relaxed);
    }
  }

  void run_background(int64_t task) {
    try {
      background_work(task);
    } catch (...) {
      const std::lock_guard lock(error_mutex);
      background_error = std::current_exception();
      background.next.store(background.end, std::memory_order_relaxed);
      throw;
    }
  }

  void work(int worker) {
    inside_task = true;
    const bool front = worker < threads_in_front();
    if (!front)
      for (int64_t task = 0; in_front.load(std::memory_order_relaxed) > 0 && claim(background, task);)
        attempt([&] { run_background(task); });
    for (int i = 0; i < threads; ++i) {
      Share& share = shares[static_cast<size_t>((worker + i) % threads)];
      for (int64_t task = 0; claim(share, task);) attempt([&] { call(context, task, worker); });
    }
    if (front) in_front.fetch_sub(1, std::memory_order_relaxed);
    inside_task = false;
  }

  void end() {
    stop = true;
    publish(epoch, epoch_sleepers);
    for (std::thread& worker : workers) worker.join();
  }

  void loop(int worker) {
    uint32_t seen = 0;
    for (;;) {
      seen = wait_for_change(epoch, seen, epoch_sleepers);
      if (stop.load()) return;
      work(worker);
      if (busy.fetch_sub(1) == 1) publish(finished, finished_sleepers);
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  TRAINER_CHECK(threads >= 1, "{} threads", threads);
  state_->threads = threads;
  state_->shares = std::vector<State::Share>(static_cast<size_t>(threads));
  try {
    for (int worker = 1; worker < threads; ++worker)
      state_->workers.push_back(start_thread<std::thread>(format("thread {} of {} (run.threads)", worker + 1, threads),
                                                          [state = state_.get(), worker] { state->loop(worker); }));
  } catch (const Error&) {
    state_->end();
    throw;
  }
}

ThreadPool::~ThreadPool() { state_->end(); }

int ThreadPool::threads() const { return state_->threads; }

void ThreadPool::run(int64_t tasks, Call call, void* context) {
  if (tasks <= 0) return;
  State& s = *state_;
  if (s.threads == 1 || tasks == 1 || inside_task) {
    for (int64_t task = 0; task < tasks; ++task) call(context, task, 0);
    return;
  }
  s.call = call;
  s.context = context;
  s.tasks = tasks;
  s.divide();
  s.error = nullptr;
  s.busy.store(s.threads - 1);
  s.in_front.store(s.threads_in_front());
  const uint32_t before = s.finished.load();
  publish(s.epoch, s.epoch_sleepers);
  s.work(0);
  wait_for_change(s.finished, before, s.finished_sleepers);
  if (s.error) std::rethrow_exception(s.error);
}

void ThreadPool::start_background(int64_t tasks, std::function<void(int64_t)> work) {
  State& s = *state_;
  s.background_work = std::move(work);
  s.background_error = nullptr;
  s.background.end = tasks;
  s.background.next.store(0);
}

void ThreadPool::finish_background(int64_t tasks) {
  State& s = *state_;
  if (s.background_error) std::rethrow_exception(s.background_error);
  const int64_t first = s.background.next.load(), all = s.background.end, last = std::min(tasks, all);
  if (first >= last) return;
  s.background.next.store(all);  // later tasks wait, or are dropped if one throws
  parallel_for(last - first, [&](int64_t task) { s.run_background(first + task); });
  s.background.next.store(last);
}

/// Returns the machine's cores, or fewer if a cgroup's CPU quota grants less time than these: the quota, rounded up.
static int usable_cores() {
  const auto cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const std::optional<double> quota = group_limits().cores;
  return quota && *quota < cores ? static_cast<int>(std::ceil(*quota)) : cores;
}

int share_of_cores(int local_ranks) { return std::max(1, usable_cores() / std::max(1, local_ranks)); }

int default_threads(int local_ranks) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const int allowed = sched_getaffinity(0, sizeof(mask), &mask) == 0 ? CPU_COUNT(&mask) : 1;
  return std::max(1, std::min(allowed, share_of_cores(local_ranks)));
}

}  // namespace trainer::device
