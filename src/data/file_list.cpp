#include "data/file_list.h"

#include <glob.h>
#include <filesystem>

#include "base/error.h"
#include "config/file_kind.h"
#include "data/input_key.h"

namespace trainer::data {

namespace fs = std::filesystem;

std::vector<std::string> expand_glob(const std::string& pattern) {
  if (std::error_code none; pattern.find_first_of("*?[") == std::string::npos || fs::exists(pattern, none))
    return {pattern};
  std::vector<std::string> files;
  glob_t found{};
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return files;
}

namespace {

/// `known`: as in present_or_known(); may be null.
std::vector<std::string> expand(const std::vector<std::string>& patterns, const nlohmann::json& known,
                                config::DataFormat stated, const std::string& insist) {
  std::vector<std::string> files;
  for (const std::string& pattern : patterns) {
    std::vector<std::string> found = expand_glob(pattern);
    if (found.empty()) found = known_files(pattern, known);
    if (found.empty()) throw Error(Code::data, format("{}: no file matches", pattern));
    files.insert(files.end(), found.begin(), found.end());
  }
  for (const std::string& file : files)
    if (std::filesystem::is_directory(file) || !file_kind(file, stated))
      throw Error(Code::data, config::unknown_kind(file, insist));
  return files;
}

}  // namespace

std::vector<std::string> expand_files(const std::vector<std::string>& patterns, config::DataFormat stated,
                                      const std::string& insist) {
  return expand(patterns, nullptr, stated, insist);
}

std::vector<std::string> present_or_known(const std::vector<std::string>& patterns, const fs::path& tokens,
                                          config::DataFormat stated) {
  return expand(patterns, inputs_in(read_json_or_null(fs::path(tokens).replace_extension(".json"))), stated,
                "data.format");
}

}  // namespace trainer::data
