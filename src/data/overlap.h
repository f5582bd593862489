#pragma once
// Overlap: validation text that is also in the training data, which makes the validation loss too optimistic.
#include <string>

#include "data/dataset.h"

namespace trainer::data {

/// Looks for samples of the validation tokens in the first 128 M training tokens. Returns a sentence for the user if at
/// least half of them occur there, else an empty string. Reads the training tokens once; takes at most some tenths of a
/// second.
std::string overlap_of(const TokenDataset& train, const TokenDataset& val);

}  // namespace trainer::data
