#pragma once
// Notifier: wakes a progress thread. A notification costs a system call only when the thread sleeps.
#include <atomic>

#include "base/futex.h"

namespace trainer::comm {

class Notifier {
 public:
  void notify() {
    count_.fetch_add(1);
    if (sleeping_.load()) futex_wake(count_);
  }
  uint32_t count() const { return count_.load(std::memory_order_acquire); }
  /// Returns once notify() has been called after count() returned `seen`, or after `seconds`. For one thread only.
  void wait(uint32_t seen, double seconds) {
    sleeping_.store(true);
    if (count_.load() == seen) futex_wait(count_, seen, seconds);
    sleeping_.store(false);
  }

 private:
  std::atomic<uint32_t> count_{0};
  std::atomic<bool> sleeping_{false};
};

}  // namespace trainer::comm
