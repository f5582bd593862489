#pragma once
// Runs side by side on one page: overlaid curves, results, and differences between their configurations.
// Self-contained, like report.html.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "report/csv.h"
#include "report/page.h"
#include "report/summary.h"

namespace trainer::report {

/// The largest number of runs on a page, since each has its own colour.
inline constexpr size_t kMostCompared = 8;

struct ComparedRun {
  std::string name;
  History history;
  Summary summary;
  std::map<std::string, std::string> config;  // effective values, "section.key" to text
  std::filesystem::path report = {};          // the run's own report.html; empty if there is none
};

/// Reads the runs from their folders.
std::vector<ComparedRun> read_runs(const std::vector<NamedRun>& runs);

/// Returns the text of a page in `folder`, which links to the runs' reports.
std::string comparison_html(const std::vector<ComparedRun>& runs, const std::filesystem::path& folder = ".");

/// Returns the keys whose values differ between runs, with each run's value; "-" if the run does not have the key.
page::Table differing_keys(const std::vector<ComparedRun>& runs);

/// Returns row names, the values of each run, and their ratios to those of the first run, aligned for a terminal.
std::string comparison_text(const std::vector<ComparedRun>& runs);

}  // namespace trainer::report
