#pragma once
// Helpers for every writer of a step folder: the files next to the shards, and the atomic publication of the folder.
#include <filesystem>
#include <functional>

#include "base/file_io.h"
#include "checkpoint/manifest.h"

namespace trainer::checkpoint {

/// Completes a step folder whose shards are written: adds configuration and tokenizer of the manifest's header, the
/// manifest itself and COMPLETE. Everything is durable on return. Throws Code::checkpoint when the shards do not cover
/// their tensors, Code::io when writing fails.
void complete_step_folder(SystemCalls& calls, const std::filesystem::path& folder, Manifest manifest);

/// Creates the folder `output`, which must not exist: `write` fills a hidden one next to it, which is then renamed. If
/// `write` throws, the hidden folder is removed. Throws Code::io when `output` exists or writing fails.
void write_new_folder(SystemCalls& calls, const std::filesystem::path& output,
                      const std::function<void(const std::filesystem::path&)>& write);

}  // namespace trainer::checkpoint
