#include "offload/make.h"

#include <algorithm>

#include "offload/calibrate.h"

namespace trainer::offload {

std::optional<Rates> rates_of(const config::Debug& debug) {
  const std::optional<config::EmulatedRates> rates = config::emulated_rates(debug.emulate_device);
  if (debug.emulate_device.empty() || !rates) return std::nullopt;
  return Rates{.to_device = rates->to_device * 1e9,
               .to_host = rates->to_host * 1e9,
               .host = rates->host * 1e9,
               .device = rates->device * 1e9,
               .memory = rates->memory * 1e9,
               .pageable = rates->pageable * 1e9};
}

bool is_chosen(const config::Offload& offload) {
  return offload.optimizer == config::OffloadOptimizer::interleaved && !config::fraction_of(offload.gpu_fraction);
}

bool may_update_early(const config::Config& config) {
  return config.optim.grad_clip == 0 && config.train.max_skipped_steps == 0;
}

std::unique_ptr<Engine> make_engine(params::ParamStore& store, Arena& activations, const config::Config& config) {
  const config::Offload& offload = config.offload;
  if (offload.optimizer == config::OffloadOptimizer::none) return nullptr;
  const bool interleaved = offload.optimizer == config::OffloadOptimizer::interleaved;
  const std::optional<config::Fraction> share = config::fraction_of(offload.gpu_fraction);
  Plan plan{.device_share = interleaved ? share.value_or(config::Fraction()) : config::Fraction(),
            .slots = static_cast<int>(offload.slots),
            .resident = interleaved ? static_cast<int>(offload.resident) : 0,
            .order = offload.order,
            .blocking = !config.debug.overlap,
            .early = offload.early_update && may_update_early(config)};
  const bool chosen = is_chosen(offload);
  const std::optional<Rates> emulated = rates_of(config.debug);
  auto engine =
      std::make_unique<Engine>(store, config.optim, plan,
                               Engine::Options{.subgroup = offload.subgroup,
                                               .streams = chosen || plan.device_share.num > 0,
                                               .activations = offload.share_activations ? &activations : nullptr,
                                               .round_gradients = offload.grad_transport == config::GradTransport::bf16,
                                               .emulated = emulated});
  if (!chosen) return engine;
  if (emulated) {
    engine->use_rates(*emulated);
    return engine;
  }
  const Rates rates = measure_rates(store.device(), store.home(), largest_of(engine->subgroups()), store.state_dtype());
  if (!store.device().dry()) engine->use_rates(rates);
  return engine;
}

std::string to_string(const Engine& engine) {
  int counts[3] = {};
  for (size_t i = 0; i < engine.subgroups().size(); ++i) ++counts[static_cast<size_t>(engine.where()[i])];
  const Plan& plan = engine.plan();
  static constexpr std::string_view memory[] = {"", "; host memory is pinned",
                                                "; host memory is pageable, copied through pinned buffers",
                                                "; host memory is pageable, so nothing is streamed"};
  std::string text = format(
      "{} subgroup{} of at most {} elements: {} on the host, {} streamed through {} slot{}{}, {} resident{}{}{}",
      engine.subgroups().size(), engine.subgroups().size() == 1 ? "" : "s", largest_of(engine.subgroups()), counts[0],
      counts[1], plan.slots, plan.slots == 1 ? "" : "s", plan.share_activations ? " in the memory of activations" : "",
      counts[2], engine.options().round_gradients ? "; gradients are rounded to bf16" : "",
      plan.early ? "; updates begin with their gradients" : "", memory[static_cast<size_t>(engine.host_memory())]);
  if (!engine.rates() || engine.options().emulated) return text;
  const Rates& rates = *engine.rates();
  return text +
         format(
             "; measured: {:.1f} GB/s to the device, {:.1f} to the host, {:.1f} of host memory, updates of {:.2f} "
             "billion parameters/s on the host and {:.2f} on the device",
             rates.to_device * 1e-9, rates.to_host * 1e-9, rates.memory * 1e-9, rates.host * 1e-9, rates.device * 1e-9);
}

}  // namespace trainer::offload
