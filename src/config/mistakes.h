#pragma once
// Mistakes of a configuration, collected so that all are reported together.
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/config.h"

namespace trainer::config {

/// Returns the place of a mistake, the beginning of its message: "x.toml:3:9: data.vocab_size", "--set
/// data.vocab_size=7". Without an origin (a default) it is only `file`.
std::string place(const Origin& origin, const std::string& file, const std::string& key);
/// Does the same for a key of a configuration, for mistakes that only the data show.
std::string place(const Config& config, const std::string& key);

class Mistakes {
 public:
  explicit Mistakes(std::string file) : file_(std::move(file)) {}

  /// `key`: "section.key", counted as involved from now on. Without an origin the line names the file only.
  void add(const Origin& origin, const std::string& key, const std::string& text, Code code = Code::config);
  /// True if a mistake of `key` or of its section is known. Then mistakes that follow from its value are not reported.
  bool involves(const std::string& key) const {
    return involved_.contains(key) || involved_.contains(key.substr(0, key.find('.')));
  }
  void involve(const std::string& key) { involved_.insert(key); }

  /// One line per mistake, by position, those of --set last. The code is that of the mistakes when all agree, else
  /// config.
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
