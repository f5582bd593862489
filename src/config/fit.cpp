#include "config/fit.h"

#include <algorithm>
#include <cmath>

#include "base/join.h"
#include "config/foreign_names.h"
#include "config/suggest.h"

namespace trainer::config {
namespace {

bool in_range(const Field& key, const Value& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return key.range.contains(static_cast<double>(*integer));
  if (const auto* number = std::get_if<double>(&value)) return key.range.contains(*number);
  if (const auto* list = std::get_if<IntegerList>(&value))
    return std::ranges::all_of(*list, [&](int64_t each) { return key.range.contains(static_cast<double>(each)); });
  return true;
}

/// Returns ", which is too large to be given with an exponent", to follow "found the number 1e+19", if an integer key
/// was given such a number.
std::string too_large(const Field& key, const Value& value) {
  const auto* number = std::get_if<double>(&value);
  const bool large = key.type == Type::integer && number && std::abs(*number) > 9007199254740992.0;
  return !large                       ? ""
         : std::abs(*number) < 0x1p63 ? ", which is too large to be given with an exponent"
                                      : ", which is too large";
}

}  // namespace

Value fitted(const Field& key, const Value& value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  const auto* integer = std::get_if<int64_t>(&value);
  const auto* number = std::get_if<double>(&value);
  const auto* text = std::get_if<std::string>(&value);
  switch (key.type) {
    case Type::boolean:
      return std::holds_alternative<bool>(value) ? value : Value();
    case Type::integer:
      if (number && std::abs(*number) <= kExact && *number == std::floor(*number)) return static_cast<int64_t>(*number);
      return integer ? value : Value();
    case Type::number:
      if (integer) return static_cast<double>(*integer);
      return number && std::isfinite(*number) ? value : Value();
    case Type::string:
    case Type::choice:
      return text ? value : Value();
    case Type::list:
      if (text) return StringList{*text};
      return std::holds_alternative<StringList>(value) ? value : Value();
    case Type::integers:
      if (integer) return IntegerList{*integer};
      if (value == Value(StringList()) && key.initial == Value(IntegerList())) return IntegerList();
      return std::holds_alternative<IntegerList>(value) ? value : Value();
    case Type::tables:
      if (value == Value(StringList())) return TableList();  // TOML's empty list has no element type
      return std::holds_alternative<TableList>(value) ? value : Value();
    case Type::weights: {
      TableList table = std::holds_alternative<TableList>(value) ? std::get<TableList>(value) : TableList();
      if (table.size() != 1) return {};
      for (TableMember& member : table.front().members) {
        member.value = fitted({.name = {}, .type = Type::number}, member.value);
        const auto* weight = std::get_if<double>(&member.value);
        if (weight == nullptr || !kWeights.contains(*weight)) return {};
      }
      return table;
    }
    case Type::any:
      return std::holds_alternative<TableList>(value) ? Value() : value;
  }
  return {};
}

std::string expected(const Field& key) {
  const std::string range = key.range.text().empty() ? "" : " " + key.range.text();
  switch (key.type) {
    case Type::boolean:
      return "true or false";
    case Type::integer:
      return "an integer" + range;
    case Type::number:
      return "a number" + range;
    case Type::string:
      return "a string in quotes";
    case Type::list:
      return "a list of strings";
    case Type::integers:
      return "a list of integers" + range;
    case Type::choice:
      return "one of " + format("{}", fmt::join(key.names, ", "));
    case Type::tables:
      return "a list of tables";
    case Type::weights:
      return "a table of numbers " + kWeights.text() + ", as in { web = 0.7, code = 0.3 }";
    case Type::any:
      break;
  }
  return "a value";
}

Value checked(const Field& key, const std::string& path, const Value& found, const std::string& shown, const Origin& at,
              Mistakes& mistakes) {
  const Value value = fitted(key, found);
  const auto foreign = foreign_values().find(path);
  const std::string here = foreign == foreign_values().end() ? "" : "; " + foreign->second;
  if (value == Value() || !in_range(key, value)) {
    mistakes.add(at, path, format("expected {}, found {}{}{}", expected(key), shown, too_large(key, found), here));
    return {};
  }
  if (const auto* name = std::get_if<std::string>(&value);
      key.type == Type::choice && std::ranges::count(key.names, *name) == 0) {
    const std::string guess = did_you_mean(*name, key.names);
    mistakes.add(at, path, format("expected {}, found \"{}\"{}", expected(key), *name, guess.empty() ? here : guess));
    return {};
  }
  return value;
}

}  // namespace trainer::config
