#pragma once
#include <chrono>

namespace trainer {

/// Returns seconds on a monotonic clock.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// A time interval in now_seconds(); end 0: not known.
struct Interval {
  double begin = 0, end = 0;
};

}  // namespace trainer
