#pragma once
// Facts that must be equal on all ranks of a job: every rank's facts are compared with rank 0's.
#include <string>
#include <utility>
#include <vector>

#include "comm/world.h"

namespace trainer::comm {

/// Names and values, in the order in which they are compared.
using Facts = std::vector<std::pair<std::string, std::string>>;

/// Throws `code` on all ranks if some rank's facts differ from those of rank 0. The message names that rank and both
/// hosts, `relation`, the first difference with both values, and the remedy. Collective.
void require_same(World& world, const Facts& facts, Code code, const std::string& remedy,
                  const std::string& relation = "belongs to a different job than rank 0");

/// Returns this host's name, "?" if it is unknown.
std::string host_name();

}  // namespace trainer::comm
