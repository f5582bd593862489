#include "data/special_tokens.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "data/files.h"
#include "data/python_json.h"

namespace trainer::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Defaults of transformers' classes. save_pretrained writes them even if the vocabulary is smaller, so published
/// models contain them; transformers warns and never generates them.
constexpr std::array kDefaultsOfClasses{std::pair("gpt2", 50256),     std::pair("olmo2", 50279),
                                        std::pair("olmo3", 50279),    std::pair("olmoe", 50279),
                                        std::pair("smollm3", 128000), std::pair("smollm3", 128001)};

constexpr const char *kModel = "config.json", *kGeneration = "generation_config.json",
                     *kTokenizer = "tokenizer_config.json";
constexpr const char* kNames[] = {"bos_token", "eos_token", "unk_token", "pad_token"};

/// Names that transformers' classes of tokenizers use if the files contain none; in the order of kNames, null: none.
struct ClassNames {
  const char* name;
  const char* tokens[std::size(kNames)];
};
constexpr const char* kEndOfText = "<|endoftext|>";
constexpr ClassNames kClassNames[] = {{"GPT2Tokenizer", {kEndOfText, kEndOfText, kEndOfText, nullptr}},
                                      {"GPTNeoXTokenizer", {kEndOfText, kEndOfText, kEndOfText, nullptr}},
                                      {"Qwen2Tokenizer", {nullptr, kEndOfText, kEndOfText, kEndOfText}},
                                      {"tokenizer.model", {"<s>", "</s>", "<unk>", nullptr}}};

json read_object(const fs::path& file) {
  if (std::error_code none; !fs::exists(file, none)) return json::object();
  json fields = parse_python_json(read_file(file));
  if (!fields.is_object()) throw Error(Code::data, fmt::format("{}: {}", file.string(), why_no_object(fields)));
  return fields;
}

/// The ids of special tokens in one of a model's files; none if the file does not exist.
class TokenIds {
 public:
  /// Throws for ids that are not below `rows`, except −1, which older files write for none, and defaults of the class
  /// of this `model_type`.
  TokenIds(const fs::path& folder, const char* name, const json& fields, int64_t rows, const json& model_type) {
    bool usual = false;  // only defaults of the class
    for (const auto& [field, given] : fields.items()) {
      if (!field.ends_with("_token_id")) continue;
      for (const json& id : given.is_array() ? given : json::array({given})) {
        if (id.is_null() || id == -1) continue;
        if (id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(rows)) {
          ids_[field].push_back(id);
          continue;
        }
        const std::string what = fmt::format("{}: {}: {}, expected the id of a token, which is between 0 and {}",
                                             (folder / name).string(), field, json_text(id), rows - 1);
        if (std::ranges::none_of(kDefaultsOfClasses,
                                 [&](const auto& each) { return model_type == each.first && id == each.second; }))
          throw Error(Code::data, what);
        log::info("{}; ignored, since it is only the default of transformers' {}", what, model_type.get<std::string>());
        usual = true;
      }
      as_they_were_[field] = given;
    }
    if (usual) as_they_were_.clear();
  }

  std::vector<int32_t> all(const char* field) const {
    const auto found = ids_.find(field);
    return found == ids_.end() ? std::vector<int32_t>() : found->second;
  }
  std::optional<int32_t> first(const char* field) const {
    const std::vector<int32_t> ids = all(field);
    return ids.empty() ? std::nullopt : std::optional(ids.front());
  }
  /// Returns the fields of the file; none if some are only defaults of the class.
  const json& as_they_were() const { return as_they_were_; }

 private:
  std::map<std::string, std::vector<int32_t>> ids_;
  json as_they_were_ = json::object();
};

std::string class_of(const json& settings, const json& model_type) {
  const bool qwen = model_type == "qwen3" || model_type == "qwen2_moe" || model_type == "qwen3_moe";
  std::string name = model_type == "gpt2" ? "GPT2Tokenizer" : qwen ? "Qwen2Tokenizer" : "";
  if (const json& given = member_of(settings, "tokenizer_class"); given.is_string()) name = given.get<std::string>();
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  if (model_type == "qwen2") name = "Qwen2Tokenizer";
  if (model_type == "mistral" || model_type == "mixtral" || model_type == "olmo2") name.clear();
  return name;
}

/// Returns the names that the class of tokenizers has by default, as AutoTokenizer chooses it; null: none.
const ClassNames* class_names(const fs::path& folder, const json& settings, const json& model_type) {
  std::error_code none;
  std::string name = class_of(settings, model_type);
  const bool known = std::ranges::find(kClassNames, name, &ClassNames::name) != std::end(kClassNames),
             of_model = !settings.empty() || model_type.is_string();  // not a file of this program
  if (!known && of_model && fs::exists(folder / "tokenizer.model", none) &&
      !fs::exists(folder / "tokenizer.json", none))
    name = "tokenizer.model";
  const auto* const found = std::ranges::find(kClassNames, name, &ClassNames::name);
  return found == std::end(kClassNames) ? nullptr : found;
}

/// Returns special_tokens_map.json. Later versions do not read it next to the list that replaced it.
json special_map(const fs::path& folder, const json& settings) {
  return settings.contains("added_tokens_decoder") ? json::object() : read_object(folder / "special_tokens_map.json");
}

/// Returns the names of special tokens as AutoTokenizer finds them: null for none, no member if no file and no class
/// mentions it.
json token_names(const fs::path& folder, const json& settings, const json& model_type, const TokenId& id_of) {
  const json map = special_map(folder, settings);
  const ClassNames* defaults = class_names(folder, settings, model_type);
  json names = json::object();
  for (size_t i = 0; i < std::size(kNames); ++i) {
    const char* field = kNames[i];
    json value = map.contains(field) ? map[field] : settings.value(field, json());
    if (value.is_object()) value = value.value("content", json());
    if (map.contains(field) || settings.contains(field))
      names[field] = value.is_string() ? value : json();
    else if (defaults != nullptr && defaults->tokens[i] != nullptr && id_of(defaults->tokens[i]))
      names[field] = defaults->tokens[i];
  }
  return names;
}

/// Appends all texts in `value` and its members.
void append_texts(const json& value, std::string& out) {
  if (value.is_string()) out += value.get_ref<const std::string&>() + "\n";
  if (value.is_structured())
    for (const json& each : value) append_texts(each, out);
}

/// Returns the chat templates of a model, one after the other.
std::string chat_templates(const fs::path& folder) {
  std::string all;
  std::error_code none;
  for (const char* file : {kTokenizer, "chat_template.json"})
    append_texts(read_object(folder / file).value("chat_template", json()), all);
  if (const fs::path file = folder / "chat_template.jinja"; fs::exists(file, none)) all += read_file(file);
  for (const fs::directory_entry& each : fs::directory_iterator(folder / "additional_chat_templates", none))
    if (each.path().extension() == ".jinja") all += read_file(each.path());
  return all;
}

}  // namespace

SpecialTokens read_special_tokens(const fs::path& folder, const TokenId& id_of) {
  const json settings = read_object(folder / kTokenizer), config = read_object(folder / kModel);
  const json vocab_size = config.value("vocab_size", json()), type = config.value("model_type", json());
  constexpr uint64_t kMost = uint64_t{1} << 31;
  const auto rows =
      static_cast<int64_t>(vocab_size.is_number_unsigned() ? std::min(vocab_size.get<uint64_t>(), kMost) : kMost);
  const TokenIds generation(folder, kGeneration, read_object(folder / kGeneration), rows, type),
      model(folder, kModel, config, rows, type);
  const json names = token_names(folder, settings, type, id_of);
  const auto named = [&](const char* field) {
    const auto found = names.find(field);
    return found != names.end() && found->is_string() ? id_of(found->get<std::string>()) : std::nullopt;
  };
  SpecialTokens special;
  special.eos = generation.all("eos_token_id");
  if (special.eos.empty()) special.eos = model.all("eos_token_id");
  if (special.eos.empty())
    if (const auto eos = named("eos_token")) special.eos = {*eos};
  const auto other = [&](const char* name, const char* field) {
    return names.contains(name) ? named(name) : model.first(field);
  };
  special.bos = other("bos_token", "bos_token_id");
  special.pad = other("pad_token", "pad_token_id");
  special.unk = other("unk_token", "unk_token_id");
  special.add_eos = settings.contains("add_eos_token") && settings["add_eos_token"] == true;
  const auto keep = [&](const char* file, const json& fields) {
    if (!fields.empty()) special.fields[file] = json_text(fields);
  };
  keep(kGeneration, generation.as_they_were());
  keep(kModel, model.as_they_were());
  if (std::error_code none; !names.empty() || fs::exists(folder / kTokenizer, none)) {
    json kept = settings;
    kept.update(special_map(folder, settings));
    kept.update(names);
    for (const char* decided :
         {"added_tokens_decoder", "tokenizer_class", "auto_map", "add_bos_token", "add_eos_token", "add_prefix_space",
          "tokenizer_file", "vocab_file", "special_tokens_map_file", "name_or_path"})
      kept.erase(decided);
    if (const fs::path file = folder / "chat_template.jinja"; fs::exists(file, none))
      kept["chat_template"] = read_file(file);
    special.fields[kTokenizer] = json_text(kept);
  }
  return special;
}

std::string chat_template(const SpecialTokens& special) {
  const auto found = special.fields.find(kTokenizer);
  const json given = found == special.fields.end() ? json() : parse_json(found->second).value("chat_template", json());
  if (given.is_string()) return given.get<std::string>();
  for (const json& each : given.is_array() ? given : json::array())  // [{"name": …, "template": …}, …]
    if (member_of(each, "name") == "default" && member_of(each, "template").is_string())
      return each["template"].get<std::string>();
  return {};
}

std::string tokenizer_class(const fs::path& folder) {
  return class_of(read_object(folder / kTokenizer), member_of(read_object(folder / kModel), "model_type"));
}

std::optional<bool> prefix_setting(const fs::path& folder) {
  const json settings = read_object(folder / kTokenizer), &given = member_of(settings, "add_prefix_space");
  const std::string name = given.is_boolean() ? tokenizer_class(folder) : "";
  const bool general = name == "PreTrainedTokenizer" || name == "TokenizersBackend";
  return given.is_boolean() && !general ? std::optional(given.get<bool>()) : std::nullopt;
}

std::vector<std::string> special_names(const fs::path& folder) {
  std::vector<std::string> names;
  for (const char* file : {kTokenizer, "special_tokens_map.json"}) {
    const json object = read_object(folder / file);
    for (const auto& [field, value] : object.items()) {
      const json name = value.is_object() ? value.value("content", json()) : value;
      if (field.ends_with("_token") && name.is_string()) names.push_back(name.get<std::string>());
    }
  }
  return names;
}

std::vector<ConfiguredEnd> configured_ends(const fs::path& folder, const SpecialTokens& special, const TokenId& id_of,
                                           const std::function<std::string(int32_t)>& name_of) {
  const auto field = [&](const char* file, const char* name) {
    const auto found = special.fields.find(file);
    return found == special.fields.end() ? json() : parse_json(found->second).value(name, json());
  };
  std::vector<ConfiguredEnd> ends;
  if (const json name = field(kTokenizer, "eos_token"); name.is_string())
    if (const auto id = id_of(name.get<std::string>())) ends.push_back({*id, true, false});
  if (const json ids = field(kModel, "eos_token_id"); ends.empty())
    for (const json& id : ids.is_array() ? ids : json::array({ids}))
      if (id.is_number_unsigned()) ends.push_back({id.get<int32_t>(), false, false});
  if (ends.empty()) return ends;
  const std::string templates = chat_templates(folder);
  for (ConfiguredEnd& end : ends) {
    const std::string name = name_of(end.id);
    end.ends_turns = !name.empty() && templates.find(name) != templates.npos;
  }
  return ends;
}

}  // namespace trainer::data
