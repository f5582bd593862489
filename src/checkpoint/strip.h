#pragma once
#include <filesystem>

namespace trainer::checkpoint {

struct Stripped {
  std::filesystem::path source;  // the step folder that was read
  int64_t tensors = 0, bytes = 0;
};
/// Writes a step folder with a checkpoint's weights but without its optimizer state, a third of the size. It can be
/// used to evaluate, to generate and to initialize a run (model.init_from), but not to resume a run. PATH as in
/// resolve(). `output` must not exist; it is created completely or not at all. Every byte that is copied is verified.
/// Throws Code::checkpoint if the checkpoint is corrupted, Code::io if writing fails.
Stripped strip(const std::filesystem::path& path, const std::filesystem::path& output);

}  // namespace trainer::checkpoint
