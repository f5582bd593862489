#pragma once
// Route: the cheapest way from one layout of a tensor to another, as a list of steps. A pure computation, used by the
// planner and by runs.
#include <optional>
#include <vector>

#include "comm/bytes.h"
#include "mesh/layout.h"

namespace trainer::mesh {

/// A step changes several axes with the same placement to another placement at once: with one collective over the group
/// along these axes, or without communication.
///   S→B, flat→B all_gather;  P→S, P→flat reduce_scatter;  P→B all_reduce;  S→S' all_to_all;
///   B→S, B→flat slice;  B→P, S→P, flat→P zero fill
struct Step {
  AxisSet axes = 0;
  Placement from, to;
  std::optional<CommOp> op;  // empty: no communication
  int group = 1;             // number of ranks along `axes`
  int64_t payload = 0;       // elements, as defined in comm/bytes.h

  /// Returns the elements sent by all ranks of one group.
  int64_t wire_elements() const { return op ? comm::wire_elements(*op, group, payload) : 0; }
};

struct Route {
  Layout from;
  std::vector<Step> steps;  // empty if the layouts are equal
  /// Elements sent by all ranks of the mesh together, counting every reduction as a ring.
  int64_t ring_elements = 0;
};

/// Returns the route that sends the fewest elements; ties are broken by the fewest collectives, then by the fewest
/// steps. Every reduction is counted as a ring, so that small and large tensors have the same route. Both layouts must
/// be of the same tensor on the same mesh, with at most seven axes larger than 1 (internal error).
Route find_route(const Layout& from, const Layout& to);

/// Returns "all_gather over tensor, slice over z", for messages and reports.
std::string to_string(const Route& route);

}  // namespace trainer::mesh
