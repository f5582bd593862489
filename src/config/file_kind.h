#pragma once
// The format of a data file, by the extension of its name or by data.format.
#include <optional>
#include <string>

#include "config/config.h"

namespace trainer::config {

enum class FileKind { text, json_lines, tokens };

enum class Packing { none, gzip, zstd };

/// Returns the compression of a text file, by the end of its name: .gz, .zst, case-insensitive.
Packing packing_of(const std::string& path);
/// Returns `stated` unless that is automatic. Otherwise the extension decides, case-insensitively and, for compressed
/// text, the one before .gz or .zst. Returns an empty result if the extension is unknown.
std::optional<FileKind> file_kind(const std::string& path, DataFormat stated);
/// The remedy for text that can be read only once: it must be tokenized first.
constexpr const char* kPipeRemedy =
    "text from a pipe can be read only once; tokenize it first: … | trainer tokenize --input - --format jsonl --output "
    "DIR";
/// Returns why a file of an unknown kind is rejected, and the remedy: "\"a.csv\": .csv files are not supported: …".
/// `insist` is the option that sets the kind.
std::string unknown_kind(const std::string& path, const std::string& insist = "data.format");

}  // namespace trainer::config
