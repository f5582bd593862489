#pragma once
// TOML text as a flat list of nodes with their positions; the one place that sees the TOML library.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/keys.h"

namespace trainer::config {

struct TomlNode {
  std::string section, name;  // name is empty for a section's header and for a value outside all sections
  bool is_section = false;
  int64_t line = 0, column = 0;              // of the name
  int64_t value_line = 0, value_column = 0;  // of the value
  Value value;                               // monostate: of a type no key has
  std::string shown;                         // "the integer 5"
};

/// The reason why the text is not valid TOML (duplicate names count).
struct TomlMistake {
  std::string text;
  int64_t line = 0, column = 0;
};

/// All sections and, after each, its keys, in alphabetical order. Throws TomlMistake.
std::vector<TomlNode> read_toml(std::string_view text);

/// A table [name], or one of the tables [[name]], of a file that is not a configuration.
struct TomlTable {
  std::string name;
  int64_t line = 0;
  std::vector<TomlNode> values;
};
/// Returns all tables, by name and within a name in the order of the file. Throws TomlMistake.
std::vector<TomlTable> read_toml_tables(std::string_view text);

/// One value as after "key ="; throws TomlMistake when it is none.
TomlNode read_toml_value(std::string_view text);

}  // namespace trainer::config
