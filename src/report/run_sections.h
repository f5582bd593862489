#pragma once
// Sections of a run's report that come from what happened beside its steps: communication, the prediction, offload, and
// the time line. A section about which there is nothing to say is empty.
#include <string>

#include "report/summary.h"

namespace trainer::report {

/// Bytes by axis and operation beside the predicted ones, and what ranks wait for them; nothing on one rank.
std::string communication(const History& history);

/// What was predicted of a step beside what was measured; nothing without a prediction of its time.
std::string prediction(const Summary& summary);

/// Where the optimizer's state was updated, what that moved and took; nothing when it is on the device.
std::string optimizer_offload(const History& history);

/// Evaluations, checkpoints, warnings, and where processes began and ended, over the steps.
std::string time_line(const History& history);

}  // namespace trainer::report
