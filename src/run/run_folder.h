#pragma once
// The files of a run folder other than metrics and checkpoints.
#include <filesystem>
#include <string>

#include "config/config.h"
#include "data/source.h"
#include "report/html.h"

namespace trainer::run {

/// Writes config.toml (the effective values) and the tokenizer, if there is one; each file is replaced atomically. If
/// checkpoint.dir is set, `checkpoints` in the run folder becomes a link to that folder, so that the run folder can be
/// given wherever a checkpoint is expected. No link is made if a folder with that name exists or the file system does
/// not support links. Throws Code::io.
void write_run_files(const config::Config& config, const std::string& config_toml, const std::string& tokenizer);
/// Writes the report. A failure causes only a warning, since the run itself has succeeded; returns false then.
bool write_report_or_warn(const std::filesystem::path& run_dir, const report::Summary& summary,
                          const report::History& history);

}  // namespace trainer::run
