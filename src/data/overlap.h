#pragma once
// Overlap: validation text that is also in the training data, which makes the validation loss too optimistic.
#include <string>

#include "data/dataset.h"

namespace trainer::data {

/// Limit on the training tokens that are searched, chosen so that a search takes a few tenths of a second.
inline constexpr int64_t kMostSearched = int64_t{1} << 27;

/// Looks for samples of the validation tokens in the first `most` training tokens. Returns a sentence for the user if
/// at least half of them occur there, else an empty string. Reads the training tokens once.
std::string overlap_of(const TokenDataset& train, const TokenDataset& val, int64_t most = kMostSearched);

}  // namespace trainer::data
