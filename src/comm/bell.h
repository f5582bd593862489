#pragma once
// Bell: wakes a progress thread. Ringing costs a system call only when the thread sleeps.
#include <atomic>

#include "base/futex.h"

namespace trainer::comm {

class Bell {
 public:
  void ring() {
    count_.fetch_add(1);
    if (sleeping_.load()) futex_wake(count_);
  }
  uint32_t count() const { return count_.load(std::memory_order_acquire); }
  /// Returns once the bell has been rung after count() returned `seen`, or after `seconds`. For one thread only.
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
