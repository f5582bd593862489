#include "plan/program.h"

#include <deque>

#include "config/layouts.h"
#include "config/resolve.h"
#include "parallel/strategy.h"

namespace trainer::plan {

void ProgramRecorder::add_operator(const OpCall& call) {
  program.push_back({.kind = Event::Kind::compute, .key = {}, .op = call});
}

int64_t ProgramRecorder::add_collective(const CommKey& key, uint8_t queue, int64_t elements, int64_t wire_bytes,
                                        bool varies) {
  program.push_back({.kind = Event::Kind::start,
                     .queue = queue,
                     .varies = varies,
                     .key = key,
                     .collective = collectives,
                     .elements = elements,
                     .wire_bytes = wire_bytes,
                     .op = {}});
  return collectives++;
}

void ProgramRecorder::add_wait(int64_t collective) {
  program.push_back({.kind = Event::Kind::wait, .key = {}, .collective = collective, .op = {}});
}

StepProgram record_step(const config::Config& config, int64_t vocab, const Machine& machine) {
  std::deque<ProgramRecorder> recorders;
  StepProgram step;
  step.plan = plan_run(config, vocab, machine, true, [&](const sharding::ActionKind& kind, int64_t count) {
    step.parts.push_back({.program = {}, .count = count, .kind = kind});
    const int64_t before = recorders.empty() ? 0 : recorders.back().collectives;
    recorders.emplace_back().collectives = before;
    return &recorders.back();
  });
  for (size_t i = 0; i < recorders.size(); ++i) step.parts[i].program = std::move(recorders[i].program);
  const sharding::ModelSharding layout = config::sharding_on(config, machine.ranks);
  step.mesh = parallel::mesh_shape(layout);
  for (const sharding::Layer& layer : layout.layers) step.experts |= layout.wide(layer.experts);
  step.expert_buffer = layout.expert_buffer;
  step.accumulation = config.train.global_batch / (config.train.micro_batch * config.parallel.data);
  step.orthogonalize = config::type_of(config.muon.compute).value_or(machine.compute);
  return step;
}

}  // namespace trainer::plan
