#pragma once
#include <string>

#include "plan/run_cost.h"

namespace trainer::cli {

/// Returns a plan as one HTML page that opens offline: the ranking as bars, the breakdown of the fastest layout's time,
/// and `words`, the table and its explanation.
std::string plan_page(const plan::Plan& plan, const plan::Cluster& cluster, size_t top, const std::string& words);

/// Returns a comparison of device counts as such a page: tokens/s as a curve, device-hours as bars, and `words`.
std::string scaling_page(const std::vector<plan::ScalingPoint>& points, const plan::Cluster& cluster,
                         const std::string& words);

}  // namespace trainer::cli
