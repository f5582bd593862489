#include "data/post_processor.h"

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace trainer::data {
namespace {

using nlohmann::json;

json member(const json& object, const char* key) { return object.is_object() ? object.value(key, json()) : json(); }
std::string text(const json& value) { return value.is_string() ? value.get<std::string>() : std::string(); }

json special(const std::string& name, int type) { return {{"SpecialToken", {{"id", name}, {"type_id", type}}}}; }
json sequence(const char* name, int type) { return {{"Sequence", {{"id", name}, {"type_id", type}}}}; }

json template_of(const NamedId& before, const NamedId& after) {
  json single = json::array(), pair = json::array(), tokens = json::object();
  const auto add = [&](const NamedId& token, bool in_single) {
    if (token.name.empty()) return;
    if (in_single) single.push_back(special(token.name, 0));
    pair.push_back(special(token.name, in_single ? 0 : 1));
    tokens[token.name] = {{"id", token.name}, {"ids", json::array({token.id})}, {"tokens", json::array({token.name})}};
  };
  add(before, true);
  single.push_back(sequence("A", 0));
  pair.push_back(sequence("A", 0));
  if (!after.name.empty()) single.push_back(special(after.name, 0));
  pair.push_back(sequence("B", 1));
  add(after, false);
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}};
}

}  // namespace

AddedEnds ends_of(const json& post_processor) {
  const json type = member(post_processor, "type");
  if (type == "Sequence") {
    AddedEnds ends;
    for (const json& step : member(post_processor, "processors")) {  // the last step adds the outermost tokens
      AddedEnds added = ends_of(step);
      if (!added.before.empty()) ends.before = std::move(added.before);
      if (!added.after.empty()) ends.after = std::move(added.after);
    }
    return ends;
  }
  if (type == "RobertaProcessing" || type == "BertProcessing") {  // each token is a list of its name and its id
    const json first = member(post_processor, "cls"), last = member(post_processor, "sep");
    return {first.is_array() && !first.empty() ? text(first[0]) : "",
            last.is_array() && !last.empty() ? text(last[0]) : ""};
  }
  const json single = member(post_processor, "single");
  if (!single.is_array() || single.empty()) return {};
  return {text(member(member(single.front(), "SpecialToken"), "id")),
          text(member(member(single.back(), "SpecialToken"), "id"))};
}

std::string with_ends(std::string_view tokenizer_json, const NamedId& before, const NamedId& after) {
  json root = parse_json(tokenizer_json);
  json& place = root["post_processor"];
  const json old = std::exchange(place, json());
  json steps = json::array();
  for (const json& step : member(old, "type") == "Sequence" ? member(old, "processors") : json::array({old}))
    if (member(step, "type") == "ByteLevel") steps.push_back(step);  // adds no tokens, but adjusts offsets
  if (!before.name.empty() || !after.name.empty()) steps.push_back(template_of(before, after));
  if (steps.size() == 1) place = steps.front();
  if (steps.size() > 1) place = {{"type", "Sequence"}, {"processors", steps}};
  return root.dump() + "\n";
}

}  // namespace trainer::data
