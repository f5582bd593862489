#pragma once
// Sections of a run's report other than its steps: communication, the prediction, offload, and the time line. A section
// without data is empty.
#include <string>

#include "report/summary.h"

namespace trainer::report {

/// Returns sent and predicted bytes by axis and operation, and exposed communication time; nothing on one rank.
std::string communication(const History& history);

/// Returns the predicted and the measured step; nothing without a prediction of its time.
std::string prediction(const Summary& summary);

/// Returns where the optimizer state was updated, with its bytes and times; nothing when it is on the device.
std::string optimizer_offload(const History& history);

/// Evaluations, checkpoints, warnings, and where processes began and ended, over the steps.
std::string time_line(const History& history);

}  // namespace trainer::report
