#pragma once
// Conversations with a model: `generate --chat`.
#include <string>
#include <vector>

#include "cli/cli.h"
#include "data/chat.h"
#include "run/loaded_model.h"

namespace trainer::cli {

/// Turns conversations into prompts. Keeps a reference to the model.
class Chat {
 public:
  /// Chooses the format, and makes the model's tokenizer stop at the end of a turn. Throws Code::usage, on all ranks,
  /// when neither --chat-format nor the checkpoint names a format, and Code::config when the tokenizer lacks its
  /// tokens.
  Chat(const GenerateOptions& o, run::LoadedModel& model);

  /// Returns a conversation that consists of the system message, if any, and this message.
  data::Conversation begin(const std::string& message) const;
  /// Puts the system message of --system before a conversation without one.
  void add_system(data::Conversation& conversation) const;
  /// Returns the tokens before the assistant's answer. While they leave less than --tokens in the context (or half of
  /// it), removes the oldest turns, which is logged once. Throws Code::data if the last message does not fit.
  std::vector<int32_t> prompt(data::Conversation& conversation);
  /// Returns the text that begins each answer, and is not shown.
  std::string_view lead() const { return encoder_.format().lead; }
  /// Returns the text that ends each answer, and is not shown.
  std::string tail() const { return encoder_.before_end(); }

 private:
  static const data::ChatFormat& chosen(const GenerateOptions& o, const run::LoadedModel& model);

  const GenerateOptions& options_;
  const int64_t context_;  // tokens
  data::ChatEncoder encoder_;
  bool noticed_ = false;  // turns were removed
};

/// Reads lines of standard input; waits no longer than a second for one, so that a rank that reads them can tell the
/// others that it is alive.
class InputLines {
 public:
  enum class State { line, waiting, ended };
  /// Throws Code::io when standard input cannot be read.
  State next(std::string& line);

 private:
  std::string kept_;
  bool ended_ = false;
};

}  // namespace trainer::cli
