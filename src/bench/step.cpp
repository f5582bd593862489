#include "bench/step.h"

#include <algorithm>
#include <memory>

#include "base/log.h"
#include "base/median.h"
#include "base/units.h"
#include "bench/random_steps.h"
#include "config/flops.h"
#include "config/layouts.h"
#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "ops/op_timing.h"
#include "setup/gemm_tuning.h"
#include "setup/run_plan.h"
#include "tensor/buffer.h"
#include "train/trainer.h"

namespace trainer::bench {
namespace {

/// Returns the bytes per second of copies much larger than the caches, counting both reads and writes.
double copy_rate(device::Device& device) {
  constexpr int kRepeats = 5;
  int64_t bytes = int64_t{64} << 20;
  if (device.kind() == device::DeviceKind::cuda)
    bytes = std::min<int64_t>(int64_t{256} << 20, device.gpu().memory_bytes / 512 / 4096 * 4096);
  Arena arena(device, Arena::Mode::heap);
  Meter unused;
  Exec ex{device, arena, unused};
  const Buffer from(device, "bench", {bytes / 4}, DType::f32), to(device, "bench", {bytes / 4}, DType::f32);
  ops::fill_uniform(device, from, "x");  // memory that was never written may not be backed by pages yet
  ops::fill_uniform(device, to, "y");
  return 2 * static_cast<double>(bytes) / ops::median_seconds(ex, ops::Copy{from, to}, kRepeats);
}

}  // namespace

StepCount count_step(const config::Config& whole, const setup::Machine& machine) {
  config::Config config = whole;
  config.train.global_batch = whole.train.micro_batch;  // one micro-step: they all do the same work
  const int64_t micro_steps = whole.train.global_batch / whole.train.micro_batch, vocab = config.data.vocab_size;
  const std::unique_ptr<comm::World> world = comm::solo_world();
  setup::use_gemm_tuning(config, *world, *setup::make_dry_device(machine));
  const std::unique_ptr<device::Device> dry = setup::make_dry_device(machine);
  train::Trainer trainer(*dry, *world, config, vocab, machine.compute);
  trainer.store().weights().expect_micro_batches(micro_steps);
  trainer.plan();
  StepCount count{
      .parameters = trainer.store().parameter_count(),
      .tokens = whole.train.global_batch * config.model.seq_len,
      .compute = std::string(name_of(machine.compute)),
      .model_flops_per_token = config::flops_per_token(config.model, vocab, recomputed_layers(config)).full(),
      .operators = {}};
  for (int i = 0; i < kOpKinds; ++i) {
    const auto kind = static_cast<OpKind>(i);
    const Meter::Entry& entry = trainer.meter().of(kind);
    if (entry.calls == 0) continue;
    const bool keeps_packed = kind == OpKind::pack && micro_steps > ops::kFewUses;
    const bool once =
        kind == OpKind::grad_norm || kind == OpKind::optimizer || kind == OpKind::orthogonalize || keeps_packed;
    const int64_t times = once ? 1 : micro_steps;
    const auto scale = static_cast<double>(times) * 1e-9;
    count.operators.push_back({.name = std::string(name_of(kind)),
                               .calls = entry.calls * times,
                               .gflops = entry.flops * scale,
                               .gb = entry.bytes * scale});
  }
  std::sort(count.operators.begin(), count.operators.end(),
            [](const OpShare& a, const OpShare& b) { return a.gb > b.gb; });
  return count;
}

std::string to_text(const StepCount& count) {
  std::string text = format("{} parameters, {} tokens per step, {}, {:.3g} model TFLOP per step; counted, not timed\n",
                            format_count(count.parameters), count.tokens, count.compute,
                            count.model_flops_per_token * static_cast<double>(count.tokens) * 1e-12);
  text += format("{:<14}{:>8}{:>12}{:>10}\n", "operator", "calls", "GFLOP", "GB");
  for (const OpShare& op : count.operators)
    text += format("{:<14}{:>8}{:>12.3f}{:>10.4f}\n", op.name, op.calls, op.gflops, op.gb);
  return text;
}

StepBench bench_step(const config::Config& given, const setup::Machine& machine, int warmup, int steps,
                     const std::vector<std::string>& files) {
  config::Config config = given;
  const int64_t vocab = config.data.vocab_size;
  const train::BatchSource batches =
      files.empty() ? random_batches(config) : file_batches(config, files, machine.threads);
  const std::unique_ptr<comm::World> world = comm::solo_world();
  setup::use_gemm_tuning(config, *world, *setup::make_dry_device(machine));
  const setup::RunPlan plan =
      setup::overlap_if_it_fits(config, machine, [&] { return setup::plan_run(config, vocab, machine, true); });
  setup::require_memory(plan, config, vocab, machine);
  const std::unique_ptr<device::Device> device = setup::make_device(machine);
  // The copy rate is measured before the model is allocated, so that its buffers do not add to the peak memory.
  const double copied = bench::copy_rate(*setup::make_device(machine));
  train::Trainer trainer(*device, *world, config, vocab, machine.compute);
  trainer.plan();
  trainer.store().initialize(static_cast<uint64_t>(config.run.seed));
  setup::PeakTracker peak = setup::make_peak(*device, machine.compute, config, *world);

  StepBench bench;
  const auto timed_step = [&](int i) {
    const double start = now_seconds();
    trainer.step(work_of(config, i + 1), batches);
    device->synchronize();
    return (now_seconds() - start) * 1e3;
  };
  for (int i = 0; i < warmup + steps; ++i) {
    if (i == warmup) trainer.meter().reset();
    const double ms = timed_step(i);
    if (i >= warmup) bench.step_ms.push_back(ms);
    peak.measure(setup::PeakTracker::kBetweenSteps);
  }
  bench.median_ms = median(bench.step_ms);
  bench.parameters = trainer.store().parameter_count();
  bench.tokens = config.train.global_batch * config.model.seq_len;
  bench.threads = machine.threads;
  bench.compute = name_of(machine.compute);
  bench.product_path = ops::product_path(*device, machine.compute);
  bench.tokens_per_s = static_cast<double>(bench.tokens) / bench.median_ms * 1e3;
  const config::FlopsPerToken& flops = plan.flops;
  bench.model_tflops = flops.full() * bench.tokens_per_s * 1e-12;
  const double fastest_ms = *std::min_element(bench.step_ms.begin(), bench.step_ms.end());
  std::vector<std::pair<double, const char*>> rates = {
      {flops.hardware() * static_cast<double>(bench.tokens) / fastest_ms * 1e3, "the fastest step"}};
  if (!machine.gpu) {  // on a GPU, only the launches of operators were timed
    for (const auto& [kind, what] : {std::pair{OpKind::gemm, "the GEMMs"}, {OpKind::attention, "attention"}}) {
      const Meter::Entry& entry = trainer.meter().of(kind);
      if (entry.seconds > 0) rates.emplace_back(entry.flops / entry.seconds, what);
    }
  }
  for (const auto& [rate, what] : rates)
    if (const std::string message = peak.raise_to_rate(rate, what); !message.empty()) log::warning("{}", message);
  bench.peak = peak.report();
  const config::Utilisation use = config::utilisation(flops, bench.tokens_per_s, peak.flops());
  bench.mfu = use.mfu;
  bench.mfu_causal = use.mfu_causal;
  bench.hfu = use.hfu;
  for (const auto& [category, bytes] : trainer.memory()) bench.memory_bytes += bytes;
  // The roofline: no operator takes less time than its FLOPs at the rate of GEMMs, or than its bytes at the memory
  // bandwidth (Williams, Waterman, Patterson 2009).
  const auto least_seconds = [&](double work_flops, double work_bytes) {
    return std::max(work_flops / peak.flops(), work_bytes / copied);
  };
  bench.copy_gb_per_s = copied * 1e-9;
  double accounted = 0, total = 0;
  for (const double ms : bench.step_ms) total += ms;
  // Timing operators prevents overlap and makes steps longer, so it takes separate steps.
  if (machine.gpu || optim::overlaps_forward(config, machine.threads)) {
    trainer.store().settle();
    trainer.meter().reset();
    trainer.meter().timed = device.get();
    total = 0;
    for (int i = 0; i < steps; ++i) total += timed_step(warmup + steps + i);
  }
  for (int kind = 0; kind < kOpKinds; ++kind) {
    const Meter::Entry& entry = trainer.meter().of(static_cast<OpKind>(kind));
    if (entry.calls == 0) continue;
    const double per_step = 1.0 / steps;
    bench.operators.push_back({std::string(name_of(static_cast<OpKind>(kind))), entry.calls / steps,
                               entry.seconds * 1e3 * per_step, entry.flops * 1e-9 * per_step,
                               entry.bytes * 1e-9 * per_step,
                               least_seconds(entry.flops, entry.bytes) * 1e3 * per_step});
    accounted += entry.seconds * 1e3;
  }
  std::sort(bench.operators.begin(), bench.operators.end(),
            [](const OpShare& a, const OpShare& b) { return a.ms > b.ms; });
  bench.operators.push_back({.name = "other", .ms = (total - accounted) / steps});
  return bench;
}

ops::MeasuredGemms tune_products(const config::Config& whole, const setup::Machine& machine, int most, int repeats) {
  const int64_t vocab = whole.data.vocab_size;
  config::Config config = whole;
  config.train.global_batch /= std::max<int64_t>(1, whole.parallel.data);
  config.parallel.data = 1;      // all replicas do the same work
  setup::Machine one = machine;  // one rank of a replica, without the other ranks
  one.ranks = static_cast<int>(config::ranks_of_replica(config));
  const auto planned = [&] { return setup::plan_run(config, vocab, one, true); };
  setup::require_memory(planned(), config, vocab, one);
  const std::unique_ptr<device::Device> device = setup::make_device(one);
  const std::unique_ptr<comm::World> world = comm::dry_world(one.ranks, one.rank);
  ops::measure_gemms(*device, most, repeats, /*forms=*/true);
  if (const int64_t needed = planned().total; needed > one.memory_limit) {
    log::warning(
        "GEMMs are measured without transposed copies of their operands: with copies the step would need {}, but only "
        "{} is available",
        format_bytes(needed), format_bytes(one.memory_limit));
    ops::measure_gemms(*device, most, repeats, /*forms=*/false);
  }
  train::Trainer trainer(*device, *world, config, vocab, one.compute);
  trainer.plan();
  trainer.store().initialize(static_cast<uint64_t>(config.run.seed));
  train::StepWork work = work_of(config, 1);
  if (config.parallel.stages == 1)
    work.micro_batches = std::min<int64_t>(work.micro_batches, 2);  // the second adds to the gradients of the first
  trainer.step(work, random_batches(config));
  device->synchronize();
  return ops::measured_gemms(*device);
}

int64_t memory_of_steps(const config::Config& config, const setup::Machine& machine, int steps, MemoryProbe& probe) {
  const std::unique_ptr<device::Device> device = setup::make_device(machine);
  const std::unique_ptr<comm::World> world = comm::solo_world();
  train::Trainer trainer(*device, *world, config, config.data.vocab_size, machine.compute);
  trainer.plan();
  trainer.store().initialize(static_cast<uint64_t>(config.run.seed));
  const train::BatchSource random = random_batches(config);
  for (int i = 0; i < steps; ++i) trainer.step(work_of(config, i + 1), random);
  return probe.sample();
}

std::string to_text(const StepBench& b) {
  std::string text = format("{} parameters, {} tokens per step, {}, {} threads, matmul with {}\n",
                            format_count(b.parameters), b.tokens, b.compute, b.threads, b.product_path);
  text += format("median of {} steps: {:.1f} ms, {:.0f} tokens/s, {:.3f} TFLOP/s, mfu {} of {}\n", b.step_ms.size(),
                 b.median_ms, b.tokens_per_s, b.model_tflops, format_percent(b.mfu), to_string(b.peak));
  text += format("{:<14}{:>8}{:>11}{:>9}{:>12}{:>9}{:>10}{:>12}{:>10}\n", "operator", "calls", "ms", "share", "GFLOP/s",
                 "GB/s", "of peak", "ideal ms", "of ideal");
  double least_ms = 0, mean_ms = 0;  // operators' times are means over the steps
  for (const OpShare& op : b.operators) mean_ms += op.ms;
  for (const OpShare& op : b.operators) {
    const double rate = op.gflops / op.ms * 1e3;
    const auto given = [](double work, const std::string& shown) { return work > 0 ? shown : "-"; };
    least_ms += op.least_ms;
    text += format("{:<14}{:>8}{:>11.2f}{:>9}{:>12}{:>9}{:>10}{:>12}{:>10}\n", op.name, op.calls, op.ms,
                   format_percent(op.ms / mean_ms), given(op.gflops, format("{:.1f}", rate)),
                   given(op.gb, format("{:.1f}", op.gb / op.ms * 1e3)),
                   given(op.gflops, format_percent(rate * 1e9 / b.peak.flops)),
                   given(op.least_ms, format("{:.2f}", op.least_ms)),
                   given(op.least_ms, format_percent(op.least_ms / op.ms)));
  }
  text += format("ideal: {:.1f} ms in total, at peak FLOP/s and a copy bandwidth of {:.1f} GB/s\n", least_ms,
                 b.copy_gb_per_s);
  return text;
}

}  // namespace trainer::bench
