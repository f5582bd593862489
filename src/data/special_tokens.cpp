#include "data/special_tokens.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/files.h"

namespace trainer::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// One of the JSON files that name special tokens; has no fields if the file does not exist.
class TokenFields {
 public:
  explicit TokenFields(const fs::path& file) : file_(file) {
    if (std::error_code none; !fs::exists(file, none)) return;
    fields_ = json::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
    if (!fields_.is_object()) throw Error(Code::data, fmt::format("{}: not a JSON object", file.string()));
  }

  bool has(const char* field) const { return fields_.contains(field); }
  /// Returns the ids of a field that contains one or a list. −1 means none, as in older files.
  std::vector<int32_t> ids(const char* field) const {
    const auto found = fields_.find(field);
    if (found == fields_.end() || found->is_null()) return {};
    std::vector<int32_t> ids;
    for (const json& id : found->is_array() ? *found : json::array({*found})) {
      constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
      if (!id.is_number_integer() || (id.is_number_unsigned() && id.get<uint64_t>() > kMost))
        throw Error(Code::data, fmt::format("{}: {}: {}, expected the id of a token", file_.string(), field,
                                            id.dump(-1, ' ', false, json::error_handler_t::replace)));
      if (id.get<int64_t>() >= 0) ids.push_back(id.get<int32_t>());
    }
    return ids;
  }
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
  const TokenFields generation(folder / "generation_config.json"), model(folder / "config.json"),
      tokenizer(folder / "tokenizer_config.json");
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
