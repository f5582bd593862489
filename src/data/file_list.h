#pragma once
// File lists: expands names and globs given by users to files.
#include <filesystem>
#include <string>
#include <vector>

#include "config/data.h"

namespace trainer::data {

/// Returns the names that match a glob, sorted; possibly none. A name without *, ? and [, and the name of a file that
/// exists, is returned as it is.
std::vector<std::string> expand_glob(const std::string& pattern);

/// Returns names with globs expanded, sorted by name. Throws Code::data when a glob matches nothing, or when a file's
/// kind is unknown (config::file_kind). The message then names `insist`, the option that sets the kind.
std::vector<std::string> expand_files(const std::vector<std::string>& patterns,
                                      config::DataFormat stated = config::DataFormat::automatic,
                                      const std::string& insist = "data.format");

/// Returns the same. For a glob that matches nothing now, returns the files from which the tokens in the file `tokens`
/// were made.
std::vector<std::string> present_or_known(const std::vector<std::string>& patterns, const std::filesystem::path& tokens,
                                          config::DataFormat stated);

}  // namespace trainer::data
