#pragma once
// The files of a run folder other than metrics and checkpoints.
#include <filesystem>
#include <string>

#include "config/config.h"
#include "data/source.h"
#include "report/html.h"

namespace trainer::run {

/// Returns checkpoint.dir, or RUN_DIR/checkpoints.
std::filesystem::path checkpoint_folder(const config::Config& config);
/// Writes config.toml (values in force) and the tokenizer (if there is one), each replaced atomically. If
/// checkpoint.dir is elsewhere, `checkpoints` in the run folder becomes a link to it, so that the run's folder can be
/// used in its place. No link is made when a folder of that name exists, or the file system has no links. Throws
/// Code::io.
void write_run_files(const config::Config& config, const std::string& config_toml, const std::string& tokenizer);
/// Writes the report. A failure is a warning only, since the run itself is done.
void write_report_or_warn(const std::filesystem::path& run_dir, const report::Summary& summary,
                          const report::History& history);

}  // namespace trainer::run
