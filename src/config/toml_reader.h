#pragma once
// TOML text as a flat list of nodes with their positions. Only toml_reader.cpp compiles the library: its macros there
// must hold for every copy of the library's inline functions.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/keys.h"

namespace trainer::config {

struct TomlNode {
  std::string section, name;  // name is empty for a section's header and for a value outside all sections
  bool is_section = false;
  int64_t line = 0, column = 0;              // position of the name
  int64_t value_line = 0, value_column = 0;  // position of the value
  Value value;                               // monostate: a type that no key accepts
  std::string shown;                         // "the integer 5"
};

/// The reason why the text is not valid TOML (duplicate names are invalid).
struct TomlMistake {
  std::string text;
  int64_t line = 0, column = 0;
};

/// Returns all sections and, after each, its keys, in alphabetical order. Throws TomlMistake.
std::vector<TomlNode> read_toml(std::string_view text);

/// A table [name], or one of the tables [[name]], of a file that is not a configuration.
struct TomlTable {
  std::string name;
  int64_t line = 0;
  std::vector<TomlNode> values;
};
/// Returns all tables, ordered by name; tables with the same name are in file order. Throws TomlMistake.
std::vector<TomlTable> read_toml_tables(std::string_view text);

/// Returns the same document as JSON. Throws TomlMistake.
std::string toml_as_json(std::string_view text);

/// Parses a single value, in the syntax of the right side of "key ="; throws TomlMistake if it is not a value.
TomlNode read_toml_value(std::string_view text);

}  // namespace trainer::config
