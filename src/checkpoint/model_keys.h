#pragma once
// The keys in which two checkpoints of one model agree.
#include <cstdint>
#include <map>
#include <string>

#include "config/config.h"

namespace trainer::checkpoint {

/// Returns the keys of a resolved model that a run resumes with unchanged, as Snapshot::model_keys has them. `vocab` is
/// the true vocabulary, as "vocab_size".
std::map<std::string, std::string> model_keys(const config::Model& model, int64_t vocab);

}  // namespace trainer::checkpoint
