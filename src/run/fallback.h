#pragma once
// Fallback from a corrupted checkpoint to the previous one, which is the same on all ranks.
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "comm/world.h"

namespace trainer::run {

/// Runs `list` on rank 0 and returns its step folders on every rank. Collective.
std::vector<std::filesystem::path> list_on_first_rank(comm::World& world,
                                                      const std::function<std::vector<std::filesystem::path>()>& list);

/// Runs `read` on every rank. Returns the text of a checkpoint::Damage thrown by any rank, the same on all ranks, or an
/// empty string if none was thrown. Any other error is thrown on all ranks. Collective.
std::string find_damage_on_any_rank(comm::World& world, const std::function<void()>& read);

/// Throws Code::checkpoint on all ranks unless the readers of all ranks have opened equal copies of a checkpoint: each
/// host may have its own. Collective.
void require_same_copy(comm::World& world, const checkpoint::Reader& reader);

/// Loads the first of `folders` that is intact. `load` returns the corruption found in a folder, the same on all ranks;
/// empty if it is intact. Logs the folders that were skipped. If the last folder is corrupted too, throws Damage with
/// `none_whole` followed by its corruption.
void load_first_whole(comm::World& world, const std::vector<std::filesystem::path>& folders,
                      const std::string& none_whole,
                      const std::function<std::string(const std::filesystem::path&)>& load);

}  // namespace trainer::run
