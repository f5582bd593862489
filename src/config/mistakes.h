#pragma once
// Errors in a configuration, collected so that all are reported together.
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/config.h"

namespace trainer::config {

/// Returns the position with which an error's message begins: "x.toml:3:9: data.vocab_size", "--set
/// data.vocab_size=7". For a default, which has no origin, it is `file` and the key.
std::string place(const Origin& origin, const std::string& file, const std::string& key);
/// Returns the position of a key of a loaded configuration, for errors that are found later, in the data.
std::string place(const Config& config, const std::string& key);

class Mistakes {
 public:
  explicit Mistakes(std::string file) : file_(std::move(file)) {}

  /// Adds an error in `key` ("section.key") and marks the key as involved.
  void add(const Origin& origin, const std::string& key, const std::string& text, Code code = Code::config);
  /// True if `key` or its section has an error. Errors that depend on the key's value are then not reported.
  bool involves(const std::string& key) const {
    return involved_.contains(key) || involved_.contains(key.substr(0, key.find('.')));
  }
  void involve(const std::string& key) { involved_.insert(key); }

  /// Throws an Error with one line per mistake, ordered by position, those in --set last. Its code is that of the
  /// mistakes if they all have the same code, else Code::config.
  void throw_if_any() const;

 private:
  struct Mistake {
    Origin origin;
    std::string line;
    Code code;
  };
  std::string file_;
  std::vector<Mistake> all_;
  std::set<std::string> involved_;
};

}  // namespace trainer::config
