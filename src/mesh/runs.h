#pragma once
// Runs: how a rank's local storage of a parameter corresponds to the global tensor. Initialisation, checkpoints and norm
// ownership all go by runs, so none of them knows how a strategy cuts or places a tensor.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace trainer::mesh {

/// Elements [global, global + length) of the row-major global tensor are stored at [local, local + length).
struct Run {
  int64_t global = 0, local = 0, length = 0;
  bool operator==(const Run&) const = default;
};

/// Rows [0, rows) × columns [0, cols) of a global [rows, cols] tensor, stored at local + r·pitch + c. Adjacent rows merge.
std::vector<Run> matrix_runs(int64_t rows, int64_t cols, int64_t local, int64_t pitch);

}  // namespace trainer::mesh
