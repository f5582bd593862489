#include "setup/offload_memory.h"

#include <algorithm>

#include "base/units.h"
#include "offload/make.h"

namespace trainer::setup {
namespace {

using config::OffloadOptimizer;

std::string bytes_text(int64_t bytes) { return format_bytes(bytes); }

/// Returns the bytes of host memory other than tensors.
int64_t host_rest(const RunPlan& plan) { return plan.memory.contains("host") ? plan.memory.at("host") : 0; }

/// Returns the planned run's memory, with `extents` and `offload` in place of its own.
offload::Footprint memory_with(const RunPlan& plan, const config::Config& config,
                               const std::vector<offload::Extent>& extents, const config::Offload& offload,
                               const Machine& machine) {
  const bool emulated = offload::rates_of(config.debug).has_value();
  const offload::Footprint own = offload::footprint(plan.extents, machine.compute, config.offload, emulated);
  const offload::Footprint other = offload::footprint(extents, machine.compute, offload, emulated);
  const offload::Footprint memory = memory_of(plan);
  return {memory.device + other.device - own.device, memory.host + other.host - own.host};
}

bool fits(const offload::Footprint& memory, const RunPlan& plan, const Machine& machine) {
  const int64_t host = memory.host + host_rest(plan);
  if (!machine.gpu) return memory.device + host <= machine.memory_limit;
  return memory.device <= machine.memory_limit && (machine.host_limit == 0 || host <= machine.host_limit);
}

/// Returns text such as "fits without offload: yes, 1.2 GiB of 4.0 GiB per rank".
std::string fits_without_offload(const RunPlan& plan, const config::Config& config, const Machine& machine) {
  config::Offload none = config.offload;
  none.optimizer = OffloadOptimizer::none;
  const offload::Footprint memory = memory_with(plan, config, none, machine);
  const int64_t bytes = machine.gpu ? memory.device : memory.device + memory.host + host_rest(plan);
  return format("fits without offload: {}, {} of {} per rank", fits(memory, plan, machine) ? "yes" : "no",
                bytes_text(bytes), bytes_text(machine.memory_limit));
}

}  // namespace

offload::Footprint memory_of(const RunPlan& plan) {
  offload::Footprint memory;
  for (const auto& [category, bytes] : plan.memory) {
    if (category.starts_with("host_")) {
      memory.host += bytes;
    } else if (category != "host") {
      memory.device += bytes;
    }
  }
  return memory;
}

offload::Footprint memory_with(const RunPlan& plan, const config::Config& config, const config::Offload& offload,
                               const Machine& machine) {
  return memory_with(plan, config, plan.extents, offload, machine);
}

std::string offload_change_that_fits(const RunPlan& plan, const config::Config& config, const Machine& machine) {
  config::Offload tried = config.offload;
  const auto now_fits = [&] { return fits(memory_with(plan, config, tried, machine), plan, machine); };
  if (plan.replicas > 1 && config.parallel.zero_stage == 0) {
    std::vector<offload::Extent> split = plan.extents;
    for (offload::Extent& group : split) {
      const comm::Chunk held = comm::chunk_of(group.elements, plan.replicas, 0);
      group.states = group.states * held.count / std::max<int64_t>(1, group.held.count);
      group.held = held;
    }
    if (fits(memory_with(plan, config, split, tried, machine), plan, machine)) return "parallel.zero_stage = 1 fits";
  }
  if (tried.optimizer == OffloadOptimizer::none) {
    tried.optimizer = OffloadOptimizer::cpu;
    const bool offloads = config.optim.name == config::OptimizerName::adamw;
    return offloads && machine.gpu && now_fits() ? "offload.optimizer = \"cpu\" fits" : "";
  }
  tried.optimizer = OffloadOptimizer::none;
  if (now_fits()) return "offload.optimizer = \"none\" fits";
  tried = config.offload;
  if (tried.optimizer == OffloadOptimizer::interleaved) {
    while (--tried.slots >= 1)
      if (now_fits()) return format("offload.slots = {} fits", tried.slots);
    tried.slots = config.offload.slots;
  }
  constexpr int64_t kSmallest = int64_t{1} << 16;
  for (tried.subgroup /= 2; tried.subgroup >= kSmallest; tried.subgroup /= 2)
    if (now_fits()) return format("offload.subgroup = {} fits", tried.subgroup);
  tried = config.offload;
  tried.optimizer = OffloadOptimizer::cpu;
  if (now_fits()) return "offload.optimizer = \"cpu\" fits";
  tried.grad_transport = config::GradTransport::bf16;
  return now_fits() ? "offload.optimizer = \"cpu\" fits with offload.grad_transport = \"bf16\", which rounds gradients"
                    : "";
}

std::string offload_note(const train::Trainer& trainer, const RunPlan& plan, const config::Config& config,
                         const Machine& machine) {
  if (trainer.offload() == nullptr) return {};
  std::string text = format("optimizer offload: {}", to_string(*trainer.offload()));
  if (trainer.offload()->options().emulated) {
    text += "; update times are those of an emulated device on a virtual clock";
  } else if (!machine.gpu) {
    text += "; the device is the CPU, so both share the host's memory";
  }
  return text + "; " + fits_without_offload(plan, config, machine);
}

std::string offload_table(const RunPlan& plan, const config::Config& config, const Machine& machine) {
  std::string text = format("optimizer offload          {:>12}{:>12}\n", "device", "host");
  const auto row = [&](const std::string& name, const config::Offload& offload) {
    const bool same = offload.optimizer == config.offload.optimizer;
    const offload::Footprint memory = memory_with(plan, config, offload, machine);
    text += format("  {:<25}{:>12}{:>12}{}{}\n", name, bytes_text(memory.device), bytes_text(memory.host),
                   fits(memory, plan, machine) ? "" : "  does not fit", same ? "  as configured" : "");
  };
  config::Offload tried = config.offload;
  tried.optimizer = OffloadOptimizer::none;
  row("none", tried);
  tried.optimizer = OffloadOptimizer::cpu;
  row("cpu", tried);
  tried.optimizer = OffloadOptimizer::interleaved;
  row(format("interleaved, {}", counted(tried.slots, "slot")), tried);
  return text + "  " + fits_without_offload(plan, config, machine) + "\n";
}

}  // namespace trainer::setup
