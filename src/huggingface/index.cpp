#include "huggingface/index.h"

#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json.h"

namespace trainer::huggingface {

using nlohmann::json;

std::string weights_file(size_t i, size_t files) {
  return files == 1 ? kWeightsFile : format("model-{:05}-of-{:05}.safetensors", i + 1, files);
}

std::string to_index_json(const WeightIndex& index, int64_t bytes) {
  json files = json::object();
  for (const auto& [tensor, file] : index) files[tensor] = file;
  return json{{"metadata", {{"total_size", bytes}}}, {"weight_map", files}}.dump(2) + "\n";
}

WeightIndex parse_index_json(std::string_view text, const std::string& origin) {
  const auto refuse = [&](const std::string& place, const std::string& reason) {
    throw Error(Code::checkpoint, format("{}: {}: {}", origin, place, reason));
  };
  std::set<std::string, std::less<>> names;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    constexpr int kDeepest = 3;
    if (depth > kDeepest) refuse("weight_map", "values are nested too deeply");
    if (event == json::parse_event_t::key && depth == 2 && !names.insert(parsed.get<std::string>()).second)
      refuse(parsed.get<std::string>(), "occurs twice");
    return true;
  };
  const json document = json::parse(text, check, /*allow_exceptions=*/false);
  if (!document.is_object() || !document.contains("weight_map") || !document["weight_map"].is_object())
    refuse("weight_map", "missing; expected an index of safetensors files");
  WeightIndex index;
  for (const auto& [tensor, file] : document["weight_map"].items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    const bool plain = name.find('/') == name.npos && name.find('\0') == name.npos && !name.starts_with('.');
    if (!plain || !name.ends_with(".safetensors"))
      refuse(tensor, format("{} is not the name of a safetensors file next to it", json_text(file)));
    index.emplace_back(tensor, name);
  }
  if (index.empty()) refuse("weight_map", "empty; expected at least one tensor");
  return index;
}

}  // namespace trainer::huggingface
