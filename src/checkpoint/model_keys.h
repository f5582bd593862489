#pragma once
// The keys that must be equal in two checkpoints of one model.
#include <cstdint>
#include <map>
#include <string>

#include "config/config.h"

namespace trainer::checkpoint {

/// Returns the keys of a resolved model that must not change when a run resumes, as stored in Snapshot::model_keys.
/// `vocab` is the vocabulary size without padding, stored as "vocab_size".
std::map<std::string, std::string> model_keys(const config::Model& model, int64_t vocab);

}  // namespace trainer::checkpoint
