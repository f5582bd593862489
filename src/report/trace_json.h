#pragma once
// A trace as JSON in the Trace Event Format, which Perfetto and Chrome's chrome://tracing open: one process per rank,
// one track per kind. Spans on one track are nested or disjoint; if collectives along an axis overlap, the axis gets
// additional tracks.
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tensor/trace.h"

namespace trainer::report {

/// The rank that spans come from.
struct TracedRank {
  int rank = 0;
  std::string name;   // "rank 0 on host a"
  double origin = 0;  // now_seconds() on this rank at the start of the trace
  std::function<std::string(uint32_t axes)> name_of_axes = {};
};

/// The work of an additional thread of the rank, in chronological order.
struct Track {
  std::string name;
  std::vector<Span> spans;
};

/// Returns the events of one rank, without the enclosing list; empty if it has no spans. Times are whole nanoseconds
/// since the origin, so that rounding keeps a span inside its parent.
std::string trace_events(const TracedRank& rank, const Trace& trace, std::span<const Track> others = {});

/// Text before and after the events of all ranks, which are separated by ",\n".
inline constexpr const char* kTraceBegin = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
inline constexpr const char* kTraceEnd = "\n]}\n";

}  // namespace trainer::report
