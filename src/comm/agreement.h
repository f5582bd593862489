#pragma once
// What must be the same on all ranks of a job: the first rank's is the job's, the others are held against it.
#include <string>
#include <utility>
#include <vector>

#include "comm/world.h"

namespace trainer::comm {

/// Names and values, in the order in which differences are looked for.
using Facts = std::vector<std::pair<std::string, std::string>>;

/// Throws `code` on all ranks alike when some rank's facts are not those of the first one: names that rank, its host
/// and the first difference, with what to do about it. Collective.
void require_same(World& world, const Facts& facts, Code code, const std::string& remedy);

}  // namespace trainer::comm
