#pragma once
// Overlap: validation text that was trained on, whose loss says less than it seems to.
#include <string>

#include "data/dataset.h"

namespace trainer::data {

/// Looks for stretches of the validation tokens, spread over them, in the first 128 M training tokens. A sentence for
/// the user when at least half of them occur there, else empty. Reads the training tokens once; some tenths of a
/// second at most.
std::string overlap_of(const TokenDataset& train, const TokenDataset& val);

}  // namespace trainer::data
