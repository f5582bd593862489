#include "base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <ctime>

namespace trainer {

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, double seconds) {
  timespec limit{};
  if (seconds >= 0) {
    const double whole = std::floor(seconds);
    limit.tv_sec = static_cast<time_t>(whole);
    limit.tv_nsec = static_cast<long>((seconds - whole) * 1e9);
  }
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, seconds >= 0 ? &limit : nullptr,
          nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace trainer
