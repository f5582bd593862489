#pragma once
// The keys that must be equal in two checkpoints of one model.
#include <cstdint>
#include <map>
#include <string>

#include "config/config.h"

namespace trainer::checkpoint {

/// Returns the keys of a resolved model that must not change when a run resumes, as stored in Snapshot::model_keys.
/// `vocab` is the vocabulary size without padding, stored as "vocab_size".
/// Keys younger than the format are there only where they differ from what models were before, so that old checkpoints
/// resume, and older programs reject models that they cannot compute.
std::map<std::string, std::string> model_keys(const config::Model& model, int64_t vocab);

/// Returns what absent keys stand for, of those that may be absent and have a value then.
const std::map<std::string, std::string>& values_of_absent_keys();

}  // namespace trainer::checkpoint
