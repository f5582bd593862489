#pragma once
// Conversations as segments of text, and segments as tokens.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat_formats.h"
#include "data/conversation.h"
#include "data/tokenizer.h"

namespace trainer::data {

/// A special token, by its name ({bos} and {eos} are the tokenizer's), or text that is encoded as a whole.
struct ChatSegment {
  std::string text;
  bool special = false, trained = false;

  bool operator==(const ChatSegment&) const = default;
};
/// Returns the segments of a conversation; with `prompt`, followed by what begins the assistant's next turn. Contents
/// of messages are never searched for special tokens. Trained text begins a segment, so that the tokens before it are
/// those of the prompt with which it would be generated.
std::vector<ChatSegment> render(const ChatFormat& format, const Conversation& conversation, bool prompt = false);

/// Returns the format of conversations for this tokenizer: the configured one, and for "auto" that of the checkpoint
/// (SpecialTokens::chat_format), else that of the tokenizer's chat template, else plain. Throws Code::config, naming
/// `setting` and the formats whose tokens exist, when the template is not known or the tokenizer lacks tokens of the
/// format.
const ChatFormat& choose_chat_format(const std::string& configured, const Tokenizer& tokenizer,
                                     std::string_view setting = "data.chat_format");
/// Returns the names of the formats whose tokens the tokenizer has: "chatml, plain".
std::string fitting_formats(const Tokenizer& tokenizer);
/// Returns the chat template of a model that is exported with these BOS and EOS tokens; empty: none. It is the kept
/// one, unless conversations of a different format, or with other tokens, were trained, which is logged.
std::string exported_template(const SpecialTokens& special, const Tokenizer& tokenizer, std::string_view bos,
                              std::string_view eos);
/// Returns a text that differs for formats, and for tokenizers with other BOS tokens, that yield different tokens.
std::string chat_key(const ChatFormat& format, const Tokenizer& tokenizer);

/// Encodes conversations in one thread. Keeps references to both arguments.
class ChatEncoder {
 public:
  /// Throws Code::config when the tokenizer lacks tokens of the format.
  ChatEncoder(const ChatFormat& format, const Tokenizer& tokenizer);

  /// Appends the conversation's tokens to `ids`, and to `spans` the begin and end of each run of trained ones among
  /// all of `ids`.
  void append(const Conversation& conversation, std::vector<int32_t>& ids, std::vector<int64_t>& spans);
  /// Returns the tokens up to where the assistant's next turn begins.
  std::vector<int32_t> prompt(const Conversation& conversation);
  /// Returns the token that ends the assistant's turns.
  int32_t end() const;
  /// Returns the text before that token that is also trained, which most formats do not have.
  std::string before_end() const;
  const ChatFormat& format() const { return format_; }

 private:
  void append(const std::vector<ChatSegment>& segments, std::vector<int32_t>& ids, std::vector<int64_t>& spans);

  const ChatFormat& format_;
  std::map<std::string, int32_t, std::less<>> specials_;
  Encoder encoder_;
};

}  // namespace trainer::data
