#include "run/run_folder.h"

#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"

namespace trainer::run {

namespace fs = std::filesystem;

namespace {

/// Writes a file unless it already has this content, so that a resumed run can start on a full disk.
void put(const fs::path& file, const std::string& bytes) {
  std::ifstream in(file, std::ios::binary);
  if (in && std::string(std::istreambuf_iterator<char>(in), {}) == bytes) return;
  replace_file(file, bytes);
}

void link_checkpoints(const config::Config& config) {
  if (config.checkpoint.dir.empty()) return;
  const fs::path link = fs::path(config.run.dir) / "checkpoints", temporary = fs::path(config.run.dir) / ".checkpoints";
  std::error_code ignored;
  const fs::path target = fs::absolute(config.checkpoint.dir, ignored);
  if (fs::equivalent(link, target, ignored)) return;
  if (fs::is_directory(fs::symlink_status(link, ignored))) fs::remove(link, ignored);  // only if it is empty
  if (fs::exists(fs::symlink_status(link, ignored)) && !fs::is_symlink(link, ignored)) {
    log::warning(
        "{} has checkpoints of an earlier run, which commands use if they are given the run's folder; this "
        "run's are in {}: pass that folder, or remove the other one",
        link.string(), target.string());
    return;
  }
  fs::remove(temporary, ignored);
  std::error_code failed;
  fs::create_directory_symlink(target, temporary, failed);
  if (!failed) fs::rename(temporary, link, failed);
}

}  // namespace

void write_run_files(const config::Config& config, const std::string& config_toml, const std::string& tokenizer) {
  put(fs::path(config.run.dir) / "config.toml", config_toml);
  if (!tokenizer.empty()) {
    const std::string name = data::tokenizer_file_name(tokenizer);
    put(fs::path(config.run.dir) / name, tokenizer);
    std::error_code none;
    // Otherwise the tokenizer of an earlier run in the folder might be found first.
    for (const char* other : data::kTokenizerFiles)
      if (other != name) fs::remove(fs::path(config.run.dir) / other, none);
  }
  link_checkpoints(config);
}

bool write_report_or_warn(const fs::path& run_dir, const report::Summary& summary, const report::History& history) {
  try {
    report::write_report(run_dir, summary, history);
    return true;
  } catch (const Error& error) {
    log::warning("the report was not written: {}", error.what());
    return false;
  }
}

}  // namespace trainer::run
