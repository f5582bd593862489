#pragma once
// The keys that must be equal in two checkpoints of one model.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "config/model.h"

namespace trainer::checkpoint {

/// Returns the keys of a resolved model that must not change when a run resumes, as stored in Snapshot::model_keys.
/// `vocab` is the vocabulary size without padding, stored as "vocab_size".
/// Keys of features that the model does not use are absent. So a key that a later version adds keeps the format's
/// number, and programs that do not know the feature reject models that use it.
std::map<std::string, std::string> model_keys(const config::Model& model, int64_t vocab);

/// Returns the value that a checkpoint without the key implies; null: it implies none, or the key is always stored.
const char* value_of_absent_key(std::string_view name);

}  // namespace trainer::checkpoint
