#include "data/special_tokens.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "data/files.h"

namespace trainer::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Defaults of transformers' classes. save_pretrained writes them even if the vocabulary is smaller, so published
/// models contain them; transformers warns and never generates them.
constexpr std::array kDefaultsOfClasses{std::pair("gpt2", 50256), std::pair("olmo2", 50279),
                                        std::pair("smollm3", 128000), std::pair("smollm3", 128001)};

/// One of the JSON files that name special tokens; has no fields if the file does not exist.
class TokenFields {
 public:
  explicit TokenFields(const fs::path& file) : file_(file) {
    if (std::error_code none; !fs::exists(file, none)) return;
    fields_ = parse_json(read_file(file));
    if (!fields_.is_object())
      throw Error(Code::data, fmt::format("{}: not a JSON object, or values are nested too deeply", file.string()));
  }

  bool has(const char* field) const { return fields_.contains(field); }
  json value(const char* field) const { return fields_.value(field, json()); }
  /// Turns ids into lists of ids below `rows`. Throws for other values, except −1, which older files write for none,
  /// and defaults of the class of this `model_type`.
  void require_tokens(int64_t rows, const json& model_type) {
    for (const char* field : {"bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"}) {
      const json given = std::exchange(fields_[field], json::array());
      for (const json& id : given.is_array() ? given : json::array({given})) {
        if (id.is_null() || id == -1) continue;
        if (id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(rows)) {
          fields_[field].push_back(id);
          continue;
        }
        const std::string what = fmt::format("{}: {}: {}, expected the id of a token, which is between 0 and {}",
                                             file_.string(), field, json_text(id), rows - 1);
        if (std::ranges::none_of(kDefaultsOfClasses,
                                 [&](const auto& each) { return model_type == each.first && id == each.second; }))
          throw Error(Code::data, what);
        log::info("{}; ignored, since it is only the default of transformers' {}", what, model_type.get<std::string>());
      }
    }
  }
  std::vector<int32_t> ids(const char* field) const { return fields_[field]; }
  std::optional<int32_t> id(const char* field) const {
    const std::vector<int32_t> all = ids(field);
    return all.empty() ? std::nullopt : std::optional(all.front());
  }
  /// Returns the id of a token that is given by its name, or by an object with its name.
  std::optional<int32_t> named(const char* field, const TokenId& id_of) const {
    const auto found = fields_.find(field);
    if (found == fields_.end()) return std::nullopt;
    const json name = found->is_object() ? found->value("content", json()) : *found;
    return name.is_string() ? id_of(name.get<std::string>()) : std::nullopt;
  }
  bool flag(const char* field) const { return has(field) && fields_[field] == true; }

 private:
  fs::path file_;
  json fields_ = json::object();
};

}  // namespace

SpecialTokens read_special_tokens(const fs::path& folder, const TokenId& id_of) {
  TokenFields generation(folder / "generation_config.json"), model(folder / "config.json");
  const TokenFields tokenizer(folder / "tokenizer_config.json");
  const json vocab_size = model.value("vocab_size"), type = model.value("model_type");
  constexpr uint64_t kMost = uint64_t{1} << 31;
  const auto rows =
      static_cast<int64_t>(vocab_size.is_number_unsigned() ? std::min(vocab_size.get<uint64_t>(), kMost) : kMost);
  generation.require_tokens(rows, type);
  model.require_tokens(rows, type);
  SpecialTokens special;
  special.eos = generation.ids("eos_token_id");
  if (special.eos.empty()) special.eos = model.ids("eos_token_id");
  if (special.eos.empty())
    if (const auto eos = tokenizer.named("eos_token", id_of)) special.eos = {*eos};
  const auto other = [&](const char* name, const char* field) {
    return tokenizer.has(name) ? tokenizer.named(name, id_of) : model.id(field);
  };
  special.bos = other("bos_token", "bos_token_id");
  special.pad = other("pad_token", "pad_token_id");
  special.unk = other("unk_token", "unk_token_id");
  special.add_eos = tokenizer.flag("add_eos_token");
  return special;
}

}  // namespace trainer::data
