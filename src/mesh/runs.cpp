#include "mesh/runs.h"

#include <algorithm>

#include "base/shape.h"

namespace trainer::mesh {

std::vector<Run> matrix_runs(int64_t rows, int64_t cols, int64_t local, int64_t pitch) {
  if (rows <= 0 || cols <= 0) return {};
  if (pitch == cols) return {{0, local, rows * cols}};
  std::vector<Run> runs;
  runs.reserve(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) runs.push_back({r * cols, local + r * pitch, cols});
  return runs;
}

std::vector<Run> clip_runs(const std::vector<Run>& runs, int64_t begin, int64_t count) {
  std::vector<Run> clipped;
  for (const Run& run : runs) {
    if (run.local >= begin + count || run.local + (run.length - 1) * run.stride < begin) continue;
    // Elements [first, last) of the run are inside the range.
    const int64_t first = run.local >= begin ? 0 : divide_up(begin - run.local, run.stride);
    const int64_t last = std::min(run.length, divide_up(std::max<int64_t>(0, begin + count - run.local), run.stride));
    if (first < last)
      append_run(clipped, {run.global + first, run.local + first * run.stride - begin, last - first, run.stride});
  }
  return clipped;
}

void append_run(std::vector<Run>& runs, const Run& run) {
  if (run.length <= 0) return;
  if (!runs.empty()) {
    Run& last = runs.back();
    if (last.stride == run.stride && last.global + last.length == run.global &&
        last.local + last.length * last.stride == run.local) {
      last.length += run.length;
      return;
    }
  }
  runs.push_back(run);
}

}  // namespace trainer::mesh
