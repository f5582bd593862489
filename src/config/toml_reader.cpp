#include "config/toml_reader.h"

// toml++ asserts (in release builds: takes for granted) what it checks right afterwards: "[=]" would stop the program
// instead of being reported.
#undef NDEBUG
#define TOML_ASSERT(condition) static_cast<void>(0)
#include <toml++/toml.h>

#include <cctype>

#include "base/format.h"
#include "config/text.h"

namespace trainer::config {
namespace {

void read_value(const toml::node& node, TomlNode& out) {
  out.value_line = node.source().begin.line;
  out.value_column = node.source().begin.column;
  if (const auto* flag = node.as_boolean()) {
    out.value = flag->get();
    out.shown = flag->get() ? "true" : "false";
  } else if (const auto* integer = node.as_integer()) {
    out.value = integer->get();
    out.shown = format("the integer {}", integer->get());
  } else if (const auto* number = node.as_floating_point()) {
    out.value = number->get();
    out.shown = format("the number {}", number->get());
  } else if (const auto* text = node.as_string()) {
    out.value = text->get();
    out.shown = "the string " + to_toml(out.value);
  } else if (const auto* array = node.as_array()) {
    StringList list;
    for (const toml::node& element : *array) {
      if (const auto* item = element.as_string()) {
        list.push_back(item->get());
        continue;
      }
      TomlNode bad;
      read_value(element, bad);
      out.shown = format("a list with {} at place {}", bad.shown, list.size() + 1);
      return;
    }
    out.shown = format("a list of {} strings", list.size());
    out.value = std::move(list);
  } else {
    out.shown = node.is_table() ? "a table" : "a date or time";
  }
}

TomlNode node_of(const toml::key& key) {
  TomlNode out;
  out.line = key.source().begin.line;
  out.column = key.source().begin.column;
  return out;
}

toml::table parse(std::string_view text) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& e) {
    // The library opens with what it was reading ("Error while parsing value: "), which says nothing to a user.
    std::string what(e.description());
    if (what.starts_with("Error while")) what = what.substr(what.find(": ") + 2);
    if (!what.empty()) what[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(what[0])));
    // A word without quotes, which the library may take for a mistyped true, false, inf or nan.
    for (const char* sign : {"could not determine value type", "expected 'true'", "expected 'false'", "expected 'inf'",
                             "expected 'nan'"}) {
      if (what.find(sign) != std::string::npos) what = "not a value; strings need quotes, flags are true or false";
    }
    throw TomlMistake{what, e.source().begin.line, e.source().begin.column};
  }
}

}  // namespace

std::vector<TomlNode> read_toml(std::string_view text) {
  const toml::table root = parse(text);
  std::vector<TomlNode> nodes;
  for (const auto& [section, content] : root) {
    TomlNode header = node_of(section);
    header.section = section.str();
    header.is_section = content.is_table();
    read_value(content, header);
    nodes.push_back(header);
    if (!header.is_section) continue;
    for (const auto& [name, value] : *content.as_table()) {
      TomlNode node = node_of(name);
      node.section = header.section;
      node.name = name.str();
      read_value(value, node);
      nodes.push_back(std::move(node));
    }
  }
  return nodes;
}

TomlNode read_toml_value(std::string_view text) {
  const toml::table root = parse(format("value = {}", text));
  if (root.size() != 1) throw TomlMistake{"more than one value", 1, 1};
  TomlNode node;
  read_value(*root.get("value"), node);
  return node;
}

}  // namespace trainer::config
