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

/// Returns the remedy for files of other kinds that users often have.
struct Other {
  const char *extension, *remedy;
};
constexpr Other kOthers[] = {
    {".gz", "unpack it first (gunzip)"},
    {".zst", "unpack it first (unzstd)"},
    {".xz", "unpack it first (unxz)"},
    {".bz2", "unpack it first (bunzip2)"},
    {".zip", "unpack it first (unzip)"},
    {".tar", "unpack it first (tar)"},
    {".tgz", "unpack it first (tar)"},
    {".json", "write one object a line, as .jsonl"},
    {".csv", "write each text as an object on a line of its own, as .jsonl"},
    {".tsv", "write each text as an object on a line of its own, as .jsonl"},
    {".parquet", "write each text as an object on a line of its own, as .jsonl"},
    {".arrow", "write each text as an object on a line of its own, as .jsonl"},
    {".idx", "give the .bin file next to it"},
    {".npy", "write its numbers as uint16 into a .bin file"},
};

std::string lower_extension(const std::string& path) {
  std::string extension = std::filesystem::path(path).extension().string();
  std::ranges::transform(extension, extension.begin(), [](unsigned char c) { return std::tolower(c); });
  return extension;
}

}  // namespace

std::optional<FileKind> file_kind(const std::string& path, DataFormat stated) {
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
  const std::string extension = lower_extension(path);
  for (const Known& known : kKnown) {
    if (extension == known.extension) return known.kind;
  }
  return std::nullopt;
}

std::string unknown_kind(const std::string& path, const std::string& insist) {
  const std::string extension = lower_extension(path);
  std::error_code ignored;
  // Megatron's options leave out the extension.
  const bool prefix = extension.empty() && std::filesystem::exists(path + ".bin", ignored);
  if (!prefix && std::filesystem::is_directory(path, ignored))
    return format("\"{}\" is a folder: name its files, such as \"{}\"", path,
                  (std::filesystem::path(path) / "*.txt").string());
  std::string remedy = prefix ? format("did you mean \"{}.bin\"? Name it so", path) : "rename it";
  for (const Other& other : kOthers) {
    if (extension == other.extension) remedy = other.remedy;
  }
  return format(
      "\"{}\": {} are not supported; there are .txt, .text, .md (text), .jsonl, .ndjson (a JSON object with the "
      "text on each line) and .bin (tokens); {}, or force it with {}",
      path, extension.empty() ? "files without an extension" : extension + " files", remedy,
      insist.starts_with("--") ? insist + " text or jsonl" : insist + " = \"text\", \"jsonl\" or \"tokens\"");
}

}  // namespace trainer::config
