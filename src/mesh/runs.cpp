#include "mesh/runs.h"

namespace trainer::mesh {

std::vector<Run> matrix_runs(int64_t rows, int64_t cols, int64_t local, int64_t pitch) {
  if (rows <= 0 || cols <= 0) return {};
  if (pitch == cols) return {{0, local, rows * cols}};
  std::vector<Run> runs;
  runs.reserve(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) runs.push_back({r * cols, local + r * pitch, cols});
  return runs;
}

}  // namespace trainer::mesh
