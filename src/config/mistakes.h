#pragma once
// Errors in a configuration, collected so that all are reported together.
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/config.h"

namespace trainer::config {

/// Returns the position of an error, with which its message begins: "x.toml:3:9: data.vocab_size", "--set
/// data.vocab_size=7". Without an origin (a default) it is only `file`.
std::string place(const Origin& origin, const std::string& file, const std::string& key);
/// Does the same for a key of a configuration, for errors that only the data reveal.
std::string place(const Config& config, const std::string& key);

class Mistakes {
 public:
  explicit Mistakes(std::string file) : file_(std::move(file)) {}

  /// `key`: "section.key", which is marked as involved. Without an origin the line names the file only.
  void add(const Origin& origin, const std::string& key, const std::string& text, Code code = Code::config);
  /// True if there is an error in `key` or its section. Then errors that follow from its value are not reported.
  bool involves(const std::string& key) const {
    return involved_.contains(key) || involved_.contains(key.substr(0, key.find('.')));
  }
  void involve(const std::string& key) { involved_.insert(key); }

  /// Throws one line per error, ordered by position, those of --set last. The code is that of the errors if all agree,
  /// else config.
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
