#pragma once
// The steps of runs as a table (CSV as in RFC 4180, but lines end as on Unix), to be imported into spreadsheets, pandas
// and other programs.
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::report {

struct NamedRun {
  std::string name;
  std::filesystem::path folder;
};

/// Returns the runs, each named after its folder, or by its whole path if two folders have the same name. A glob
/// selects the runs among its matches. Throws Code::usage for a folder without metrics.jsonl, or a glob without a run.
std::vector<NamedRun> named_runs(const std::vector<std::string>& folders);

/// Passes the table to `out`, line by line. A row contains run, step and the step's fields in metrics.jsonl; fields of
/// nested objects have names with dots (phase_ms.forward). Columns validation.* contain the evaluation after the step,
/// validation.NAME.* that of a named set, task.NAME.* a task's, slowest_rank the rank that was slowest in the steps up
/// to it. Unknown values are empty. Utilisation is that of the log, not rescaled as in read_history(). Reads each file
/// twice, line by line. Throws Code::io if a file cannot be read.
void write_csv(const std::vector<NamedRun>& runs, const std::function<void(std::string_view)>& out);

}  // namespace trainer::report
