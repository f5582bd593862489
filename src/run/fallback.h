#pragma once
// Fallback from a damaged checkpoint to the previous one, the same on all ranks.
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "comm/world.h"

namespace trainer::run {

/// Runs `list` on rank 0 and returns the step folders that it finds on every rank. Collective.
std::vector<std::filesystem::path> list_on_first_rank(comm::World& world,
                                                      const std::function<std::vector<std::filesystem::path>()>& list);

/// Runs `read` on every rank. Returns the text of the checkpoint::Damage that one of them threw, the same on all ranks;
/// empty if none did. Any other error is thrown on all. Collective.
std::string find_damage_on_any_rank(comm::World& world, const std::function<void()>& read);

/// Loads the first of `folders` that is intact. `load` returns the damage of a folder, the same on all ranks. Logs
/// which ones were skipped. If the last is damaged too, throws its damage, preceded by `none_whole`.
void load_first_whole(comm::World& world, const std::vector<std::filesystem::path>& folders,
                      const std::string& none_whole,
                      const std::function<std::string(const std::filesystem::path&)>& load);

}  // namespace trainer::run
