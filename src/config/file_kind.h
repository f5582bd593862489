#pragma once
// The format of a data file, by the extension of its name or by data.format.
#include <optional>
#include <string>

#include "config/config.h"

namespace trainer::config {

enum class FileKind { text, json_lines, tokens };

/// `stated`, unless that is automatic: then by the extension, whatever its case. Nothing: none of those known.
std::optional<FileKind> file_kind(const std::string& path, DataFormat stated);
/// Returns why a file of an unknown kind is rejected, and the remedy: "\"a.csv\": .csv files are not supported: …".
/// `insist` is the option that sets its kind.
std::string unknown_kind(const std::string& path, const std::string& insist = "data.format");

}  // namespace trainer::config
