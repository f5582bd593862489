// Checks of [data]: the files, and the tables of files.
#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "base/join.h"
#include "base/utf8.h"
#include "config/checker.h"
#include "config/file_kind.h"
#include "config/resolve.h"
#include "config/suggest.h"
#include "config/text.h"

namespace trainer::config {
namespace {

bool is_pattern(const std::string& path) { return path.find_first_of("*?[") != std::string::npos; }

bool matches_a_file(const std::string& pattern) {
  glob_t found{};
  const bool any = glob(pattern.c_str(), 0, nullptr, &found) == 0 && found.gl_pathc > 0;
  globfree(&found);
  return any;
}

/// Returns an error that names the files that do not exist, or that rejects standard input; empty if all exist.
/// `tokens` is the manifest of the tokens that an earlier start may have made from these texts; if it exists, the texts
/// may be missing.
std::string missing_files(const std::vector<std::string>& paths, DataFormat stated,
                          const std::filesystem::path& tokens) {
  if (std::ranges::count(paths, "-") > 0) return kPipeRemedy;
  std::vector<std::string> lost;
  for (const std::string& path : paths) {
    std::error_code ignored;
    const bool there = std::filesystem::exists(path, ignored) || (is_pattern(path) && matches_a_file(path)) ||
                       (file_kind(path, stated) != FileKind::tokens && std::filesystem::exists(tokens, ignored));
    const bool prefix = std::filesystem::exists(path + ".bin", ignored);  // Megatron's options omit the extension
    if (!there) lost.push_back(format("\"{}\"{}", path, prefix ? format(" (did you mean \"{}.bin\"?)", path) : ""));
  }
  std::error_code ignored;
  if (lost.empty()) return {};
  return format("{} not found (relative paths are relative to {})", fmt::join(lost, ", "),
                std::filesystem::current_path(ignored).string());
}

/// Returns the error for the first file of an unknown kind; empty if there is none. The files that match a pattern are
/// checked when the data are opened.
std::string unknown_file(const std::vector<std::string>& paths, DataFormat stated) {
  const auto unknown = [&](const std::string& path) {
    return path != "-" && !is_pattern(path) && !file_kind(path, stated);
  };
  const auto found = std::ranges::find_if(paths, unknown);
  return found == paths.end() ? "" : unknown_kind(*found);
}

constexpr const char* kCutsConversations =
    "\"stream\" would cut conversations at window borders; use \"best-fit\" or \"auto\"";

void check_paths(const char* key, const std::vector<std::string>& paths, DataFormat stated,
                 const std::filesystem::path& tokens, Checker& checker) {
  const std::string missing = missing_files(paths, stated, tokens), unknown = unknown_file(paths, stated);
  checker.require_as(Code::data, missing.empty(), {key}, "{}", missing);
  checker.require_as(Code::data, unknown.empty(), {key}, "{}", unknown);
}

/// Returns the error in the name of a table of files; empty if the name is valid.
std::string bad_name(const std::string& name) {
  constexpr const char* kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  if (name.empty()) return "name: missing";
  const bool good = name.size() <= 40 && name.find_first_not_of(std::string(kLetters) + "_-") == std::string::npos &&
                    name[0] != '_' && name[0] != '-';
  return good
             ? ""
             : format(
                   "name = {}: expected at most 40 lowercase letters, digits, - and _, starting with a letter or digit",
                   to_toml(Value(name)));
}

/// Checks tables of files. The manifest of a table's tokens is the file NAME + `extension` in the folder `tokens`.
void check_file_sets(const char* key, const std::vector<FileSet>& sets, const Data& data, bool files,
                     const std::filesystem::path& tokens, const char* extension, Checker& checker) {
  for (const FileSet& set : sets) {
    const auto number = &set - sets.data() + 1;
    const std::string table = set.name.empty() ? format("{}", number) : to_toml(Value(set.name));
    const auto check = [&](const std::string& mistake, Code code = Code::config) {
      checker.require_in(code, mistake.empty(), key, table, set.line, mistake);
      return mistake.empty();
    };
    const auto same = std::ranges::find(sets, set.name, &FileSet::name);
    if (!check(bad_name(set.name))) continue;
    if (!check(set.name == "val" || set.name == "tokenizer" ? "the name is reserved; use a different one" : ""))
      continue;
    check(&*same == &set ? "" : format("duplicate name (lines {} and {}); rename one", same->line, set.line));
    if (!check(set.files.empty() ? "files: missing; give paths or globs" : "")) continue;
    for (const std::string& path : set.files)
      if (!check(bad_characters(path))) return;
    check(data_of(data, set).document == Document::chat && data_of(data, set).packing == Windows::stream
              ? format("packing: {}", kCutsConversations)
              : "");
    if (!files) continue;
    const DataFormat format = set.format.value_or(data.format);
    if (check(missing_files(set.files, format, tokens / (set.name + extension)), Code::data))
      check(unknown_file(set.files, format), Code::data);
  }
}

/// Returns the first text file; empty if there is none.
std::string first_text(const std::vector<std::string>& paths, DataFormat stated) {
  const auto text =
      std::ranges::find_if(paths, [&](const std::string& path) { return file_kind(path, stated) != FileKind::tokens; });
  return text == paths.end() ? "" : *text;
}

/// Checks the tables of a mixture: its sources, their weights and the phases.
void check_sources(const Data& data, bool files, const std::filesystem::path& tokens, Checker& checker) {
  constexpr size_t kMostSources = 1000, kMostPhases = 64;
  const char *source = "data.source", *phase = "data.phase";
  checker.require(data.source.empty() || data.train.empty(), {source, "data.train"},
                  "data.source and data.train both set the training files; remove one of them");
  checker.require(data.source.size() <= kMostSources, {source}, "{} sources, but at most {} are supported",
                  data.source.size(), kMostSources);
  checker.require(data.phase.size() <= kMostPhases, {phase}, "{} phases, but at most {} are supported",
                  data.phase.size(), kMostPhases);
  checker.require(
      data.phase.empty() || !data.source.empty(), {phase, source},
      "phases change the weights of sources, but there are no sources; add [[data.source]], or remove the phases");
  check_file_sets(source, data.source, data, files, tokens, ".json", checker);

  std::vector<std::string> names;
  for (const FileSet& set : data.source) names.push_back(set.name);
  const auto weighted = [](const FileSet& set) { return set.weight.has_value(); };
  const bool some = std::ranges::any_of(data.source, weighted);
  for (const FileSet& set : data.source)
    checker.require_in(Code::config, !some || set.weight, source, to_toml(Value(set.name)), set.line,
                       "weight: missing; give one to every source, or to none");
  checker.require(!some || std::ranges::any_of(data.source, [](const FileSet& set) { return set.weight > 0.0; }),
                  {source}, "every weight is 0; set at least one above 0");
  for (size_t i = 0; i < data.phase.size() && !names.empty(); ++i) {
    const DataPhase& now = data.phase[i];
    const auto check = [&](bool ok, const std::string& mistake) {
      checker.require_in(Code::config, ok, phase, format("{}", i + 1), now.line, mistake);
    };
    check(now.from_tokens > 0, "from_tokens: missing; set it to the number of training tokens before the phase");
    if (i > 0)
      check(now.from_tokens > data.phase[i - 1].from_tokens,
            format("from_tokens = {} must be above that of phase {} ({})", now.from_tokens, i,
                   data.phase[i - 1].from_tokens));
    bool positive = false;
    for (const auto& [name, weight] : now.weights) {
      check(std::ranges::count(names, name) > 0,
            format("weights: unknown source \"{}\"{}", name, did_you_mean(name, names)));
      positive |= weight > 0;
    }
    check(positive, now.weights.empty() ? "weights: missing, as in weights = { web = 0.4, math = 0.6 }"
                                        : "weights: every weight is 0; set at least one above 0");
  }
}

/// Checks the tables of tasks.
void check_tasks(const Data& data, bool files, Checker& checker) {
  const std::vector<std::string> sets = validation_names(data);
  for (const Task& task : data.task) {
    const auto number = &task - data.task.data() + 1;
    const std::string table = task.name.empty() ? format("{}", number) : to_toml(Value(task.name));
    const auto check = [&](const std::string& mistake, Code code = Code::config) {
      checker.require_in(code, mistake.empty(), "data.task", table, task.line, mistake);
      return mistake.empty();
    };
    const auto same = std::ranges::find(data.task, task.name, &Task::name);
    if (!check(bad_name(task.name))) continue;
    check(&*same == &task ? "" : format("duplicate name (lines {} and {}); rename one", same->line, task.line));
    check(std::ranges::count(sets, task.name) == 0
              ? ""
              : "a validation set has the same name; names must differ, since checkpoint.best names either");
    if (!check(task.files.empty() ? "files: missing; give paths or globs" : "")) continue;
    for (const std::string& path : task.files)
      if (!check(bad_characters(path))) return;
    if (files) check(missing_files(task.files, DataFormat::automatic, {}), Code::data);
  }
}

}  // namespace

std::string bad_characters(const std::string& name) {
  const auto bad = std::ranges::find_if(name, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (bad != name.end())
    return format("{}: names cannot contain control characters, found one at position {}", to_toml(Value(name)),
                  bad - name.begin() + 1);
  std::string text = name;  // a checkpoint's copy of the configuration is TOML, which must be UTF-8
  const Utf8Repair repair = utf8_repair(text);
  return repair.replaced == 0 ? ""
                              : format("\"{}\": names must be UTF-8, found another byte at position {}; rename it",
                                       text, repair.first + 1);
}

void check_data(const Config& config, bool files, Checker& checker) {
  const Data& data = config.data;
  const bool trained = data.tokenizer == "train";
  checker.require(data.val.empty() || data.val_fraction == 0, {"data.val_fraction", "data.val"},
                  "val_fraction = {} and data.val both set the validation data; remove one of them", data.val_fraction);
  checker.require(data.validation.empty() || data.val_fraction == 0, {"data.val_fraction", "data.validation"},
                  "val_fraction = {} and data.validation both set the validation data; remove one of them",
                  data.val_fraction);
  checker.require(data.validation.empty() || data.val.empty(), {"data.val", "data.validation"},
                  "data.val and data.validation both set the validation data; remove one of them");
  checker.require(
      !trained || data.vocab_size > 0, {"data.tokenizer", "data.vocab_size"},
      "\"train\" requires data.vocab_size, the size of the vocabulary to train; 4096 suits a few MB of text");
  checker.require(data.document != Document::chat || data.packing != Windows::stream || data.train.empty(),
                  {"data.packing", "data.document"}, "{}", kCutsConversations);
  checker.require(!data.text_key.empty(), {"data.text_key"},
                  "expected a key of the JSON objects, found an empty string");
  const std::filesystem::path tokens = std::filesystem::path(config.run.dir) / "tokens";
  check_sources(data, files, tokens, checker);
  check_file_sets("data.validation", data.validation, data, files, tokens, ".val.json", checker);
  check_tasks(data, files, checker);
  if (!files) return;
  checker.require(!data.train.empty() || !data.source.empty(), {"data.train", "data.source"},
                  "missing; give the training files, as in train = [\"data/*.txt\"] under [data]");
  check_paths("data.train", data.train, data.format, tokens / "train.json", checker);
  check_paths("data.val", data.val, data.format, tokens / "val.json", checker);
  if (data.train.empty() && data.source.empty()) return;
  std::string text = first_text(data.train, data.format);
  for (const FileSet& set : data.source)
    if (text.empty()) text = first_text(set.files, set.format.value_or(data.format));
  if (data.tokenizer.empty()) {
    checker.require(text.empty(), {"data.tokenizer", "data.train", "data.source"},
                    "\"{}\" is text, which requires a tokenizer: set data.tokenizer to \"train\", or to a tokenizer's "
                    "file or folder",
                    text);
  } else if (trained) {
    checker.require(
        !text.empty(), {"data.tokenizer", "data.train", "data.source"},
        "\"train\" requires text, but all training files are token files; name the tokenizer that made them, "
        "or use \"\"");
  } else {
    std::error_code ignored;
    checker.require_as(Code::data, std::filesystem::exists(data.tokenizer, ignored), {"data.tokenizer"},
                       "\"{}\" not found; expected \"train\", or the file or folder of a tokenizer{}", data.tokenizer,
                       did_you_mean(data.tokenizer, {"train"}));
  }
}

}  // namespace trainer::config
