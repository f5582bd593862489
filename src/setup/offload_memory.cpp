#include "setup/offload_memory.h"

#include "base/units.h"
#include "offload/engine.h"
#include "offload/make.h"
#include "optim/make.h"

namespace trainer::setup {
namespace {

using config::OffloadOptimizer;

/// Returns the bytes of host memory other than tensors.
int64_t host_rest(const RunPlan& plan) { return plan.memory.contains("host") ? plan.memory.at("host") : 0; }

/// Returns the plan of the run with the optimizer state where `offload` specifies.
RunPlan plan_with(const config::Offload& offload, config::Config config, int64_t vocab, const Machine& machine) {
  config.offload = offload;
  return plan_run(config, vocab, machine, true);
}

bool fits(const RunPlan& plan, const Machine& machine) {
  const PlacedBytes memory = memory_of(plan);
  const int64_t host = memory.host + host_rest(plan);
  if (!machine.gpu) return memory.device + host <= machine.memory_limit;
  return memory.device <= machine.memory_limit && (machine.host_limit == 0 || host <= machine.host_limit);
}

/// Returns text such as "fits without offload: yes, 1.2 GiB of 4.0 GiB per rank". `plan` is without offload.
std::string fits_without_offload(const RunPlan& plan, const Machine& machine) {
  const PlacedBytes memory = memory_of(plan);
  const int64_t bytes = machine.gpu ? memory.device : memory.device + memory.host + host_rest(plan);
  return format("fits without offload: {}, {} of {} per rank", fits(plan, machine) ? "yes" : "no", format_bytes(bytes),
                format_bytes(machine.memory_limit));
}

}  // namespace

PlacedBytes memory_of(const RunPlan& plan) {
  PlacedBytes memory;
  for (const auto& [category, bytes] : plan.memory) {
    if (category.starts_with("host_")) {
      memory.host += bytes;
    } else if (category != "host") {
      memory.device += bytes;
    }
  }
  return memory;
}

std::string offload_change_that_fits(const RunPlan& plan, const config::Config& config, int64_t vocab,
                                     const Machine& machine) {
  config::Offload tried = config.offload;
  const auto now_fits = [&] { return fits(plan_with(tried, config, vocab, machine), machine); };
  if (plan.replicas > 1 && config.parallel.zero_stage == 0) {
    config::Config split = config;
    split.parallel.zero_stage = 1;
    if (fits(plan_run(split, vocab, machine, true), machine)) return "parallel.zero_stage = 1 fits";
  }
  if (tried.optimizer == OffloadOptimizer::none) {
    tried.optimizer = OffloadOptimizer::cpu;
    const bool offloads = optim::named_rule(config)->elementwise() != nullptr;
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

std::string offload_note(const train::Trainer& trainer, const config::Config& config, int64_t vocab,
                         const Machine& machine) {
  if (trainer.offload() == nullptr) return {};
  std::string text = format("optimizer offload: {}", to_string(*trainer.offload()));
  if (trainer.offload()->options().emulated) {
    text += "; update times are those of an emulated device on a virtual clock";
  } else if (!machine.gpu) {
    text += "; the device is the CPU, so both share the host's memory";
  }
  config::Offload none = config.offload;
  none.optimizer = OffloadOptimizer::none;
  return text + "; " + fits_without_offload(plan_with(none, config, vocab, machine), machine);
}

std::string offload_table(const RunPlan& plan, const config::Config& config, int64_t vocab, const Machine& machine) {
  if (optim::named_rule(config)->elementwise() == nullptr) return {};
  std::string text = format("optimizer offload          {:>12}{:>12}\n", "device", "host");
  const auto row = [&](OffloadOptimizer optimizer, const std::string& name) {
    config::Offload tried = config.offload;
    tried.optimizer = optimizer;
    const bool same = optimizer == config.offload.optimizer;
    RunPlan placed = same ? plan : plan_with(tried, config, vocab, machine);
    const PlacedBytes memory = memory_of(placed);
    text += format("  {:<25}{:>12}{:>12}{}{}\n", name, format_bytes(memory.device), format_bytes(memory.host),
                   fits(placed, machine) ? "" : "  does not fit", same ? "  as configured" : "");
    return placed;
  };
  const RunPlan none = row(OffloadOptimizer::none, "none");
  row(OffloadOptimizer::cpu, "cpu");
  row(OffloadOptimizer::interleaved, format("interleaved, {}", counted(config.offload.slots, "slot")));
  return text + "  " + fits_without_offload(none, machine) + "\n";
}

}  // namespace trainer::setup
