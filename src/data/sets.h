#pragma once
// The sets of a run: parts of streams of tokens, with the windows that data.packing chooses.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/forward.h"
#include "data/dataset.h"
#include "data/file_parts.h"

namespace trainer::data {

/// True if validation uses the end of each training stream.
bool has_tails(const config::Data& data);
/// Returns the position where training ends and validation begins: the document end nearest to (1 − fraction)·tokens,
/// or that position itself if the document end would change the validation share by more than half of it. A
/// conversation is never divided: throws Code::data if there is only one.
int64_t validation_begin(const TokenStream& stream, double fraction);

/// The place of the index of a set's packed windows.
struct IndexPlace {
  std::filesystem::path known;                  // if it is there already
  std::function<std::filesystem::path()> make;  // else
  Watch watch;
};
/// Returns the place of a set's index in a cache; `tail`: of the part for validation.
IndexPlace index_in(const std::filesystem::path& cache, const FilePart& part, bool tail, const Watch& watch);

/// Return the part of a stream that is for training, and a set for validation: tokens from `begin` on. Throw as
/// packing_index(), Code::data if there is not even one window, and Code::config for conversations in consecutive
/// windows.
NamedDataset training_set(const config::Config& config, const FilePart& part,
                          const std::shared_ptr<const TokenStream>& stream, const IndexPlace& place);
NamedDataset validation_set(const config::Config& config, const FilePart& part,
                            const std::shared_ptr<const TokenStream>& stream, int64_t begin, const IndexPlace& place);

/// Returns the facts of a set that decide which rows its windows have; `bound`: where its part of the stream begins or
/// ends.
std::string facts_of_windows(const TokenDataset& set, int64_t bound);
/// Sets the hash of each validation set, and returns that of all sets.
std::string hash_validation(std::vector<NamedDataset>& sets);

}  // namespace trainer::data
