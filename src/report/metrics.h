#pragma once
// metrics.jsonl: one JSON object a line, in the order things happened. See events.h for the events.
#include <filesystem>
#include <string>

#include "report/events.h"

namespace trainer::report {

class MetricsLog {
 public:
  /// Opens `file` for appending and creates it when missing; a line torn by a crash is ended first. Throws Code::io
  /// naming the file when it cannot be opened.
  explicit MetricsLog(std::filesystem::path file);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  /// Each writes one line before it returns (one system call, so that a crash tears at most the last line). A failure
  /// (disk full) is warned about once and never stops the run; later lines are tried again.
  void write(const StartReport& start);
  void write(const StepReport& step);
  void write(const EvalReport& eval);
  void write(const CheckpointReport& checkpoint);
  void write(const WarningReport& warning);
  void write(const EndReport& end);
  /// Returns the number of lines lost so far.
  int64_t lost() const { return lost_; }

 private:
  void write_line(std::string line);

  std::filesystem::path file_;
  int descriptor_ = -1;
  bool torn_ = false;  // the last write stopped inside a line
  int64_t lost_ = 0;
};

/// Cuts a log back to a resumed step. Removes the events of later steps and lines that are no JSON objects; keeps the
/// rest unchanged. A missing file is fine. The file is truncated in place when only its end goes, and replaced whole
/// otherwise. Throws Code::io.
void truncate_after_step(const std::filesystem::path& file, int64_t step);

}  // namespace trainer::report
