#include "data/input_key.h"

#include <chrono>

#include "base/error.h"

namespace trainer::data {

namespace fs = std::filesystem;
using nlohmann::json;

json describe_inputs(const std::vector<std::string>& files, const TextOptions& options, const json& known) {
  json inputs = json::array();
  for (const std::string& file : files) {
    const int64_t size = File::open_to_read(file).size();
    if (size == 0) throw Error(Code::data, fmt::format("{}: offset 0: the file is empty, expected text", file));
    const int64_t time = std::chrono::nanoseconds(fs::last_write_time(file).time_since_epoch()).count();
    json entry = {{"path", fs::absolute(file).string()},
                  {"size", size},
                  {"time", time},
                  {"json_lines", is_json_lines(file, options)}};
    for (const json& old : known.is_array() ? known : json::array()) {
      const bool same = old.is_object() && old.value("path", json()) == entry["path"] &&
                        old.value("size", json()) == size && old.value("time", json()) == time && old.contains("hash");
      if (same) entry["hash"] = old["hash"];
    }
    if (!entry.contains("hash")) entry["hash"] = hash_file(file);
    inputs.push_back(std::move(entry));
  }
  return inputs;
}

std::string input_key(const json& inputs, const TextOptions& options, const std::string& extra) {
  json key = {{"extra", extra},
              {"text_key", options.text_key},
              {"document", static_cast<int>(options.document)},
              {"strict", options.strict},
              {"inputs", json::array()}};
  for (const json& input : inputs) key["inputs"].push_back({input["size"], input["hash"], input["json_lines"]});
  return hash_bytes(key.dump());
}

json read_json_or_null(const fs::path& path) {
  if (std::error_code none; !fs::exists(path, none)) return nullptr;
  json parsed = json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  return parsed.is_discarded() ? json() : parsed;
}

}  // namespace trainer::data
