#pragma once
// `trainer bench offload`: the ladder of optimizer offload at the rates of this machine, or of an emulated device.
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "config/config.h"
#include "plan/machine.h"

namespace trainer::cli {

/// `size`: parameters of a rank, 0: as many as a published run had. Text goes to `say`.
nlohmann::json offload_ladder(const config::Config& config, const plan::Machine& machine, int64_t size,
                              const std::function<void(const std::string&)>& say);

}  // namespace trainer::cli
