#pragma once
// Access to the fields of config.json, with messages that name file, field and value.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/join.h"
#include "base/json.h"
#include "config/text.h"

namespace trainer::huggingface {

using nlohmann::json;
using nlohmann::ordered_json;

/// The fields of config.json. Null fields count as missing.
class Fields {
 public:
  Fields(const json& object, const std::string& origin) : object_(object), origin_(origin) {}

  [[noreturn]] void refuse(const std::string& field, const std::string& reason) const {
    throw Error(Code::checkpoint, format("{}: {}: {}", origin_, field, reason));
  }
  const json* find(const char* field) const {
    const auto found = object_.find(field);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  /// True if the field is present and null.
  bool has_null(const char* field) const {
    const auto found = object_.find(field);
    return found != object_.end() && found->is_null();
  }
  int64_t size(const char* field, std::optional<int64_t> otherwise = {}) const {
    constexpr int64_t kMost = int64_t{1} << 31;
    const json* value = find(field);
    if (value == nullptr && otherwise) return *otherwise;
    if (value == nullptr) refuse(field, "missing");
    if (!value->is_number_unsigned() || value->get<uint64_t>() < 1 || value->get<uint64_t>() > kMost)
      refuse(field, format("{}, expected a whole number of at least 1", json_text(*value)));
    return value->get<int64_t>();
  }
  double number(const char* field, double otherwise) const {
    const json* value = find(field);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) refuse(field, format("{}, expected a number", json_text(*value)));
    return value->get<double>();
  }
  bool flag(const char* field, bool otherwise) const {
    const json* value = find(field);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) refuse(field, format("{}, expected true or false", json_text(*value)));
    return value->get<bool>();
  }
  /// Rejects every value except `only`, which is also the default.
  void demand(const char* field, const json& only) const {
    const json* value = find(field);
    if (value != nullptr && *value != only)
      refuse(field, format("{} is not supported; expected {}", json_text(*value), json_text(only)));
  }
  void demand_one_of(const char* field, const std::vector<std::string>& known) const {
    const json* value = find(field);
    if (value != nullptr && std::ranges::none_of(known, [&](const auto& each) { return *value == each; }))
      refuse(field, format("{} is not supported; expected one of {}", json_text(*value), fmt::join(known, ", ")));
  }
  void demand_absent(const char* field) const {
    if (const json* value = find(field)) refuse(field, format("{} is not supported; expected null", json_text(*value)));
  }
  Fields object(const char* field) const {
    const json* value = find(field);
    if (!value->is_object()) refuse(field, format("{}, expected an object", json_text(*value)));
    return {*value, origin_};
  }
  auto members() const { return object_.items(); }

 private:
  const json& object_;
  const std::string& origin_;
};

/// Keys of the configuration with their values, in the form of --set.
class Keys {
 public:
  void add(const std::string& key, const config::Value& value) {
    sets_.push_back(format("model.{}={}", key, config::to_toml(value)));
  }
  void add(const Keys& more) { sets_.insert(sets_.end(), more.sets_.begin(), more.sets_.end()); }
  const std::vector<std::string>& sets() const { return sets_; }

 private:
  std::vector<std::string> sets_;
};

}  // namespace trainer::huggingface
