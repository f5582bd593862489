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
  std::vector<StepReport> steps;     // without comm_bytes and memory_bytes; utilisation as described at read_history()
  std::vector<EvalReport> evals;
  std::vector<CheckpointReport> checkpoints;
  std::vector<WarningReport> warnings;
  std::vector<EndReport> ends;   // one per process that ended normally
  std::vector<int64_t> starts;   // number of completed steps when each process began
  setup::PeakReport peak;        // the best peak that the last process found
  size_t setup_from = 0;         // index in `steps` at which last_setup() begins
  BytesByCategory memory_bytes;  // largest value of each category in that setup

  /// The steps that ran in the setup of the last process: same model, batch, layout and machine. Speed is computed from
  /// these steps.
  std::span<const StepReport> last_setup() const {
    return std::span(steps).subspan(std::min(setup_from, steps.size()));
  }
};

/// Reads the history of a run. The log has the utilisation of each step relative to the best peak known at that time;
/// here it is relative to the best peak that the step's process found. It never exceeds 1 for a measured peak, except
/// mfu, which counts full attention. Lines that are not events (a torn last line) are skipped. A missing file gives an
/// empty history.
History read_history(const std::filesystem::path& file);

}  // namespace trainer::report
