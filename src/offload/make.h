#pragma once
// Creates the engine that a configuration selects.
#include <memory>

#include "config/offload.h"
#include "config/run.h"
#include "offload/engine.h"
#include "optim/make.h"

namespace trainer::offload {

/// Creates the engine; null if offload.optimizer = "none". `store`, which must be allocated with its state in the
/// memory of store.home(), and `rules`, an elementwise one, must outlive it. Measures this machine's rates if the
/// streamed share depends on them; for this, all ranks of a host must call at the same time.
std::unique_ptr<Engine> make_engine(params::ParamStore& store, const optim::Rules& rules, const config::Config& config);

/// True if the streamed share is chosen from the machine's rates (gpu_fraction = "auto").
bool is_chosen(const config::Offload& offload);

/// Returns the rates given by debug.emulate_device; empty if that is not set.
std::optional<Rates> rates_of(const config::Debug& debug);

/// Returns text for the log: "7 subgroups of at most 1200000 elements: 4 on the host, 3 streamed through 3 slots, 0
/// resident".
std::string to_string(const Engine& engine);

}  // namespace trainer::offload
