#include "data/post_processor.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "base/json.h"
#include "data/python_json.h"

namespace trainer::data {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

std::string text(const json& value) { return value.is_string() ? value.get<std::string>() : json_text(value); }
int32_t token_id(const json& value) {
  return value.is_number_integer() && value >= 0 && value < (int64_t{1} << 24) ? value.get<int32_t>() : -1;
}

/// Returns the steps that add tokens. ByteLevel adds none, but adjusts offsets.
std::vector<const json*> adding_steps(const json& step) {
  const json& type = member_of(step, "type");
  if (step.is_null() || type == "ByteLevel") return {};
  if (type != "Sequence") return {&step};
  std::vector<const json*> all;
  for (const json& each : member_of(step, "processors"))
    for (const json* adding : adding_steps(each)) all.push_back(adding);
  return all;
}

}  // namespace

AddedEnds ends_of(const json& post_processor) {
  const std::vector<const json*> steps = adding_steps(post_processor);
  if (steps.empty()) return {};
  const json &step = *steps.front(), &type = member_of(step, "type"), &single = member_of(step, "single");
  std::vector<NamedId> before, after;
  int texts = 0;
  if (type == "RobertaProcessing" || type == "BertProcessing") {  // each token is a list of its name and its id
    texts = 1;
    for (auto [list, key] : {std::pair(&before, "cls"), {&after, "sep"}})
      if (const json& token = member_of(step, key); token.is_array() && token.size() == 2)
        list->push_back({text(token[0]), token_id(token[1])});
  }
  for (const json& part : single.is_array() ? single : json::array()) {
    const json& name = member_of(member_of(part, "SpecialToken"), "id");
    texts += part.contains("Sequence");
    if (!name.is_string()) continue;
    const json& ids = member_of(member_of(member_of(step, "special_tokens"), text(name).c_str()), "ids");
    for (const json& id : ids.empty() ? json::array({nullptr}) : ids)
      (texts == 0 ? before : after).push_back({text(name), token_id(id)});
  }
  AddedEnds ends;
  const auto known = [](const std::vector<NamedId>& tokens) { return tokens.empty() || tokens.front().id >= 0; };
  if (steps.size() == 1 && texts == 1 && before.size() < 2 && after.size() < 2 && known(before) && known(after)) {
    if (!before.empty()) ends.before = before.front();
    if (!after.empty()) ends.after = after.front();
  } else if (before.size() > 1) {
    ends.obstacle = "adds several tokens before texts:";
    for (const NamedId& token : before) ends.obstacle += " " + token.name;
  } else {
    ends.obstacle = steps.size() > 1 ? "adds tokens in several steps"
                                     : text(type) + " does not add one token before or after texts, or both";
  }
  return ends;
}

ordered_json post_processor_of(const NamedId& before, const NamedId& after) {
  ordered_json single = ordered_json::array(), pair = ordered_json::array(), tokens = ordered_json::object();
  const auto add_token = [&](ordered_json& list, const NamedId& token, int type) {
    if (token.id < 0) return;
    list.push_back({{"SpecialToken", {{"id", token.name}, {"type_id", type}}}});
    tokens[token.name] = {
        {"id", token.name}, {"ids", ordered_json::array({token.id})}, {"tokens", ordered_json::array({token.name})}};
  };
  const auto add_text = [](ordered_json& list, const char* name, int type) {
    list.push_back({{"Sequence", {{"id", name}, {"type_id", type}}}});
  };
  for (ordered_json* list : {&single, &pair}) {
    add_token(*list, before, 0);
    add_text(*list, "A", 0);
  }
  add_text(pair, "B", 1);
  add_token(single, after, 0);
  add_token(pair, after, 1);
  if (tokens.empty()) return nullptr;
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}};
}

std::string with_ends(std::string_view tokenizer_json, const NamedId& before, const NamedId& after) {
  json root = parse_json(tokenizer_json);
  json& place = root["post_processor"];
  const json old = std::exchange(place, json());
  json steps = json::array();
  for (const json& step : member_of(old, "type") == "Sequence" ? member_of(old, "processors") : json::array({old}))
    if (member_of(step, "type") == "ByteLevel") steps.push_back(step);
  if (const json adding = post_processor_of(before, after); !adding.is_null()) steps.push_back(adding);
  if (steps.size() == 1) place = steps.front();
  if (steps.size() > 1) place = {{"type", "Sequence"}, {"processors", steps}};
  return root.dump() + "\n";
}

}  // namespace trainer::data
