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

/// Returns the runs with a name for each: that of its folder, or the whole path if two have the same. Throws
/// Code::usage for a folder without metrics.jsonl.
std::vector<NamedRun> named_runs(const std::vector<std::string>& folders);

/// Passes the table to `out`, line by line. A row has run, step and the fields of the step in metrics.jsonl; members of
/// objects there have names with dots (phase_ms.forward). Columns validation.* have the evaluation after the step,
/// validation.NAME.* that of a set with a name.
/// Unknown values are empty, and utilisation is unchanged. Reads each file twice and holds one line of it. Throws
/// Code::io when a file cannot be read.
void write_csv(const std::vector<NamedRun>& runs, const std::function<void(std::string_view)>& out);

}  // namespace trainer::report
