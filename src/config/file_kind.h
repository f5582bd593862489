#pragma once
// The format of a data file, determined by its extension or by data.format.
#include <optional>
#include <string>

#include "config/data.h"

namespace trainer::config {

enum class FileKind { text, json_lines, tokens };

enum class Packing { none, gzip, zstd, parquet };

/// Returns how the text of a file is stored, determined by its extension (.gz, .zst or .parquet, case-insensitive).
Packing packing_of(const std::string& path);
/// Returns JSON lines for .parquet, else `stated` unless it is automatic. Otherwise the extension (case-insensitive)
/// decides; for compressed text it is the extension before .gz or .zst. Returns an empty result if the extension is
/// unknown.
std::optional<FileKind> file_kind(const std::string& path, DataFormat stated);
/// The remedy for text that can be read only once: it must be tokenized first.
constexpr const char* kPipeRemedy =
    "text from a pipe can be read only once; tokenize it first: … | trainer tokenize --input - --format jsonl --output "
    "DIR";
/// Returns the message that rejects a file of an unknown kind, with the remedy: "\"a.csv\": .csv files are not
/// supported; …". `insist` is the option that sets the kind explicitly.
std::string unknown_kind(const std::string& path, const std::string& insist = "data.format");

}  // namespace trainer::config
