#pragma once
// Helpers for every writer of a step folder: the files next to the shards, and the atomic publication of the folder.
#include <filesystem>
#include <functional>

#include "base/file_io.h"
#include "checkpoint/manifest.h"

namespace trainer::checkpoint {

/// Completes a step folder whose shards are written: adds the configuration and tokenizer from the manifest's header,
/// the manifest itself and COMPLETE. Everything is durable on return. Throws Code::checkpoint if the shards do not
/// cover the tensors, Code::io if writing fails.
void complete_step_folder(const std::filesystem::path& folder, Manifest manifest, SystemCalls& calls = system_calls());

/// Creates the folder `output`, which must not exist: `write` fills a hidden folder next to `output`, which is then
/// renamed, or removed if `write` throws. Throws Code::io if `output` exists, another process is writing it (which
/// holds a lock on a hidden file next to it), or writing fails.
void write_new_folder(const std::filesystem::path& output,
                      const std::function<void(const std::filesystem::path&)>& write);
/// Creates a file likewise: `write` creates a hidden file next to `output`.
void write_new_file(const std::filesystem::path& output,
                    const std::function<void(const std::filesystem::path&)>& write);

}  // namespace trainer::checkpoint
