#pragma once
// Makes the engine that a configuration selects.
#include <memory>

#include "offload/engine.h"

namespace trainer::offload {

/// Makes the engine; null if offload.optimizer = "none". `store` must be allocated, with its state in the memory of its
/// home. Measures the rates of this machine if the share depends on them. All ranks of a host must call at the same
/// time.
std::unique_ptr<Engine> make_engine(params::ParamStore& store, const config::Config& config);

/// True if the streamed share is chosen to suit the machine's rates (gpu_fraction = "auto").
bool is_chosen(const config::Offload& offload);

/// Returns the rates of debug.emulate_device; none if it is not set.
std::optional<Rates> rates_of(const config::Debug& debug);

/// Returns a text for the log: "7 subgroups of at most 1.2M elements: 4 on the host, 3 streamed through 3 slots, 0
/// resident".
std::string to_string(const Engine& engine);

}  // namespace trainer::offload
