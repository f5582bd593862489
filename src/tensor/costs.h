#pragma once
// Costs of a step: time by phase, memory by category, communication by axis and operation.
#include <cstdint>
#include <limits>
#include <map>
#include <string>

namespace trainer {

/// Marks an unknown number.
inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

using BytesByCategory = std::map<std::string, int64_t>;
/// Wire bytes by mesh axis and operation, summed over the ranks of one group along the axis.
using CommBytes = std::map<std::string, std::map<std::string, int64_t>>;
using WaitMs = std::map<std::string, std::map<std::string, double>>;
/// Returns text such as "tensor all_gather 4096 B, tensor all_reduce 64 B", or "none".
std::string comm_text(const CommBytes& bytes);

/// Wall time of a step's phases, which do not overlap. comm_exposed is the part of their total that was spent waiting
/// for communication.
struct PhaseMs {
  double data = 0, forward = 0, backward = 0, optimizer = 0, comm_exposed = 0;
};

}  // namespace trainer
