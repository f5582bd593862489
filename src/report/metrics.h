#pragma once
// metrics.jsonl: one JSON object per line, in chronological order. See events.h for the events.
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "report/history.h"
#include "report/record_file.h"

namespace trainer::report {

class MetricsLog : public RecordFile {
 public:
  /// Appends to `file`; truncate() has removed lines torn by a crash.
  explicit MetricsLog(std::filesystem::path file) : RecordFile(std::move(file)) {}
  void write(const nlohmann::ordered_json& event);
};

/// Truncates a log as read_history() found; the rest stays unchanged. Truncates the file in place if only its end is
/// removed, and replaces it atomically otherwise. Throws Code::io.
void truncate(const std::filesystem::path& file, const LogCut& cut);

}  // namespace trainer::report
