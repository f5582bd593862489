#pragma once
// From a damaged checkpoint to the one before it, on all ranks alike.
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "comm/world.h"

namespace trainer::run {

/// The step folders that `list` finds on the first rank, on every rank.
std::vector<std::filesystem::path> list_on_first_rank(comm::World& world,
                                                      const std::function<std::vector<std::filesystem::path>()>& list);

/// Runs `read` on every rank. Returns the checkpoint::Damage that one of them met, the same text on all; empty when
/// none did. Any other error is thrown on all.
std::string find_damage_on_any_rank(comm::World& world, const std::function<void()>& read);

/// Loads the first of `folders` that is whole: `load` returns what is damaged in a folder, on all ranks alike. Says
/// which ones were skipped. When the last is damaged too, throws what is wrong with it behind `none_whole`.
void load_first_whole(comm::World& world, const std::vector<std::filesystem::path>& folders,
                      const std::string& none_whole,
                      const std::function<std::string(const std::filesystem::path&)>& load);

}  // namespace trainer::run
