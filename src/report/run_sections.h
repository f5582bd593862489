#pragma once
// Sections of a run's report: communication, predicted and measured costs, offload, and the timeline. A section without
// data is empty.
#include <string>

#include "report/summary.h"

namespace trainer::report {

/// Returns sent and predicted bytes by axis and operation, exposed communication time, and the bubble of several
/// stages; empty for one rank.
std::string communication(const Summary& summary, const History& history);

/// Returns the predicted and measured time and memory of a step; empty if its time was not predicted.
std::string prediction(const Summary& summary);

/// Returns where parameters were updated, with the bytes transferred and the times; empty without offload.
std::string optimizer_offload(const History& history);

/// Returns the ranks' own times by window, and the ranks that are often slow; empty for one rank.
std::string ranks(const History& history);

/// Returns loads, idle experts and entropy of the routers by step, and how often each expert was chosen in the last
/// logged step of a process that ended normally; empty for a dense model.
std::string experts(const History& history);

/// Returns a timeline of evaluations, checkpoints, warnings, and the start and end of processes, by step.
std::string time_line(const History& history);

}  // namespace trainer::report
