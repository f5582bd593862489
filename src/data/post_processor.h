#pragma once
// The post-processor of a tokenizer.json, which adds special tokens before and after a text.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace trainer::data {

struct NamedId {
  std::string name;
  int32_t id = -1;  // −1: no token
};
/// The tokens that a post-processor adds to a single text.
struct AddedEnds {
  NamedId before, after;
  std::string obstacle;  // why a run cannot do the same, as "adds several tokens"; empty: it can
};
/// Reads a post-processor. It may have any type, null included.
AddedEnds ends_of(const nlohmann::json& post_processor);

/// Returns the post-processor that adds these tokens; null for none.
nlohmann::ordered_json post_processor_of(const NamedId& before, const NamedId& after);
/// Returns the tokenizer.json with a post-processor that adds these tokens and no others.
std::string with_ends(std::string_view tokenizer_json, const NamedId& before, const NamedId& after);

}  // namespace trainer::data
