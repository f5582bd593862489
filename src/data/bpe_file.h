#pragma once
// Byte-level BPE as a value: the contents of a tokenizer.json, or of older files converted to one.
//
// GPT-2 represents each byte of a token by a character: printable bytes by themselves, all others by characters from
// U+0100 upwards.
#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/added_tokens.h"
#include "data/post_processor.h"

namespace trainer::data {

struct BpeSpec {
  struct Merge {
    int32_t left, right, result;
  };
  /// A step that splits text into smaller pieces: matches of a pattern, and the text between them or not.
  struct Split {
    std::string pattern;
    bool only_matches = false;
  };
  std::vector<Split> splits;
  bool nfc = false;                 // text is normalised before it is split
  std::vector<std::string> names;   // names of all tokens, as spelled in the file
  std::vector<std::string> pieces;  // bytes that each token represents; none for special tokens
  std::vector<Merge> merges;        // in order of priority
  std::array<int32_t, 256> byte_ids{};
  std::vector<AddedToken> added;
  int32_t eos = -1;            // −1: the file names no such token
  int32_t bos = -1;            // −1: none
  AddedEnds ends;              // the tokens that the file's post-processor adds
  bool ignore_merges = false;  // a word that is itself a token is not split further
};

/// Reads a tokenizer.json. Throws Code::data, naming `origin` and the member, when it is corrupt or uses unsupported
/// features: other normalisation than NFC, other model types, prefixes.
BpeSpec parse_bpe(std::string_view json, const std::string& origin);

/// Returns the tokenizer.json of GPT-2's pair of files. Without `vocab_json` the ids are GPT-2's: bytes, merges in
/// their order, then <|endoftext|>. In `folder`, if there is one, tokenizer_config.json decides between the patterns of
/// GPT-2 and Qwen 2, and this file or added_tokens.json has more tokens; those that files name for a purpose are
/// special. Throws Code::data naming the file and line, and for tokenizers of other classes.
std::string json_of_gpt2(std::optional<std::string_view> vocab_json, std::string_view merges,
                         const std::string& vocab_origin, const std::string& merges_origin,
                         const std::filesystem::path& folder = {});
/// Returns the tokenizer.json of a tiktoken file of ranks: each line has a token in base64 and its rank. The number of
/// tokens identifies OpenAI's vocabulary, and thereby the pattern and the special tokens.
std::string json_of_ranks(std::string_view ranks, const std::string& origin);
/// True if the bytes look like a file of ranks.
bool looks_like_ranks(std::string_view bytes);

/// Returns vocab.json and merges.txt of a tokenizer.json, for programs that need those.
std::pair<std::string, std::string> vocab_and_merges(const BpeSpec& spec);

/// Returns GPT-2's character for each byte, in UTF-8.
const std::array<std::string, 256>& byte_characters();

}  // namespace trainer::data
