#pragma once
// Chat formats: how the messages of a conversation become one text. A format is a row of a table, not a program, so
// that it also decides which texts are special tokens and which are trained.
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::data {

/// Texts around a message.
struct Around {
  std::string_view before, after;
};

/// {bos} and {eos} in the texts are the tokenizer's tokens.
struct ChatFormat {
  std::string_view name;
  std::string_view begin = {};  // before everything
  Around system = {}, user;
  std::string_view prompt = {};           // begins the assistant's turn, not trained: what generation continues
  std::string_view lead = {}, end;        // around the assistant's text, trained
  std::string_view tail = {}, last = {};  // after a turn that another follows, and after the last one; not trained
  std::optional<std::string_view> default_system = {};
  std::optional<Around> inside = {};  // the system text is put into the first user message, between these
  enum class Strip { none, all, assistant } strip = Strip::none;  // white space around contents
  std::vector<std::string_view> specials = {};                    // tokens that the tokenizer must have
  bool alternates = false;                                        // user and assistant must alternate
  std::string jinja = {};                                         // for exports
};

std::span<const ChatFormat> chat_formats();
/// Returns the format with this name; null: there is none.
const ChatFormat* find_chat_format(std::string_view name);

/// Returns the special tokens that a tokenizer trained for this format gets; none for "auto".
std::vector<std::string> control_symbols(std::string_view name);

/// A chat template's format, if it is known.
struct KnownTemplate {
  const ChatFormat* format = nullptr;  // null: the template is not known
  std::string hash;                    // XXH3-128 of the text
};
/// Recognises a chat template by its text, without white space at both ends: a published one, or that of a format.
KnownTemplate known_template(std::string_view jinja);

}  // namespace trainer::data
