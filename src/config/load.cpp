#include "config/load.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/files.h"
#include "base/join.h"
#include "base/log.h"
#include "config/families.h"
#include "config/fit.h"
#include "config/foreign_names.h"
#include "config/keys.h"
#include "config/mistakes.h"
#include "config/resolve.h"
#include "config/stored_settings.h"
#include "config/strategies.h"
#include "config/suggest.h"
#include "config/switched_off.h"
#include "config/text.h"
#include "config/toml_reader.h"
#include "config/validate.h"

namespace trainer::config {

namespace {

class Loader {
 public:
  Loader(const std::string& path, const LoadOptions& options)
      : options_(options), mistakes_(path), config_(defaults()) {
    config_.path = path;
  }

  void read(std::string_view text);
  /// Sets a key from "section.key=value". `option` is the option as the user wrote it, for messages.
  void set(const std::string& text, const std::string& option);
  Config finish();

 private:
  const Key* find(const TomlNode& node, const Origin& at);
  void apply(const Key& key, const TomlNode& node, const Origin& at);
  /// Converts the members of each table to their types. Records the errors and returns false if a member is invalid.
  bool check_members(const Key& key, TableList& tables, const Origin& at);
  /// Parses the value of a --set word. Records an error and returns an empty result if it is invalid.
  std::optional<TomlNode> read_word(const Field& field, const std::string& path, const std::string& word,
                                    const Origin& at);
  /// Sets a member of a named table; `member` is "web.files".
  void set_in_table(const Key& key, const std::string& member, const std::string& word, const Origin& at);
  void take_settings_of_weights();
  void replace_length();
  void warn_of_idle_keys() const;

  LoadOptions options_;
  Mistakes mistakes_;
  Config config_;
  bool readable_ = true;
  std::vector<const Key*> set_;  // in the order in which they were first set
};

/// True if a word looks like a TOML string or list and must therefore parse as one. A glob such as [ab]*.txt does not.
bool begins_as_quoted(const std::string& word) {
  if (word.starts_with('"') || word.starts_with('\'')) return true;
  return word.starts_with('[') &&
         (word.find_first_of("\"',") != std::string::npos || word.find(']') == std::string::npos);
}

const Key* Loader::find(const TomlNode& node, const Origin& at) {
  if (const Key* key = find_key(node.section, node.name)) return key;
  StringList names;
  std::string elsewhere;
  for (const Key& key : keys()) {
    if (key.section == node.section) names.push_back(key.name);
    if (key.name == node.name && elsewhere.empty()) elsewhere = key.path();
  }
  const std::string path = node.section + (node.name.empty() ? "" : "." + node.name);
  if (const auto hint = foreign_hints().find(node.name); hint != foreign_hints().end()) {
    mistakes_.add(at, path, "unknown key; " + hint->second);
    return nullptr;
  }
  if (elsewhere.empty()) {
    const auto foreign = foreign_names().find(node.name);
    if (foreign != foreign_names().end()) elsewhere = foreign->second;
  }
  if (const auto guess = nearest(node.name, names)) {
    mistakes_.add(at, path, format("unknown key; did you mean \"{}\"?", *guess));
    mistakes_.involve(node.section + "." + *guess);
  } else if (!elsewhere.empty()) {
    mistakes_.add(at, path, format("unknown key; did you mean {}?", elsewhere));
    mistakes_.involve(elsewhere);
  } else {
    mistakes_.add(at, path, format("unknown key; the keys of [{}] are {}", node.section, fmt::join(names, ", ")));
  }
  return nullptr;
}

bool Loader::check_members(const Key& key, TableList& tables, const Origin& at) {
  StringList known;
  for (const Field& field : key.members) known.push_back(field.name);
  bool good = true;
  for (Table& table : tables) {
    const auto name = std::ranges::find(table.members, "name", &TableMember::name);
    const auto* text = name == table.members.end() ? nullptr : std::get_if<std::string>(&name->value);
    const std::string whose =
        key.path() + (text != nullptr ? format(" \"{}\"", *text) : format(" {}", &table - tables.data() + 1));
    for (TableMember& member : table.members) {
      const Origin where = at.set.empty() ? Origin{at.file, member.line, member.column, {}} : at;
      const auto field = std::ranges::find(key.members, member.name, &Field::name);
      if (field == key.members.end())
        mistakes_.add(where, whose, format("unknown key \"{}\"{}", member.name, did_you_mean(member.name, known)));
      else
        member.value = checked(*field, whose + ": " + member.name, member.value, member.shown, where, mistakes_);
      good &= field != key.members.end() && member.value != Value();
    }
  }
  if (!good) mistakes_.involve(key.path());
  return good;
}

void Loader::apply(const Key& key, const TomlNode& node, const Origin& at) {
  Value value = checked(key, key.path(), node.value, node.shown, at, mistakes_);
  if (value == Value()) return;
  if (auto* tables = std::get_if<TableList>(&value); tables != nullptr && !check_members(key, *tables, at)) return;
  key.set(config_, value);
  config_.origins[key.path()] = at;
  if (std::ranges::count(set_, &key) == 0) set_.push_back(&key);
}

void Loader::read(std::string_view text) try {
  for (const TomlNode& node : read_toml(text)) {
    const Origin name_at{config_.path, node.line, node.column, {}};
    const Origin value_at{config_.path, node.value_line, node.value_column, {}};
    const bool known = std::ranges::any_of(sections(), [&](const Section& s) { return s.name == node.section; });
    if (!node.name.empty()) {
      if (!known) continue;  // reported once, at its header
      if (const Key* key = find(node, name_at)) apply(*key, node, value_at);
    } else if (known && !node.is_section) {
      mistakes_.add(name_at, node.section, format("expected a section [{}], found {}", node.section, node.shown));
    } else if (!known && node.is_section) {
      StringList names;
      for (const Section& section : sections()) names.push_back(section.name);
      const std::string guess = did_you_mean(node.section, names);
      mistakes_.add(
          name_at, node.section,
          "unknown section" + (guess.empty() ? format("; expected one of {}", fmt::join(names, ", ")) : guess));
      if (const auto meant = nearest(node.section, names)) mistakes_.involve(*meant);
    } else if (!known) {
      const auto home = std::ranges::find_if(keys(), [&](const Key& key) { return key.name == node.section; });
      const auto foreign = foreign_names().find(node.section);
      std::string guess;
      if (home != keys().end()) guess = home->path();
      if (guess.empty() && foreign != foreign_names().end()) guess = foreign->second;
      mistakes_.add(name_at, node.section,
                    "a key outside any section" + (guess.empty() ? "" : format("; did you mean {}?", guess)));
      mistakes_.involve(guess);
    }
  }
} catch (const TomlMistake& mistake) {
  readable_ = false;
  mistakes_.add({config_.path, mistake.line, mistake.column, {}}, "", mistake.text);
}

void Loader::set(const std::string& text, const std::string& option) {
  const Origin at{{}, 0, 0, option};
  const size_t equals = text.find('=');
  const size_t dot = text.substr(0, equals).find('.');
  if (equals == std::string::npos || dot == std::string::npos) {
    mistakes_.add(at, "", "expected section.key=value");
    return;
  }
  const auto trimmed = [](std::string part) {
    const size_t first = part.find_first_not_of(" \t"), last = part.find_last_not_of(" \t");
    return first == std::string::npos ? std::string() : part.substr(first, last - first + 1);
  };
  const std::string section = trimmed(text.substr(0, dot)), name = trimmed(text.substr(dot + 1, equals - dot - 1));
  const std::string word = trimmed(text.substr(equals + 1));
  StringList names;
  for (const Section& each : sections()) names.push_back(each.name);
  if (std::ranges::count(names, section) == 0) {
    mistakes_.add(at, section, format("unknown section \"{}\"{}", section, did_you_mean(section, names)));
    return;
  }
  if (const Key* tables = find_key(section, name.substr(0, name.find('.')));
      tables != nullptr && tables->type == Type::tables && name != tables->name)
    return set_in_table(*tables, name.substr(tables->name.size() + 1), word, at);
  TomlNode requested;
  requested.section = section;
  requested.name = name;
  const Key* key = find(requested, at);
  if (key == nullptr) return;
  if (const auto node = read_word(*key, key->path(), word, at)) apply(*key, *node, at);
}

void Loader::set_in_table(const Key& key, const std::string& member, const std::string& word, const Origin& at) {
  const size_t dot = member.find('.');
  const std::string table_name = member.substr(0, dot), name = dot == std::string::npos ? "" : member.substr(dot + 1);
  TableList tables = std::get<TableList>(key.get(config_));
  StringList tables_known, members_known;
  for (const Table& each : tables)
    for (const TableMember& m : each.members)
      if (m.name == "name") tables_known.push_back(std::get<std::string>(m.value));
  for (const Field& field : key.members) members_known.push_back(field.name);
  const auto table = std::ranges::find_if(tables, [&](const Table& each) {
    return std::ranges::count(each.members, TableMember{"name", table_name}) > 0;
  });
  const auto field = std::ranges::find(key.members, name, &Field::name);
  const std::string path = format("{} \"{}\"", key.path(), table_name);
  if (table == tables.end()) return mistakes_.add(at, path, "unknown table" + did_you_mean(table_name, tables_known));
  if (field == key.members.end())
    return mistakes_.add(at, path,
                         format("unknown key \"{}\"; expected one of {}", name, fmt::join(members_known, ", ")));
  const auto node = read_word(*field, path + ": " + name, word, at);
  if (!node) return;
  Value value = checked(*field, path + ": " + name, node->value, node->shown, at, mistakes_);
  if (value == Value()) return;
  std::erase_if(table->members, [&](const TableMember& m) { return m.name == name; });
  table->members.push_back({name, std::move(value)});
  key.set(config_, Value(std::move(tables)));
  config_.origins[key.path()] = at;
}

std::optional<TomlNode> Loader::read_word(const Field& field, const std::string& path, const std::string& word,
                                          const Origin& at) {
  // A word that is not a TOML value is read as a string, as is a number if the key is a string (run.name=2024).
  TomlNode node;
  const auto as_string = [&] {
    try {
      return read_toml_value(to_toml(Value(word)));
    } catch (const TomlMistake&) {
      return TomlNode{};  // not UTF-8
    }
  };
  try {
    node = read_toml_value(word);
    const bool wants_text = field.type == Type::string || field.type == Type::choice || field.type == Type::list;
    if (wants_text && fitted(field, node.value) == Value()) node = as_string();
  } catch (const TomlMistake& mistake) {
    const bool number = (field.type == Type::integer || field.type == Type::number) &&
                        mistake.text.find("too large") != std::string::npos;
    if (number || begins_as_quoted(word)) {
      mistakes_.add(
          at, path,
          number ? mistake.text : format("{}: unclosed quote or bracket, or text after the closing one", word));
      return std::nullopt;
    }
    node = as_string();
  }
  if (word.empty()) {
    mistakes_.add(at, path, format("expected {} after =", expected(field)));
  } else if (node.value == Value() && field.type != Type::any) {
    mistakes_.add(
        at, path,
        format("expected {}, found {}", expected(field), node.shown.empty() ? "bytes that are not UTF-8" : node.shown));
  } else {
    return node;
  }
  return std::nullopt;
}

/// Warns about keys that have no effect with the strategy, or with their switch.
void Loader::warn_of_idle_keys() const {
  StringList named, causes;
  std::set<const Switch*> off;  // null: the strategy
  for (const Key* key : set_) {
    if (key->has_effect(config_) || key->get(config_) == key->initial) continue;
    off.insert(key->needs);
    const char* otherwise =
        key->path() == "parallel.experts" ? ", or sharding specs (\"autoddl\") whose `experts` name the axes"
        : key->path() == "parallel.context_heads" && config_.parallel.strategy == StrategyName::megatron_1d
            ? "; heads are split by parallel.tensor"
            : "";
    named.push_back(format("{} (needs {}{})", key->path(), needs_text(*key), otherwise));
  }
  if (named.empty()) return;
  if (off.contains(nullptr)) causes.push_back(format("parallel.strategy = \"{}\"", name_of(config_.parallel.strategy)));
  for (const Switch& each : kSwitches)
    if (off.contains(&each)) {
      const Key& key = *find_key(each.section, each.name);
      const std::string cause = format("{} = {}", key.path(), to_toml(key.get(config_)));
      if (std::ranges::count(causes, cause) == 0) causes.push_back(cause);
    }
  log::warning("{}: has no effect with {}: {}; set what {}, or remove {}", config_.path, fmt::join(causes, " and "),
               fmt::join(named, ", "), named.size() > 1 ? "they need" : "it needs",
               named.size() > 1 ? "the keys" : "the key");
}

void Loader::take_settings_of_weights() {
  if (!options_.settings_of || config_.model.init_from.empty()) return;
  Config resolved = config_;  // only its paths are used
  resolve(resolved);
  std::string source = resolved.model.init_from;
  StringList settings = options_.settings_of(source);
  if (std::error_code failed; !std::filesystem::exists(source, failed))
    if (std::optional<StoredSettings> stored = model_settings_of_run(resolved))
      source = std::move(stored->file), settings = std::move(stored->settings);
  for (const std::string& text : settings) {
    const std::string key = text.substr(0, text.find('='));
    if (config_.origins.contains(key)) continue;
    // Experts that are copies of a dense model's MLPs replace them.
    if (key == "model.d_ff" && config_.model.n_expert > 0 && config_.model.moe_every == 1) continue;
    set(text, "model.init_from = " + to_toml(Value(source)) + ": " + text);
    config_.origins[key] = {.file = source, .line = 0, .column = 0, .set = {}};
  }
}

/// If two keys set the same quantity, the one on the command line replaces the one in the file.
void Loader::replace_length() {
  const auto given = [&](const char* key) {
    const auto found = config_.origins.find(key);
    return found == config_.origins.end() ? 0 : found->second.set.empty() ? 1 : 2;
  };
  const int steps = given("train.steps"), tokens = given("train.tokens");
  if (steps == 0 || tokens == 0 || steps == tokens) return;
  (steps < tokens ? config_.train.steps : config_.train.tokens) = 0;
  config_.origins.erase(steps < tokens ? "train.steps" : "train.tokens");
}

Config Loader::finish() {
  if (readable_) {
    take_settings_of_weights();
    replace_length();
    if (options_.adjust) options_.adjust(config_);
    resolve(config_);
    resolve_shards(config_, options_.world.value_or(1));
    validate(config_, options_, mistakes_);
  }
  mistakes_.throw_if_any();
  if (options_.world) resolve_world(config_, world_size(config_, *options_.world));
  if (options_.warns) warn_of_idle_keys();
  if (options_.files) warn_of_switched_off_keys(config_);  // a checkpoint's own copy sets every key
  return std::move(config_);
}

}  // namespace

Config load_text(std::string_view text, const std::string& origin, const std::vector<std::string>& sets,
                 const LoadOptions& options) {
  Loader loader(origin, options);
  loader.read(text);
  for (const std::string& set : sets) loader.set(set, "--set " + (set.empty() ? "''" : set));
  if (!options.resume.empty())
    loader.set("checkpoint.resume=" + to_toml(Value(options.resume)), "--resume " + options.resume);
  return loader.finish();
}

std::string read_text(const std::string& given) {
  std::string text = read_text_file(given, "a configuration file; `trainer config reference` prints one to start from");
  if (given == kStandardInput && text.empty())
    throw Error(Code::config, "--config -: standard input is empty; expected a configuration in TOML");
  return text;
}

std::string name_of(const std::string& path) { return path == kStandardInput ? "stdin" : expand_home(path); }

Config load(const std::string& path, const std::vector<std::string>& sets, const LoadOptions& options) {
  return load_text(read_text(path), name_of(path), sets, options);
}

}  // namespace trainer::config
