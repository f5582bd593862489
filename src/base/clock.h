#pragma once
#include <chrono>

namespace trainer {

/// Returns seconds on a monotonic clock.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// A time interval on the clock of now_seconds(); end is 0 if unknown.
struct Interval {
  double begin = 0, end = 0;
};

}  // namespace trainer
