#pragma once
// File lists: names and globs, as users write them, to files.
#include <filesystem>
#include <string>
#include <vector>

#include "config/config.h"

namespace trainer::data {

/// Returns names with globs replaced by what they match, in order of names. Throws Code::data when one matches nothing,
/// or when a file is of no kind that is known (config::file_kind); `insist` is then the option to say it with.
std::vector<std::string> expand_files(const std::vector<std::string>& patterns,
                                      config::DataFormat stated = config::DataFormat::automatic,
                                      const std::string& insist = "data.format");

/// The same; for a glob that matches nothing now, those that the tokens in the file `tokens` were made from.
std::vector<std::string> present_or_known(const std::vector<std::string>& patterns, const std::filesystem::path& tokens,
                                          config::DataFormat stated);

}  // namespace trainer::data
