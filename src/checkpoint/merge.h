#pragma once
#include <filesystem>
#include <span>
#include <vector>

namespace trainer::checkpoint {

struct Merged {
  std::vector<std::filesystem::path> sources;  // the step folders that were read, the oldest first
  std::vector<double> shares;                  // the sources' shares in the weights; their sum is 1
  int64_t tensors = 0, bytes = 0;
};
/// Writes a step folder whose weights are the mean of those of several checkpoints of one model, added in fp64 in the
/// order of their saving and rounded once. With `decay` below 1 a checkpoint counts decay^((last − step) / spacing)
/// times, `spacing` being the distance of the first two: an exponential moving average after the fact. It has no
/// optimizer state, see strip(). Its other values are those of the newest source; the manifest lists all of them. Paths
/// as in resolve(). `output` must not exist; it is created completely or not at all. Memory use is bounded by the
/// largest tensor. Throws Code::checkpoint if a checkpoint is corrupted, or has a different model or tokenizer, or if
/// their steps do not rise with decay < 1; Code::io if writing fails.
Merged merge(std::span<const std::filesystem::path> paths, const std::filesystem::path& output, double decay = 1);

}  // namespace trainer::checkpoint
