#pragma once
#include <string>

#include "plan/planner.h"

namespace trainer::cli {

/// Returns a plan as one HTML page that opens offline: the ranking as bars, the breakdown of the fastest layout's time,
/// and `words`, the table and its explanation.
std::string plan_page(const plan::Plan& plan, const plan::Cluster& cluster, size_t top, const std::string& words);

}  // namespace trainer::cli
