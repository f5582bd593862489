#pragma once
// The post-processor of a tokenizer.json, which adds special tokens before and after a text.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace trainer::data {

/// Names of special tokens; empty: none.
struct AddedEnds {
  std::string before, after;
};
/// Returns the tokens that a post-processor adds to a single text. It may have any type, null included.
AddedEnds ends_of(const nlohmann::json& post_processor);

struct NamedId {
  std::string name;  // empty: no token
  int32_t id = -1;
};
/// Returns the tokenizer.json with a post-processor that adds these tokens and no others.
std::string with_ends(std::string_view tokenizer_json, const NamedId& before, const NamedId& after);

}  // namespace trainer::data
