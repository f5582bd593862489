#pragma once
// metrics.jsonl: one JSON object per line, in chronological order. See events.h for the events.
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "report/record_file.h"

namespace trainer::report {

class MetricsLog : public RecordFile {
 public:
  /// Appends to `file`; truncate_after_step() has removed lines torn by a crash.
  explicit MetricsLog(std::filesystem::path file) : RecordFile(std::move(file)) {}
  void write(const nlohmann::ordered_json& event);
};

/// Truncates a log to a resumed step. Removes the events of later steps and lines that are not JSON objects; keeps the
/// rest unchanged. Does nothing if the file is missing. Truncates the file in place if only its end is removed, and
/// replaces it atomically otherwise. Throws Code::io.
void truncate_after_step(const std::filesystem::path& file, int64_t step);

}  // namespace trainer::report
