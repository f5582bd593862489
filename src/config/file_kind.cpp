#include "config/file_kind.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "base/format.h"

namespace trainer::config {
namespace {

struct Known {
  const char* extension;
  FileKind kind;
};
constexpr Known kKnown[] = {{".txt", FileKind::text},          {".text", FileKind::text},
                            {".md", FileKind::text},           {".jsonl", FileKind::json_lines},
                            {".ndjson", FileKind::json_lines}, {".bin", FileKind::tokens}};

/// The remedies for other file formats that users often have.
struct Other {
  const char *extension, *remedy;
};
constexpr Other kOthers[] = {
    {".xz", "unpack it first (unxz)"},
    {".bz2", "unpack it first (bunzip2)"},
    {".zip", "unpack it first (unzip)"},
    {".tar", "unpack it first (tar)"},
    {".tgz", "unpack it first (tar)"},
    {".json", "convert it to .jsonl: one JSON object per line, one text in each"},
    {".csv", "convert it to .parquet, or to .jsonl: one JSON object per line, one text in each"},
    {".tsv", "convert it to .parquet, or to .jsonl: one JSON object per line, one text in each"},
    {".arrow", "convert it to .parquet, or to .jsonl: one JSON object per line, one text in each"},
    {".idx", "name the .bin file next to it"},
    {".npy", "write its numbers to a .bin file as uint16"},
};

std::string lower_extension(const std::string& path) {
  std::string extension = std::filesystem::path(path).extension().string();
  std::ranges::transform(extension, extension.begin(), [](unsigned char c) { return std::tolower(c); });
  return extension;
}

/// Returns the extension that indicates the format: the one before .gz or .zst, if the text is compressed.
std::string kind_extension(const std::string& path) {
  return lower_extension(packing_of(path) == Packing::none ? path : std::filesystem::path(path).stem().string());
}

}  // namespace

Packing packing_of(const std::string& path) {
  const std::string extension = lower_extension(path);
  return extension == ".gz"        ? Packing::gzip
         : extension == ".zst"     ? Packing::zstd
         : extension == ".parquet" ? Packing::parquet
                                   : Packing::none;
}

std::optional<FileKind> file_kind(const std::string& path, DataFormat stated) {
  if (packing_of(path) == Packing::parquet) return FileKind::json_lines;
  switch (stated) {
    case DataFormat::text:
      return FileKind::text;
    case DataFormat::jsonl:
      return FileKind::json_lines;
    case DataFormat::tokens:
      return FileKind::tokens;
    case DataFormat::automatic:
      break;
  }
  const std::string extension = kind_extension(path);
  for (const Known& known : kKnown) {
    if (extension != known.extension) continue;
    if (known.kind == FileKind::tokens && packing_of(path) != Packing::none) break;  // tokens are read at any offset
    return known.kind;
  }
  return std::nullopt;
}

std::string unknown_kind(const std::string& path, const std::string& insist) {
  const std::string extension = kind_extension(path);
  const std::string shown = extension + (packing_of(path) == Packing::none ? "" : lower_extension(path));
  std::error_code ignored;
  // Megatron's options omit the extension.
  const bool prefix = extension.empty() && std::filesystem::exists(path + ".bin", ignored);
  if (!prefix && std::filesystem::is_directory(path, ignored))
    return format("\"{}\" is a folder: name its files, such as \"{}\"", path,
                  (std::filesystem::path(path) / "*.txt").string());
  std::string remedy = prefix ? format("use \"{}.bin\"", path) : "rename it";
  for (const Other& other : kOthers) {
    if (extension == other.extension) remedy = other.remedy;
  }
  if (extension == ".bin") remedy = "unpack it first";
  return format(
      "\"{}\": {} are not supported; expected .txt, .text, .md (text), .jsonl, .ndjson (a JSON object with the "
      "text on each line), .parquet (the same as a table) or .bin (tokens), "
      "or text compressed as .gz or .zst, as in a.jsonl.zst; {}, or set the format with {}",
      path, shown.empty() ? "files without an extension" : shown + " files", remedy,
      insist.starts_with("--") ? insist + " text or jsonl" : insist + " = \"text\", \"jsonl\" or \"tokens\"");
}

}  // namespace trainer::config
