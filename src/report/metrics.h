#pragma once
// metrics.jsonl: one JSON object a line, in the order things happened. See events.h for the events.
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
/// rest unchanged. A missing file is fine. The file is truncated in place when only its end goes, and replaced whole
/// otherwise. Throws Code::io.
void truncate_after_step(const std::filesystem::path& file, int64_t step);

}  // namespace trainer::report
