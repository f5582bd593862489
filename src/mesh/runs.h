#pragma once
// Runs map a rank's local storage of a parameter to the global tensor. Initialization, checkpoints and the gradient
// norm all use runs, so none of them depends on how a strategy splits or places a tensor.
#include <cstdint>
#include <vector>

namespace trainer::mesh {

/// Elements [global, global + length) of the row-major global tensor are stored at local, local + stride, …; the stride
/// is 1 except in transposed tables.
struct Run {
  int64_t global = 0, local = 0, length = 0, stride = 1;
  bool operator==(const Run&) const = default;
};

/// Returns the runs of rows [0, rows) × columns [0, cols) of a global [rows, cols] tensor, stored at local + r·pitch +
/// c. Adjacent rows merge.
std::vector<Run> matrix_runs(int64_t rows, int64_t cols, int64_t local, int64_t pitch);

/// Returns the runs within [begin, begin + count) of the local storage, with `begin` as the new origin: the runs of a
/// shard of that storage, such as ZeRO's shard of a group's flat buffer.
std::vector<Run> clip_runs(const std::vector<Run>& runs, int64_t begin, int64_t count);

/// Appends `run`; merges it with the last run if it continues that run globally and locally.
void append_run(std::vector<Run>& runs, const Run& run);

}  // namespace trainer::mesh
