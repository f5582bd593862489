#pragma once
// The time of a step on a cluster: its program is simulated with a virtual clock.
//
// One rank represents all: they run the same program in lockstep. Operators run one after the other. A collective
// overlaps with them from its start, in the order of its channel: one per set of axes and lane, or a single one if the
// transport has one lane, in addition to the channel of scalars. Collectives that use a link at the same time share its
// rate. Waiting for a collective that has not ended is exposed communication. During communication compute is slower by
// Link::slowdown, and during compute communication is slower by Link::progress. So a step overlaps as much as the
// trainer's schedule does, and no more.
#include <map>
#include <string>

#include "plan/cluster.h"
#include "plan/program.h"

namespace trainer::plan {

/// Seconds of a step, and where they go: the parts add up to the total.
struct StepTime {
  double products = 0, attention = 0, operators = 0, recompute = 0, optimizer = 0;
  double offload = 0;  // the update, if the optimizer's state is on the host
  double slowed = 0;   // by concurrent communication
  struct Comm {
    double busy = 0, exposed = 0;  // seconds on the wire; seconds not overlapped with compute
  };
  std::map<std::string, Comm> comm;  // by axis
  /// Seconds of busy communication, and of GEMMs, that did not come from a measured table.
  double unmeasured = 0;

  double exposed() const;
  double compute() const { return products + attention + operators + recompute; }
  double total() const { return compute() + optimizer + offload + slowed + exposed(); }
};
/// Seconds of compute and updates; with exposed communication they add up to the total.
struct StepPart {
  const char* name;
  double StepTime::*seconds;
};
inline constexpr StepPart kStepParts[] = {{"products", &StepTime::products},
                                          {"attention", &StepTime::attention},
                                          {"other operators", &StepTime::operators},
                                          {"recomputation", &StepTime::recompute},
                                          {"optimizer", &StepTime::optimizer},
                                          {"update on the host", &StepTime::offload},
                                          {"compute slowed by communication", &StepTime::slowed}};
/// a + factor · (b − a), part by part.
StepTime extrapolate(const StepTime& a, const StepTime& b, double factor);

/// Returns how the ranks along these axes are distributed over the nodes of a cluster whose ranks are numbered node by
/// node.
GroupShape group_shape(const Cluster& cluster, const mesh::MeshShape& mesh, mesh::AxisSet axes);

/// Returns the seconds that an operation, which takes `communication` on its own, adds to `compute` that starts at the
/// same time.
double added_beside(const Link& link, double communication, double compute);

StepTime price(const StepProgram& step, const Cluster& cluster, DType compute);

}  // namespace trainer::plan
