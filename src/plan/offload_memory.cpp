#include "plan/offload_memory.h"

#include "measure/units.h"
#include "offload/make.h"

namespace trainer::plan {
namespace {

using config::OffloadOptimizer;

std::string bytes_text(int64_t bytes) { return measure::format_bytes(static_cast<double>(bytes)); }

RunPlan plan_with(config::Config config, const config::Offload& offload, int64_t vocab, const Machine& machine) {
  config.offload = offload;
  return plan_run(config, vocab, machine, true);
}

}  // namespace

DeviceAndHost memory_of(const RunPlan& plan) {
  DeviceAndHost memory;
  for (const auto& [category, bytes] : plan.memory) {
    if (category.starts_with("host_")) {
      memory.host += bytes;
    } else if (category != "host") {
      memory.device += bytes;
    }
  }
  return memory;
}

std::string fits_without_offload(const config::Config& config, int64_t vocab, const Machine& machine) {
  const RunPlan plan = plan_with(config, {}, vocab, machine);
  return format("fits without offload: {}, {} of {}", plan.total <= machine.memory_limit ? "yes" : "no",
                bytes_text(plan.total), bytes_text(machine.memory_limit));
}

std::string offload_note(const train::Trainer& trainer, const config::Config& config, int64_t vocab,
                         const Machine& machine) {
  if (trainer.offload() == nullptr) return {};
  std::string text = format("optimizer offload: {}", to_string(*trainer.offload()));
  if (trainer.offload()->options().emulated) {
    text += "; update times are of an emulated device, by a virtual clock";
  } else if (!machine.gpu) {
    text += "; the device is the CPU, whose memory is the host's";
  }
  if (config.offload.early_update && !offload::may_update_early(config))
    text +=
        "; offload.early_update is off: updates depend on the norm unless optim.grad_clip = 0 and "
        "train.max_skipped_steps = 0";
  return text + "; " + fits_without_offload(config, vocab, machine);
}

std::string offload_table(const RunPlan& plan, const config::Config& config, int64_t vocab, const Machine& machine) {
  if (config.offload.optimizer == OffloadOptimizer::none)
    return format("fits without offload: {}\n", plan.total <= machine.memory_limit
                                                    ? "yes"
                                                    : "no; offload.optimizer = \"cpu\" shows what it would take");
  std::string text = format("offload of the optimizer   {:>12}{:>12}\n", "device", "host");
  const auto row = [&](const std::string& name, const config::Offload& offload) {
    const bool same = offload.optimizer == config.offload.optimizer &&
                      (offload.optimizer != OffloadOptimizer::interleaved ||
                       offload.share_activations == config.offload.share_activations);
    const DeviceAndHost memory = memory_of(same ? plan : plan_with(config, offload, vocab, machine));
    text += format("  {:<25}{:>12}{:>12}{}\n", name, bytes_text(memory.device), bytes_text(memory.host),
                   same ? "  as configured" : "");
  };
  config::Offload tried = config.offload;
  tried.optimizer = OffloadOptimizer::none;
  row("none", tried);
  tried.optimizer = OffloadOptimizer::cpu;
  row("cpu", tried);
  tried.optimizer = OffloadOptimizer::interleaved;
  for (const bool shared : {false, true}) {
    tried.share_activations = shared;
    row(format("interleaved, {} slot{}{}", tried.slots, tried.slots == 1 ? "" : "s", shared ? " shared" : ""), tried);
  }
  return text + "  " + fits_without_offload(config, vocab, machine) + "\n";
}

}  // namespace trainer::plan
