#include "config/text.h"

#include <algorithm>
#include <functional>

#include "base/join.h"
#include "config/strategies.h"

namespace trainer::config {
namespace {

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (const auto byte = static_cast<unsigned char>(c); byte < 0x20 || byte == 0x7f) {
          out += format("\\u{:04X}", byte);
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

std::string number(double value) {
  std::string out = format("{}", value);
  if (out.find_first_of(".en") == std::string::npos) out += ".0";  // "n" is in inf and nan
  return out;
}

std::string inline_table(const Table& table) {
  StringList members;
  for (const TableMember& member : table.members) {
    const auto* inner = std::get_if<TableList>(&member.value);
    members.push_back(
        format("{} = {}", member.name, inner != nullptr ? inline_table(inner->front()) : to_toml(member.value)));
  }
  return format("{{ {} }}", fmt::join(members, ", "));
}

/// Calls line(key, text of its value) for all keys of a section that have a value.
void each_value(const Config& config, const std::string& section,
                const std::function<void(const Key&, const std::string&)>& line) {
  for (const Key& key : keys()) {
    if (key.section != section) continue;
    const Value value = key.get(config);
    const bool absent = !key.derived.empty() && value == key.initial;
    if (!absent) line(key, to_toml(value));
  }
}

std::string origin_of(const Config& config, const Key& key) {
  if (const auto found = config.origins.find(key.path()); found != config.origins.end()) {
    const Origin& origin = found->second;
    if (!origin.set.empty()) return "--set";
    return origin.line > 0 ? format("{}:{}", origin.file, origin.line) : origin.file;
  }
  return key.derived.empty() ? "default" : "derived: " + key.derived;
}

/// Breaks text into comment lines of at most 110 characters.
std::string comment(std::string_view text) {
  constexpr size_t kWidth = 108;
  std::string out;
  while (!text.empty()) {
    size_t end = text.size();
    if (end > kWidth) end = text.rfind(' ', kWidth);
    if (end == std::string_view::npos) end = text.size();
    out += format("# {}\n", text.substr(0, end));
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return out;
}

std::string facts(const Key& key) {
  StringList facts;
  if (!key.names.empty()) facts.push_back(format("{}", fmt::join(key.names, " | ")));
  if (!key.range.text().empty()) facts.push_back(key.range.text());
  if (!key.unit.empty()) facts.push_back("in " + key.unit);
  if (!key.derived.empty()) facts.push_back("default: " + key.derived);
  if (key.example != Value()) {
    if (key.derived.empty()) facts.push_back("default: " + to_toml(key.initial));
  }
  return facts.empty() ? "" : format(" ({})", fmt::join(facts, "; "));
}

std::string reference_of(const Key& key) {
  std::string out = comment(key.help + facts(key));
  if (key.example != Value()) return out + format("{} = {}\n", key.name, to_toml(key.example));
  if (!key.derived.empty()) return out + format("# {} = ...\n", key.name);
  return out + format("{} = {}\n", key.name, to_toml(key.initial));
}

}  // namespace

std::string to_toml(const Value& value) {
  return std::visit(Overloaded{
                        [](std::monostate) { return std::string(); },
                        [](bool flag) { return std::string(flag ? "true" : "false"); },
                        [](int64_t integer) { return format("{}", integer); },
                        [](double x) { return number(x); },
                        [](const std::string& text) { return toml_string(text); },
                        [](const StringList& list) {
                          std::string out;
                          for (const std::string& text : list) out += (out.empty() ? "" : ", ") + toml_string(text);
                          return "[" + out + "]";
                        },
                        [](const IntegerList& list) { return format("[{}]", fmt::join(list, ", ")); },
                        [](const TableList& list) {
                          StringList tables;
                          for (const Table& table : list) tables.push_back(inline_table(table));
                          return format("[{}]", fmt::join(tables, ", "));
                        },
                    },
                    value);
}

std::string to_toml(const Config& config) {
  std::string out;
  for (const Section& section : sections()) {
    std::string lines;
    each_value(config, section.name,
               [&](const Key& key, const std::string& value) { lines += format("{} = {}\n", key.name, value); });
    if (!lines.empty()) out += format("{}[{}]\n{}", out.empty() ? "" : "\n", section.name, lines);
  }
  return out;
}

std::string show(const Config& config) {
  std::string out;
  for (const Section& section : sections()) {
    size_t name_width = 0, value_width = 0;
    each_value(config, section.name, [&](const Key& key, const std::string& value) {
      name_width = std::max(name_width, key.name.size());
      constexpr size_t kWidest = 60;  // longer values, such as tables, do not widen the column
      if (value.size() <= kWidest) value_width = std::max(value_width, value.size());
    });
    if (name_width == 0) continue;
    out += format("{}[{}]\n", out.empty() ? "" : "\n", section.name);
    each_value(config, section.name, [&](const Key& key, const std::string& value) {
      out += format("{:<{}} = {:<{}}  # {}\n", key.name, name_width, value, value_width, origin_of(config, key));
    });
  }
  return out;
}

std::string recompute_text(const Train& train) {
  std::string text = kRecomputeNames[static_cast<size_t>(train.recompute)];
  if (train.recompute_layers > 0) text += format("+{}", train.recompute_layers);
  return text;
}

std::string needs_text(const Key& key) {
  if (key.needs != nullptr) return key.needs->on;
  StringList names;
  for (const StrategyName strategy : key.strategies) names.emplace_back(name_of(strategy));
  return format("parallel.strategy: {}", fmt::join(names, ", "));
}

std::string reference() {
  std::string out =
      "# Every key of a configuration with its meaning, choices, range, unit and default. Written by\n"
      "# `trainer config reference`. It can be run as is; your own configuration needs only the keys that it changes.\n"
      "# Keys whose default is derived from other keys are commented out.\n";
  for (const Section& section : sections()) {
    out += format("\n# {}\n[{}]\n", section.help, section.name);
    for (const Key& key : keys())
      if (key.section == section.name) out += reference_of(key);
  }
  return out;
}

}  // namespace trainer::config
