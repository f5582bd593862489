#pragma once
// The run so far, read back from metrics.jsonl for the summary and the report.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "report/events.h"

namespace trainer::report {

struct History {
  std::optional<StartReport> start;  // of the last process; config_toml is empty: the file holds it as JSON
  std::vector<StepReport> steps;     // without comm_bytes and memory_bytes; utilisation as said below
  std::vector<EvalReport> evals;
  std::vector<CheckpointReport> checkpoints;
  std::vector<WarningReport> warnings;
  std::vector<EndReport> ends;   // one per process that ended in order
  std::vector<int64_t> starts;   // completed steps where each process began
  setup::PeakReport peak;        // the best peak that the last process found
  size_t setup_from = 0;         // where last_setup() begins
  BytesByCategory memory_bytes;  // largest value of each category in that setup

  /// The steps that ran in the setup of the last process: same model, batch, layout and machine. Speed is theirs.
  std::span<const StepReport> last_setup() const {
    return std::span(steps).subspan(std::min(setup_from, steps.size()));
  }
};

/// Reads the history of a run. A step was written with its share of the best peak known at that time. Here its share is
/// of the best peak that its process found. It is never above 1 of a measured peak, except mfu by the full count of
/// attention. Lines that are not events (a torn last line) are skipped. A missing file gives an empty history.
History read_history(const std::filesystem::path& file);

}  // namespace trainer::report
