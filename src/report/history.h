#pragma once
// The run so far, read back from metrics.jsonl for the summary and the report.
#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <vector>

#include "report/events.h"

namespace trainer::report {

struct History {
  std::optional<StartReport> start;  // the last process's; config_toml is empty, since the file stores it as JSON
  std::vector<StepReport> steps;     // without comm_bytes, memory_bytes and sources; utilisation: see read_history()
  std::vector<EvalReport> evals;
  std::vector<TasksReport> tasks;
  std::vector<CheckpointReport> checkpoints;
  std::vector<WarningReport> warnings;
  std::vector<RanksReport> ranks;
  std::vector<EndReport> ends;   // one per process that ended normally
  std::vector<int64_t> starts;   // number of completed steps when each process began
  setup::PeakReport peak;        // the best peak that the last process found
  size_t setup_from = 0;         // index of the first step of last_setup()
  BytesByCategory memory_bytes;  // largest value of each category in that setup
  int64_t bad_lines = 0;         // number of lines that are not events, and the 1-based number of the first
  int64_t first_bad_line = 0;

  /// Returns the steps that ran in the setup of the last process: same model, batch, layout and machine.
  std::span<const StepReport> last_setup() const {
    return std::span(steps).subspan(std::min(setup_from, steps.size()));
  }
};

/// The part of a log that stays when the run resumes after `step`: events of later steps and lines that are not JSON
/// objects go. Events without a step belong to step 0.
struct LogCut {
  int64_t step = 0;
  int64_t kept = 0, size = 0;     // bytes of the leading lines that stay, and of all lines
  bool only_the_end_goes = true;  // every line that goes is after the last one that stays
};

/// True if an event stays when the run resumes after `step`.
bool stays(const nlohmann::ordered_json& event, int64_t step);

/// Reads the history of a run. A step's utilisation was logged relative to the best peak known at that time; here it is
/// relative to the best peak that the step's process found. If that peak was measured, utilisation does not exceed 1,
/// except for mfu, which counts attention in full. Skips lines that are not events; a torn last line does not count as
/// bad. Returns an empty history if the file is missing. With `cut`, finds out what stays, in the same pass; then
/// throws Code::io if the file cannot be read.
History read_history(const std::filesystem::path& file, LogCut* cut = nullptr);

/// A step as metrics.jsonl records it, and the samples that the run had seen before it.
struct RecordedStep {
  StepReport step;
  StartReport start;  // start report of the process that ran the step
  int64_t seed = 0;   // run.seed of that process
  int64_t first_sample = 0;
  std::map<std::string, int64_t> sources_before;  // in a mixture: samples of each source
};

/// Returns a step of a run. Throws Code::usage if the file does not record it or, for a mixture, the samples seen
/// before it.
RecordedStep read_step(const std::filesystem::path& file, int64_t step);

/// Warns once if there are bad lines.
void warn_of_bad_lines(const History& history, const std::filesystem::path& file);

}  // namespace trainer::report
