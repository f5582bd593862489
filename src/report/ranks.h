#pragma once
// The times of ranks in windows of steps, and which of them are often slow.
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "report/events.h"

namespace trainer::report {

/// A rank is slow in a window if it needs more than this times the median of its stage's ranks, and often slow if it is
/// in kSlowWindows of the last kWindows windows.
inline constexpr double kSlow = 1.1;
inline constexpr size_t kSlowWindows = 8, kWindows = 10;

/// Returns the report of a window from each rank's own time (at least one). Percentiles are of the nearest rank; the
/// median of an even number is the mean of the two in the middle.
RanksReport ranks_report(int64_t step, std::vector<double> own_ms);

/// Returns for each rank the median of its stage's values; stages are contiguous blocks of ranks of equal size, whose
/// work differs. Values of 0 are not measured and do not count; 0 if all values are 0.
std::vector<double> stage_medians(const std::vector<double>& values, int64_t stages);

/// For each rank, whether it was slow in the last windows.
class SlowWindows {
 public:
  /// Adds a window: by rank, its time as a multiple of its stage's median.
  void add(std::vector<double> ratios);
  struct Rank {
    size_t rank = 0, windows = 0;  // windows: in which it was slow, of those known()
    double ratio = 0;              // its mean ratio in them
  };
  /// Returns the ranks that are often slow.
  std::vector<Rank> often_slow() const;
  size_t known() const { return windows_.size(); }

 private:
  std::deque<std::vector<double>> windows_;  // the last kWindows
};

}  // namespace trainer::report
