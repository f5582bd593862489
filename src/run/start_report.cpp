#include "run/start_report.h"

#include <cmath>
#include <iterator>
#include <numeric>

#include "base/log.h"
#include "base/units.h"
#include "config/families.h"
#include "config/layouts.h"
#include "ops/gemm.h"

namespace trainer::run {

report::StartReport start_report(const config::Config& config, const data::Datasets& datasets,
                                 const setup::RunPlan& plan, const setup::Machine& machine, const comm::World& world,
                                 train::Trainer& trainer) {
  report::StartReport start;
  start.name = config.run.name;
  start.time = report::utc_now();
  start.arch = config::family_of(config.model).name;
  start.compute = name_of(machine.compute);
  start.model = config.model;
  start.vocab_size = datasets.vocab;
  start.parameters = plan.parameters;
  start.global_batch = config.train.global_batch;
  start.micro_batch = config.train.micro_batch;
  start.accumulation = trainer.accumulation();
  start.data_replicas = trainer.replicas() / config::sharding_of(config).depth();
  start.train_tokens = datasets.train->tokens();
  if (datasets.train->is_mixed())
    for (const auto& [name, dataset, hash] : datasets.train->sources()) start.sources[name] = dataset.tokens();
  start.windows = datasets.train->windows();
  for (const data::NamedDataset& set : datasets.val) start.val_tokens += set.dataset.tokens();
  start.unigram_entropy = datasets.unigram_entropy;
  start.flops = plan.flops;
  // The system reports the memory of a process, which ranks that are threads share. GPU memory is counted per rank.
  const int ranks_of_process = world.transport() == "threads" && !machine.gpu ? world.size() : 1;
  int64_t memory = plan.total * ranks_of_process;
  if (ranks_of_process > 1 && !plan.stage_totals.empty())
    memory = std::reduce(plan.stage_totals.begin(), plan.stage_totals.end()) * ranks_of_process /
             std::ssize(plan.stage_totals);
  start.predicted = {.step_ms = plan.step_seconds * 1e3,
                     .wait_ms = plan.wait_seconds * 1e3,
                     .memory_bytes = memory,
                     .comm_bytes = plan.comm_bytes,
                     .bubble = plan.bubble};
  start.stages = setup::stage_lines(config, plan);
  start.predicted_by = plan.predicted_by;
  start.environment.device = machine.gpu ? "cuda" : "cpu";
  start.environment.isa = device_text(machine);
  start.environment.product_path = ops::product_path(trainer.device(), machine.compute);
  start.environment.ranks = world.size();
  start.environment.threads = machine.threads;
  return start;
}

std::vector<std::string> start_notes(const comm::GpuTransport& between_gpus, const train::Trainer& trainer) {
  const std::string& graphs = trainer.graphs().text();
  const char* const stages =
      trainer.config().parallel.stages == 1 ? "" : "stages: a request to stop is honored at the end of a step";
  return {between_gpus.reason.empty() ? "" : "tensors between GPUs: " + between_gpus.reason,
          graphs.empty() ? "" : "CUDA graphs: " + graphs, stages};
}

void log_start(const report::StartReport& start, const std::string& exchange, std::string_view compute_reason,
               std::string_view transport) {
  const report::Environment& environment = start.environment;
  log::info("{}: {} parameters, vocabulary {}, {} ({}), matmul with {}", start.name,
            format_count(static_cast<double>(start.parameters)), start.vocab_size, start.compute, compute_reason,
            environment.product_path);
  if (const std::string experts = experts_text(start); !experts.empty())
    log::info("experts: {}{}", experts, exchange.empty() ? "" : "; " + exchange);
  log::info("global_batch {} = micro_batch {} x accumulation {} x data {}; {} steps of {} tokens", start.global_batch,
            start.micro_batch, start.accumulation, start.data_replicas, start.total_steps,
            start.global_batch * start.model.seq_len);
  log::info("{}{} with {} on {}, peak per rank {}", counted(environment.ranks, "rank"),
            environment.ranks == 1 ? "" : format(" ({})", transport), counted(environment.threads, "thread"),
            environment.isa, to_string(start.peak));
  if (std::isfinite(start.predicted.step_ms))
    log::info("step: {:.4g} ms predicted with {}", start.predicted.step_ms, start.predicted_by);
  for (const std::string& line : start.stages) log::info("{}", line);
  const double samples =
      static_cast<double>(start.data_position + (start.total_steps - start.step) * start.global_batch);
  log::info("memory: {} predicted; data: {} training and {} validation tokens{}",
            format_bytes(static_cast<double>(start.predicted.memory_bytes)),
            format_count(static_cast<double>(start.train_tokens)), format_count(static_cast<double>(start.val_tokens)),
            start.sources.empty()
                ? format("; length {:.3g} epochs", samples / static_cast<double>(start.windows))
                : format(" in {} source{}", start.sources.size(), start.sources.size() == 1 ? "" : "s"));
}

}  // namespace trainer::run
