#pragma once
// The engine that a configuration asks for.
#include <memory>

#include "offload/engine.h"

namespace trainer::offload {

/// Null: offload.optimizer = "none". `store` is allocated, its state in the memory of its home.
std::unique_ptr<Engine> make_engine(params::ParamStore& store, const config::Config& config);

/// The rates of debug.emulate_device; nothing without it.
std::optional<Rates> rates_of(const config::Debug& debug);

/// "7 subgroups of at most 1.2M elements: 4 on the host, 3 streamed through 3 slots, 0 resident", for the log.
std::string to_string(const Engine& engine);

}  // namespace trainer::offload
