#pragma once
// A small tokenizer.json with random merges.
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "data/bpe_file.h"

namespace trainer::data::testing {

/// Returns a tokenizer.json with `merges` random merges of these letters, which are spelled in GPT-2's characters.
inline nlohmann::json small_json(std::mt19937_64& random, int merges,
                                 const std::vector<std::string>& letters = {"a", "b", "c"}) {
  using nlohmann::json;
  json vocab = json::object(), pairs = json::array();
  std::vector<std::string> names = letters;
  for (size_t byte = 0; byte < 256; ++byte) vocab[byte_characters()[byte]] = byte;
  while (static_cast<int>(pairs.size()) < merges) {
    const std::string left = names[random() % names.size()], right = names[random() % names.size()];
    if (vocab.contains(left + right) || left.size() + right.size() > 9) continue;
    vocab[left + right] = vocab.size();
    names.push_back(left + right);
    pairs.push_back(left + " " + right);
  }
  return {{"added_tokens", json::array({json{{"id", vocab.size()}, {"content", "</s>"}, {"special", true}}})},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", pairs}}}};
}

}  // namespace trainer::data::testing
