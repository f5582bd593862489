#pragma once
// The report of a run: report.json for programs, report.html for people. The page is one file without scripts or
// external links, well-formed as HTML and as XML, and follows the reader's light or dark theme.
#include <filesystem>
#include <string>

#include "report/history.h"
#include "report/summary.h"

namespace trainer::report {

/// Returns the page's text. `config_toml`: the effective configuration.
std::string report_html(const Summary& summary, const History& history, const std::string& config_toml);
std::string report_json(const Summary& summary, const History& history);

/// Writes RUN_DIR/report.json and report.html, each replaced atomically. The configuration shown is RUN_DIR/config.toml
/// if that file exists. Throws Code::io naming the file; a training run turns that into a warning.
void write_report(const std::filesystem::path& run_dir, const Summary& summary, const History& history);

/// Returns the last step of the run's report; −1 if report.html or report.json is missing or damaged.
int64_t step_of_report(const std::filesystem::path& run_dir);
/// Returns the generated texts in RUN_DIR/report.json, up to those of `last_step`. A resumed run starts with them.
std::vector<Sample> read_samples(const std::filesystem::path& run_dir, int64_t last_step);

/// Regenerates the report from RUN_DIR/metrics.jsonl and the samples of an earlier report. Throws Code::io if there is
/// no metrics.jsonl.
Summary report_from(const std::filesystem::path& run_dir);

}  // namespace trainer::report
