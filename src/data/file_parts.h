#pragma once
// The lists of data files in [data]: the training files or the sources of a mixture, and validation sets.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/interruptible.h"
#include "config/data.h"
#include "data/tokenizer.h"

namespace trainer::data {

/// A list of data files with its settings, its name, and the name of its tokens in the cache.
struct FilePart {
  std::string name;
  config::Data data;  // data.train: the files, as they were given
  std::string tokens;
  std::optional<double> weight = {};
  std::vector<std::string> files = {};  // data.train with globs expanded
};

/// Returns the training files, or the sources, in the order of the configuration.
std::vector<FilePart> training_parts(const config::Data& data);
/// Returns the validation sets that have their own files.
std::vector<FilePart> validation_parts(const config::Data& data);

bool all_token_files(const std::vector<std::string>& files, config::DataFormat stated);
TextOptions text_options(const config::Data& data);

/// Returns the tokenizer trained on the texts among these parts, from the cache when files, settings and shares are the
/// same. Its sample takes from each source in proportion to its weight, or else to the size of its files. Throws
/// Interrupted, and then writes nothing.
Tokenizer trained_tokenizer(const config::Data& data, const std::vector<FilePart>& parts,
                            const std::filesystem::path& cache, const Watch& watch);

/// Returns the result of act(); prefixes its errors with the name of the source or set.
template <typename F>
auto naming(const char* key, const std::string& name, F&& act) {
  try {
    return act();
  } catch (Error& error) {
    if (!name.empty()) error.add_context(fmt::format("{} \"{}\"", key, name));
    throw;
  }
}

}  // namespace trainer::data
