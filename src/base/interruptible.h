#pragma once
// Long work that cannot be interrupted, such as a call of a library, and a caller that nevertheless stops at once.
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/limits.h"

namespace trainer {

/// Thrown by interruptible(); what() is what was interrupted.
class Interrupted : public std::exception {
 public:
  explicit Interrupted(std::string doing) : doing_(std::move(doing)) {}
  const char* what() const noexcept override { return doing_.c_str(); }

 private:
  std::string doing_;
};

/// Functions that a waiting caller calls about ten times a second.
struct Watch {
  std::function<bool()> stop;                                          // true: give up; empty: never
  std::function<void(const std::string& doing, double seconds)> busy;  // shows progress; may be empty
};

/// Records that a thread of this process runs work that was given up.
void note_abandoned_work();
/// True if there may be such a thread. Then the process must end by _exit(): destructors of static objects would
/// destroy what the thread uses.
bool has_abandoned_work();

/// Returns the result of work(), which runs on a thread of its own. Throws Interrupted as soon as watch.stop() returns
/// true, without waiting for the thread: `work` must own everything that it uses, and must not write to files. Work
/// that takes less than a tenth of a second is never interrupted, so that a command whose time is already over makes
/// progress each time it is repeated. `doing` describes the work, as in "training the tokenizer".
template <typename F>
std::invoke_result_t<F> interruptible(const std::string& doing, const Watch& watch, F work) {
  if (!watch.stop) return work();
  std::packaged_task<std::invoke_result_t<F>()> task(std::move(work));
  auto result = task.get_future();
  const double start = now_seconds();
  auto thread = start_thread<std::thread>(doing, std::move(task));
  try {
    while (result.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout) {
      if (watch.busy) watch.busy(doing, now_seconds() - start);
      if (watch.stop()) throw Interrupted(doing);
    }
  } catch (...) {
    note_abandoned_work();
    thread.detach();
    throw;
  }
  thread.join();
  return result.get();
}

}  // namespace trainer
