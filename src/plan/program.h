#pragma once
// StepProgram: the operations of one rank in a step, in order: operators, the start of collectives, and the waits for
// them. The trainer's own code records it in a dry pass. So order, overlap, FLOPs and bytes are those of the real run,
// whatever the strategy.
#include <vector>

#include "comm/communicator.h"
#include "mesh/mesh_shape.h"
#include "setup/run_plan.h"

namespace trainer::plan {

using setup::Machine;
using setup::RunPlan;

struct Event {
  enum class Kind : uint8_t { compute, start, wait };
  Kind kind = Kind::compute;
  uint8_t queue = 0;                     // start: a comm::Purpose, or above those a link (comm::Group::queue())
  bool varies = false;                   // start: sends rows of experts, whose number depends on data
  CommKey key;                           // start
  int64_t collective = 0;                // start, wait: the number of the collective in the program
  int64_t elements = 0, wire_bytes = 0;  // start: the payload, and the bytes that the whole group sends
  OpCall op;                             // compute
};
using Program = std::vector<Event>;

/// True for collectives of scalars: losses, norms, requests to stop.
inline bool is_scalar_exchange(const Event& event) {
  return event.kind == Event::Kind::start && event.queue == static_cast<uint8_t>(comm::Purpose::control);
}

/// ProgramRecorder records the operations of a pass.
class ProgramRecorder final : public Recorder {
 public:
  void add_operator(const OpCall& call) override;
  int64_t add_collective(const CommKey& key, uint8_t queue, int64_t elements, int64_t wire_bytes, bool varies) override;
  void add_wait(int64_t collective) override;

  Program program;
  int64_t collectives = 0;  // the number of the next one
};

/// The programs of one rank's step, by the kind of their actions, and how often it runs each. The last one is what
/// follows the last action: the rest of the reductions, the norm and the update. Collectives have numbers of their own
/// in the whole step.
struct StepProgram {
  struct Part {
    Program program;
    int64_t count = 1;
    sharding::ActionKind kind = {};
  };
  mesh::MeshShape mesh;
  std::vector<Part> parts;
  int64_t accumulation = 1;
  DType orthogonalize = DType::f32;  // operand type of Muon's GEMMs
  mesh::AxisSet experts = 0;         // axes that divide experts
  double expert_buffer = 1;          // sharding::ModelSharding::expert_buffer
  RunPlan plan;                      // memory and bytes of the same run
};

/// Records the program of a training run. `config` must be resolved for machine.ranks ranks.
StepProgram record_step(const config::Config& config, int64_t vocab, const Machine& machine);

}  // namespace trainer::plan
