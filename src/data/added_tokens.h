#pragma once
// Tokens that the files next to a SentencePiece model add to its pieces, such as those of chat formats.
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace trainer::data {

/// A token with the properties that Hugging Face's libraries give it.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false, lstrip = false, rstrip = false, normalized = false;
  bool special = false;  // never found in text
};

struct AddedTokens {
  std::vector<AddedToken> tokens;         // their ids follow those of the model's pieces
  std::string normalizer, pre_tokenizer;  // these members of tokenizer.json, as JSON; empty: no such file
  bool legacy = false;                    // tokenizer_config.json: true if texts after a token begin with the prefix
};

/// Reads the tokens that `model`, a serialized SentencePiece model without added tokens, lacks: from tokenizer.json,
/// else added_tokens.json, else tokenizer_config.json in its folder, the first that has any. If tokenizer.json has
/// different pieces, `difference` describes the first one, and there are no tokens. Throws Code::data, naming the file
/// and the token, for a damaged file, and for ids that do not follow those of the pieces.
AddedTokens find_added_tokens(std::string_view model, const std::filesystem::path& folder, std::string& difference);

/// Returns the model with the tokens stored in it; other programs ignore them. Unchanged if there are none.
std::string with_added_tokens(std::string model, const AddedTokens& added);
/// Returns the tokens that with_added_tokens() stored. Throws Code::data, naming `origin`, when they are damaged.
AddedTokens read_added_tokens(std::string_view serialized, const std::string& origin);
/// Returns the model without added tokens, as it was read.
std::string_view without_added_tokens(std::string_view serialized);

/// Returns why no text can be encoded as transformers would, because of tokens that are found in text; empty: it can.
std::string added_tokens_obstacle(const AddedTokens& added, bool dummy_prefix);

/// Returns tokenizer.json's entry, except for the id.
template <typename Json>
Json added_token_json(const AddedToken& token) {
  return {{"content", token.content}, {"single_word", token.single_word}, {"lstrip", token.lstrip},
          {"rstrip", token.rstrip},   {"normalized", token.normalized},   {"special", token.special}};
}

/// Finds added tokens in text as the tokenizers library does with encode_special_tokens: the leftmost one, the longest
/// if several begin there. Those with `normalized` are found in the remaining text.
class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(const std::vector<AddedToken>& tokens);
  AddedTokenFinder(const AddedTokenFinder&) = delete;  // passes_ refers to tokens_
  AddedTokenFinder& operator=(const AddedTokenFinder&) = delete;
  /// True if no token is ever found.
  bool empty() const { return passes_.empty(); }
  /// Calls use_text(part) and use_token(id) in the order of the text.
  template <typename Text, typename Token>
  void split(std::string_view text, Text&& use_text, Token&& use_token, size_t pass = 0) const {
    if (pass == passes_.size()) {
      if (!text.empty()) use_text(text);
      return;
    }
    size_t begin = 0;  // offset of the text after the last token
    for (size_t at = 0; at < text.size();) {
      const AddedToken* token = passes_[pass].longest_at(text, at);
      if (token == nullptr) {
        ++at;
        continue;
      }
      const auto [first, last] = extent(text, begin, at, *token);
      at += token->content.size();
      if (token->special) continue;
      if (first > begin) split(text.substr(begin, first - begin), use_text, use_token, pass + 1);
      use_token(token->id);
      begin = last;
    }
    if (begin < text.size()) split(text.substr(begin), use_text, use_token, pass + 1);
  }

 private:
  class Pass {
   public:
    void add(const AddedToken& token);
    /// Returns the longest token that begins at text[at]; null: none.
    const AddedToken* longest_at(std::string_view text, size_t at) const;

   private:
    std::unordered_map<std::string_view, const AddedToken*> tokens_;
    std::vector<size_t> lengths_;  // descending
    std::array<bool, 256> starts_{};
  };
  /// Returns the token's place at text[at], with the white space that it takes in, but none before `begin`.
  static std::pair<size_t, size_t> extent(std::string_view text, size_t begin, size_t at, const AddedToken& token);

  std::vector<AddedToken> tokens_;
  std::vector<Pass> passes_;
};

}  // namespace trainer::data
