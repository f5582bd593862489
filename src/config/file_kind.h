#pragma once
// The format of a data file, by the extension of its name or by data.format.
#include <optional>
#include <string>

#include "config/config.h"

namespace trainer::config {

enum class FileKind { text, json_lines, tokens };

enum class Packing { none, gzip, zstd };

/// How a file of text is compressed, by the end of its name: .gz, .zst, whatever the case.
Packing packing_of(const std::string& path);
/// `stated`, unless that is automatic: then by the extension, whatever its case, of text also that before .gz or .zst.
/// Nothing: none of those known.
std::optional<FileKind> file_kind(const std::string& path, DataFormat stated);
/// Text that can be read once only is made into tokens first.
constexpr const char* kPipeRemedy =
    "text from a pipe is read once only; make tokens first: … | trainer tokenize --input - --format jsonl --output DIR";
/// Returns why a file of an unknown kind is rejected, and the remedy: "\"a.csv\": .csv files are not supported: …".
/// `insist` is the option that sets its kind.
std::string unknown_kind(const std::string& path, const std::string& insist = "data.format");

}  // namespace trainer::config
