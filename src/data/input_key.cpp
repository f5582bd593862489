#include "data/input_key.h"

#include <fnmatch.h>

#include <chrono>
#include <unordered_map>

#include "base/checksum.h"
#include "base/error.h"
#include "base/json.h"
#include "config/file_kind.h"
#include "data/files.h"
#include "data/text_start.h"

namespace trainer::data {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

/// Returns the same text for every spelling of a path.
std::string whole_path(const std::string& file) { return fs::absolute(file).lexically_normal().string(); }

bool is_there(const fs::path& file) {
  std::error_code none;
  return fs::exists(file, none);
}

/// The entries of an earlier description, by path.
using KnownInputs = std::unordered_map<std::string, const json*>;
KnownInputs by_path(const json& known) {
  KnownInputs inputs;
  if (!known.is_array()) return inputs;
  for (const json& old : known)
    if (old.is_object() && old.contains("hash") && old.contains("size") && old.contains("json_lines"))
      if (const std::string path = text_in(old, "path"); !path.empty()) inputs.emplace(path, &old);
  return inputs;
}

/// Returns the entry of a file, or null. A missing file may also match the only missing file with the same name: then
/// the folder was moved together with its tokens.
json known_input(const KnownInputs& known, const std::string& path) {
  // The stored names of files are UTF-8.
  const std::string stored = json::parse(json_text(json(path)));
  if (const auto found = known.find(stored); found != known.end()) return *found->second;
  json moved;
  if (is_there(path)) return moved;
  for (const auto& [before, old] : known) {
    if (fs::path(before).filename() != fs::path(path).filename() || is_there(before)) continue;
    if (!moved.is_null()) return nullptr;
    moved = *old;
  }
  return moved;
}

}  // namespace

json describe_inputs(const std::vector<std::string>& files, const TextOptions& options, const json& known,
                     std::vector<std::string>& gone) {
  json inputs = json::array();
  const KnownInputs known_inputs = by_path(known);
  for (const std::string& file : files) {
    const std::string path = whole_path(file);
    const json before = known_input(known_inputs, path);
    if (!before.is_null() && !is_there(file)) {
      gone.push_back(file);
      inputs.push_back(before);
      continue;
    }
    if (is_pipe(file)) throw Error(Code::data, fmt::format("{}: {}", file, config::kPipeRemedy));
    const int64_t size = File::open_input(file).size();
    // Opening a table finds out whether it has the column; texts tell only when they are read.
    if (config::packing_of(file) == config::Packing::parquet) open_source(file, columns_of(options));
    if ((options.strict || files.size() == 1) && !has_text(file, columns_of(options))) refuse_empty(file);
    const int64_t time = std::chrono::nanoseconds(fs::last_write_time(file).time_since_epoch()).count();
    json entry = {{"path", path}, {"size", size}, {"time", time}, {"json_lines", is_json_lines(file, options)}};
    const bool same =
        before.is_object() && before.value("size", json()) == size && before.value("time", json()) == time;
    entry["hash"] = same ? before["hash"] : json(hash_file(file));
    inputs.push_back(std::move(entry));
  }
  return inputs;
}

std::vector<std::string> known_files(const std::string& pattern, const json& known) {
  const std::string whole = whole_path(pattern);
  std::vector<std::string> files;
  for (const json& old : known.is_array() ? known : json::array()) {
    const std::string path = text_in(old, "path");
    if (!path.empty() && ::fnmatch(whole.c_str(), path.c_str(), FNM_PATHNAME) == 0) files.push_back(path);
  }
  return files;
}

std::string input_key(const json& inputs, const TextOptions& options, const std::string& extra) {
  json key = {{"extra", extra},
              {"text_key", options.text_key},
              {"document", static_cast<int>(options.document)},
              {"strict", options.strict},
              {"inputs", json::array()}};
  for (const json& input : inputs) key["inputs"].push_back({input["size"], input["hash"], input["json_lines"]});
  return to_string(checksum_of(key.dump()));
}

json read_json_or_null(const fs::path& path) {
  if (std::error_code none; !fs::exists(path, none)) return nullptr;
  json parsed = parse_json(read_file(path));
  return parsed.is_discarded() ? json() : parsed;
}

std::string text_in(const json& object, const char* key) {
  if (!object.is_object()) return {};
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

json inputs_in(const json& object) { return object.is_object() ? object.value("inputs", json()) : json(); }

}  // namespace trainer::data
