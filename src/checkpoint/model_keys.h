#pragma once
// The keys that must be equal in two checkpoints of one model.
#include <cstdint>
#include <map>
#include <string>

#include "config/config.h"

namespace trainer::checkpoint {

/// Returns the keys of a resolved model that must not change when a run resumes, as stored in Snapshot::model_keys.
/// `vocab` is the vocabulary size without padding, stored as "vocab_size".
/// Keys added after the first format are stored only if they differ from the value that older models imply. So old
/// checkpoints still resume, and older programs reject models that they cannot compute.
std::map<std::string, std::string> model_keys(const config::Model& model, int64_t vocab);

/// Returns the implied value of each key that may be missing from a checkpoint and has one.
const std::map<std::string, std::string>& values_of_absent_keys();

}  // namespace trainer::checkpoint
