#pragma once
// The time of a step on a cluster, simulated from the step's program with a virtual clock.
//
// One rank represents all ranks, which run the same program in lockstep. Operators run one after the other. A started
// collective overlaps with them; collectives on the same channel run in order. There is one channel per set of axes and
// purpose (a single channel with parallel.lanes = 1), one per link, and one for scalars. Concurrent collectives on a
// link share its bandwidth. Waiting for a collective that has not ended is exposed communication. Communication slows
// down compute by Link::slowdown, and compute slows down communication to Link::progress. So a step overlaps as much as
// the trainer's schedule does, and no more.
#include <map>
#include <string>

#include "plan/cluster.h"
#include "plan/program.h"

namespace trainer::plan {

/// The seconds of a step by part; the parts add up to the total.
struct StepTime {
  double products = 0, attention = 0, operators = 0, recompute = 0, optimizer = 0;
  double offload = 0;  // the update, if the optimizer's state is on the host
  double slowed = 0;   // additional compute time due to concurrent communication
  struct Comm {
    double busy = 0, exposed = 0;  // seconds in flight; seconds not overlapped with compute
  };
  std::map<std::string, Comm> comm;  // by axis
  /// Seconds of communication (overlapped or not) that were not interpolated from measurements.
  double unmeasured = 0;
  /// Seconds in flight of the rows that ranks send to each other's experts, a part of `comm`.
  double exchange = 0;
  /// With several stages, the share of the step in which ranks wait for other stages, on average.
  double bubble = 0;

  double exposed() const;
  double compute() const { return products + attention + operators + recompute; }
  double total() const { return compute() + optimizer + offload + slowed + exposed(); }
};
/// The parts other than exposed communication.
struct StepPart {
  const char* name;
  double StepTime::*seconds;
};
inline constexpr StepPart kStepParts[] = {{"matmuls", &StepTime::products},
                                          {"attention", &StepTime::attention},
                                          {"other operators", &StepTime::operators},
                                          {"recomputation", &StepTime::recompute},
                                          {"optimizer", &StepTime::optimizer},
                                          {"update on the host", &StepTime::offload},
                                          {"compute slowed by communication", &StepTime::slowed}};
/// a + factor · (b − a), part by part.
StepTime extrapolate(const StepTime& a, const StepTime& b, double factor);

/// Returns how the ranks along these axes are distributed over the nodes of a cluster that assigns consecutive
/// ranks to each node.
GroupShape group_shape(const Cluster& cluster, const mesh::MeshShape& mesh, mesh::AxisSet axes);

/// Returns the seconds in which a GPU idles while the host reads how many rows a layer's experts have: about as long as
/// four launches take.
inline double counts_wait(const Cluster& cluster) { return cluster.cpu ? 0 : 4 * cluster.operator_seconds; }

/// Returns the seconds by which communication prolongs compute that starts at the same time. `communication` and
/// `compute` are the seconds that each takes on its own.
double added_by_overlap(const Link& link, double communication, double compute);

/// Returns the time of a step with one stage.
StepTime price(const StepProgram& step, const Cluster& cluster, DType compute);

/// The time of the programs of one stage's rank, without the waits for other stages.
struct StageTime {
  struct Part {
    sharding::ActionKind kind;
    int64_t count = 1;
    StepTime time;  // the time of each
  };
  std::vector<Part> parts;
  StepTime rest;  // the time of what follows the last action
};
StageTime price_parts(const StepProgram& step, const Cluster& cluster, DType compute);
/// Returns the time of the stage that ends last: of its programs, with its waits along "stage". `times`: by stage; the
/// chunks of their kinds may be those of another stage. `message`: the time of one from a stage to the next.
StepTime time_of_stages(const std::vector<const StageTime*>& times, const sharding::Stages& stages,
                        int64_t micro_batches, const CollectiveTime& message);
/// Returns the time of a message between stages whose ranks share it evenly.
CollectiveTime message_time(const Cluster& cluster, const config::Config& config, const mesh::MeshShape& mesh,
                            DType compute);

}  // namespace trainer::plan
