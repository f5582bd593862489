#include "offload/make.h"

#include <algorithm>

#include "config/config.h"
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

std::unique_ptr<Engine> make_engine(params::ParamStore& store, const optim::Rules& rules,
                                    const config::Config& config) {
  const config::Offload& offload = config.offload;
  if (offload.optimizer == config::OffloadOptimizer::none) return nullptr;
  const optim::ElementwiseRule& rule = *rules.front()->elementwise();
  const bool interleaved = offload.optimizer == config::OffloadOptimizer::interleaved, chosen = is_chosen(offload);
  Placement placement{.resident = interleaved ? static_cast<int>(offload.resident) : 0,
                      .blocking = !config.debug.overlap};
  if (interleaved && !chosen) placement.device_share = *config::fraction_of(offload.gpu_fraction);
  const std::vector<Subgroup> subgroups = cut(store.groups(), offload.subgroup);
  const bool streams = chosen || placement.device_share.num > 0;  // some subgroups may be streamed
  placement.slots = streams ? static_cast<int>(std::min<int64_t>(offload.slots, std::ssize(subgroups))) : 0;
  Engine::Options options{.subgroup = offload.subgroup,
                          .round_gradients = offload.grad_transport == config::GradTransport::bf16,
                          .rates = rates_of(config.debug)};
  options.emulated = options.rates.has_value();
  if (chosen && !options.emulated) {
    const Rates rates = measure_rates(store.device(), store.home(), largest_of(subgroups), store.state_dtype(), rule);
    if (!store.device().dry()) options.rates = rates;
  }
  if (chosen && options.rates)
    placement.device_share =
        best_share(placement, subgroups, *options.rates, sizes_of(store, rule, options.round_gradients));
  return std::make_unique<Engine>(store, rule, placement, options);
}

std::string to_string(const Engine& engine) {
  int counts[3] = {};
  for (size_t i = 0; i < engine.subgroups().size(); ++i) ++counts[static_cast<size_t>(engine.where()[i])];
  const Placement& placement = engine.placement();
  static constexpr std::string_view memory[] = {"", "; host memory is pinned",
                                                "; host memory is pageable, copied through pinned buffers",
                                                "; host memory is pageable, so no subgroup is streamed"};
  std::string text =
      format("{} subgroup{} of at most {} elements: {} on the host, {} streamed through {} slot{}, {} resident{}{}",
             engine.subgroups().size(), engine.subgroups().size() == 1 ? "" : "s", largest_of(engine.subgroups()),
             counts[0], counts[1], placement.slots, placement.slots == 1 ? "" : "s", counts[2],
             engine.options().round_gradients ? "; gradients are rounded to bf16" : "",
             memory[static_cast<size_t>(engine.host_memory())]);
  if (!engine.options().rates || engine.options().emulated) return text;
  const Rates& rates = *engine.options().rates;
  return text + format(
                    "; measured: {:.1f} GB/s to the device, {:.1f} GB/s to the host, {:.1f} GB/s host memory "
                    "bandwidth, updates of {:.2f} billion parameters/s on the host and {:.2f} on the device",
                    rates.to_device * 1e-9, rates.to_host * 1e-9, rates.memory * 1e-9, rates.host * 1e-9,
                    rates.device * 1e-9);
}

}  // namespace trainer::offload
