#pragma once
// Sections of a run's report other than its steps: communication, the prediction, offload, and the time line. A section
// without data is empty.
#include <string>

#include "report/summary.h"

namespace trainer::report {

/// Returns sent and predicted bytes by axis and operation, and exposed communication time; empty for one rank.
std::string communication(const History& history);

/// Returns the predicted and the measured step; empty without a prediction of its time.
std::string prediction(const Summary& summary);

/// Returns where the optimizer state was updated, with its bytes and times; empty if it is on the device.
std::string optimizer_offload(const History& history);

/// Returns evaluations, checkpoints, warnings, and the start and end of processes, over the steps.
std::string time_line(const History& history);

}  // namespace trainer::report
