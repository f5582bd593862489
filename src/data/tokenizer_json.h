#pragma once
// A tokenizer.json next to the SentencePiece model from which it was converted.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/added_tokens.h"

namespace trainer::data {

/// Describes the first piece of a serialized model that the file lacks, or how the file changes, splits or joins text
/// differently; empty: it does not. `added` are the file's added tokens.
std::string difference_from(std::string_view model, const nlohmann::json& file, const std::vector<AddedToken>& added);

/// Returns the steps of a normalizer or a pre-tokenizer, which may have any type, null included.
std::vector<const nlohmann::json*> steps_of(const nlohmann::json& step);

/// Returns where a Metaspace adds the dummy prefix: "never", "first" or "always". Older files have only
/// add_prefix_space.
std::string prefix_scheme(const nlohmann::json& metaspace);

}  // namespace trainer::data
