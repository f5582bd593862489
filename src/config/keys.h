#pragma once
// The declarations of all keys. Each key is declared once, in keys*.cpp. The declarations drive the
// parsing of files and of `--set`, type and range checks, the reference, `config show`, and the TOML of the effective
// values.
#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/config.h"

namespace trainer::config {

using StringList = std::vector<std::string>;
using IntegerList = std::vector<int64_t>;
struct Table;
using TableList = std::vector<Table>;
/// A TOML value; monostate: none. An inline table is a list of one.
using Value = std::variant<std::monostate, bool, int64_t, double, std::string, StringList, IntegerList, TableList>;

/// A value in a table, with its position in the file.
struct TableMember {
  std::string name;
  Value value;             // monostate: a type that no key accepts
  std::string shown = {};  // "the integer 5"
  int64_t line = 0, column = 0;
  bool operator==(const TableMember& other) const;
};
struct Table {
  std::vector<TableMember> members;
  int64_t line = 0;
  bool operator==(const Table& other) const { return members == other.members; }
};
// Defined after Table, since Clang requires the complete type to compare values.
inline bool TableMember::operator==(const TableMember& other) const {
  return name == other.name && value == other.value;
}

enum class Type { boolean, integer, number, string, choice, list, integers, tables, weights, any };

/// The range of numbers that a key accepts; bounds are included unless open.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool open_min = false, open_max = false;

  bool contains(double value) const;
  /// Returns ">= 1", "> 0 and < 1"; empty if every number is accepted.
  std::string text() const;
};

/// The range of the sources' weights, bounded so that their sum stays finite.
inline const Range kWeights{.min = 0, .max = 1e18};

/// The values that a key accepts, or a key of the tables in a list of tables.
struct Field {
  std::string name;  // may belong to a table within the section: "overlap.all_reduce"
  Type type = Type::any;
  Value initial;
  Range range;
  StringList names;  // the values of a choice
};

/// A setting of another key without which some keys are ignored, with a warning.
struct Switch {
  const char* on;              // for messages: the setting that gives the keys an effect
  const char *section, *name;  // the key of that setting
  bool (*is_on)(const Config&);
};
/// All switches, in the order in which messages list them.
inline constexpr Switch kSwitches[] = {
    {"offload.optimizer", "offload", "optimizer",
     [](const Config& c) { return c.offload.optimizer != OffloadOptimizer::none; }},
    {"optim.name = \"muon\"", "optim", "name", [](const Config& c) { return c.optim.name == OptimizerName::muon; }},
    {"optim.name = \"sgd\"", "optim", "name", [](const Config& c) { return c.optim.name == OptimizerName::sgd; }}};
inline constexpr const Switch *kOffload = &kSwitches[0], *kMuon = &kSwitches[1], *kSgd = &kSwitches[2];

struct Key : Field {
  std::string section;
  std::string derived;  // describes how an unset value is derived from other keys (`initial` then means "not set")
  Value example;        // shown in the reference if the configuration could not run with the default
  std::string unit, help;
  std::vector<StrategyName> strategies;  // with others the key is ignored, with a warning; empty: used by all
  const Switch* needs = nullptr;
  std::vector<Field> members;  // members of each table, if the type is tables
  std::function<Value(const Config&)> get;
  std::function<void(Config&, const Value&)> set;

  /// True if the key belongs to the strategy, and not to all. No key belongs to "auto".
  bool belongs(StrategyName strategy) const { return std::ranges::count(strategies, strategy) > 0; }
  /// With strategy "auto" the keys of all strategies have an effect: the planner uses them.
  bool has_effect(const Config& config) const {
    const StrategyName strategy = config.parallel.strategy;
    if (needs != nullptr) return needs->is_on(config);
    return strategies.empty() || strategy == StrategyName::automatic || belongs(strategy);
  }
  std::string path() const { return section + "." + name; }
};

struct Section {
  std::string name, help;
};

const std::vector<Section>& sections();
/// Returns all keys, in the order of sections() and of the reference.
const std::vector<Key>& keys();
/// Returns the key, or nullptr if it does not exist.
const Key* find_key(std::string_view section, std::string_view name);
/// Returns a configuration with the initial value of every key; resolve() fills in derived values.
Config defaults();

}  // namespace trainer::config
