#pragma once
// Checker: collects errors in combinations of keys, for validate.cpp and validate_data.cpp.
#include <algorithm>
#include <initializer_list>
#include <span>
#include <string>

#include "base/format.h"
#include "config/layouts.h"
#include "config/mistakes.h"

namespace trainer::config {

class Checker {
 public:
  Checker(const Config& config, Mistakes& mistakes) : config_(config), mistakes_(mistakes) {}

  /// Adds an error unless `ok`. `keys` are all keys on which the condition depends, the likely cause first. The error
  /// is reported at the first of them that was set. Nothing is added if one of them already has an error.
  template <typename... Args>
  void require(bool ok, std::initializer_list<const char*> keys, fmt::format_string<Args...> text, Args&&... args) {
    require_as(Code::config, ok, keys, text, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void require_as(Code code, bool ok, std::initializer_list<const char*> keys, fmt::format_string<Args...> text,
                  Args&&... args) {
    if (!ok) add(code, std::span(keys.begin(), keys.size()), fmt::format(text, std::forward<Args>(args)...));
  }
  void add(const BrokenRule& rule) { add(Code::config, rule.keys, rule.text); }
  /// Adds an error in one table of the list `key`, unless `ok`. `table` is that table's name or number.
  void require_in(Code code, bool ok, const char* key, const std::string& table, int64_t line,
                  const std::string& text) {
    if (ok || mistakes_.involves(key)) return;
    const auto given = config_.origins.find(key);
    Origin origin = given == config_.origins.end() ? Origin() : given->second;
    if (origin.set.empty() && line > 0) origin = {origin.file, line, 1, {}};
    mistakes_.add(origin, format("{} {}", key, table), text, code);
  }

 private:
  void add(Code code, std::span<const char* const> keys, const std::string& text) {
    if (std::ranges::any_of(keys, [&](const char* key) { return mistakes_.involves(key); })) return;
    const auto given = std::ranges::find_if(keys, [&](const char* key) { return config_.origins.contains(key); });
    const std::string key = given == keys.end() ? keys.front() : *given;
    mistakes_.add(given == keys.end() ? Origin() : config_.origins.at(key), key, text, code);
  }
  const Config& config_;
  Mistakes& mistakes_;
};

/// Returns an error if a file or folder name contains control characters, such as NUL, line ends or escape sequences;
/// else an empty string.
std::string bad_characters(const std::string& name);

/// Checks [data] (validate_data.cpp). `files`: also require that the files exist.
void check_data(const Config& config, bool files, Checker& checker);
struct LoadOptions;
/// Checks the keys of mixtures of experts (validate_experts.cpp).
void check_experts(const Config& config, const LoadOptions& options, Checker& checker);

}  // namespace trainer::config
