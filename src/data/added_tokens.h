#pragma once
// Tokens that the files next to a SentencePiece model add to its pieces, such as those of chat formats.
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
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
  std::vector<AddedToken> pieces;         // pieces of the model, with other properties than SentencePiece gives them
  std::string normalizer, pre_tokenizer;  // these members of tokenizer.json, as JSON; empty: no such file
  bool legacy = false;                    // tokenizer_config.json: true if texts after a token begin with the prefix

  /// True if there is nothing that the model does not say itself.
  bool empty() const { return tokens.empty() && pieces.empty() && normalizer.empty() && pre_tokenizer.empty(); }
  /// True if tokenizer.json adds the dummy prefix to every text between tokens.
  bool prefixes_again() const;
  /// True if tokenizer.json adds no dummy prefix to text that begins with a space, as SentencePiece does.
  bool prefixes_words_only() const;
};

/// Reads the tokens that `model`, a serialized SentencePiece model without added tokens, lacks: from tokenizer.json,
/// else added_tokens.json, else tokenizer_config.json in its folder, the first that has any. If tokenizer.json has
/// different pieces or changes text differently, `difference` describes the first one, and there are no tokens. Throws
/// Code::data, naming the file and the token, for a damaged file, and for ids that do not follow those of the pieces.
AddedTokens find_added_tokens(std::string_view model, const std::filesystem::path& folder, std::string& difference);

/// Returns the tokens of added_tokens.json, else those of tokenizer_config.json, in the order of ids, that follow this
/// vocabulary or belong to it. Throws like find_added_tokens().
std::vector<AddedToken> find_added_tokens(const std::vector<std::string>& vocabulary,
                                          const std::filesystem::path& folder);

/// Returns the model with the tokens stored in it; other programs ignore them. Unchanged if they are empty().
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
  AddedTokenFinder(const AddedTokenFinder&) = delete;  // passes_ refer to tokens_
  AddedTokenFinder& operator=(const AddedTokenFinder&) = delete;
  /// True if no token is ever found.
  bool empty() const { return passes_[0].empty() && passes_[1].empty(); }
  /// Calls use_text(part) and use_token(id) in the order of the text. Tokens with `normalized` are found in
  /// normal(part).
  template <typename Text, typename Token, typename Normal = std::identity>
  void split(std::string_view text, Text&& use_text, Token&& use_token, Normal&& normal = {}) const {
    split_by(
        passes_[0], text, [&](std::string_view part) { split_by(passes_[1], normal(part), use_text, use_token); },
        use_token);
  }

 private:
  class Pass {
   public:
    void add(const AddedToken& token);
    bool empty() const { return !finds_; }
    /// Returns the longest token that begins at text[at]; null: none.
    const AddedToken* longest_at(std::string_view text, size_t at) const;

   private:
    std::unordered_map<std::string_view, const AddedToken*> tokens_;
    std::vector<size_t> lengths_;  // descending
    std::array<bool, 256> starts_{};
    bool finds_ = false;  // a token that is not special
  };
  template <typename Text, typename Token>
  static void split_by(const Pass& pass, std::string_view text, Text&& use_text, Token&& use_token) {
    size_t begin = 0;  // offset of the text after the last token
    for (size_t at = 0; at < text.size() && !pass.empty();) {
      const AddedToken* token = pass.longest_at(text, at);
      if (token == nullptr) {
        ++at;
        continue;
      }
      const auto [first, last] = extent(text, begin, at, *token);
      at += token->content.size();
      if (token->special) continue;
      if (first > begin) use_text(text.substr(begin, first - begin));
      use_token(token->id);
      begin = last;
    }
    if (begin < text.size()) use_text(text.substr(begin));
  }
  /// Returns the token's place at text[at], with the white space that it takes in, but none before `begin`.
  static std::pair<size_t, size_t> extent(std::string_view text, size_t begin, size_t at, const AddedToken& token);

  std::vector<AddedToken> tokens_;
  std::array<Pass, 2> passes_;
};

}  // namespace trainer::data
