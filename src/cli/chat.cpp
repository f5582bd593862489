#include "cli/chat.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"

namespace trainer::cli {

using Role = data::ChatMessage::Role;

Chat::Chat(const GenerateOptions& o, run::LoadedModel& model)
    : options_(o), context_(model.config.model.seq_len), encoder_(chosen(o, model), *model.tokenizer) {
  data::SpecialTokens special = model.tokenizer->special();
  special.eos.push_back(encoder_.end());
  model.tokenizer->use_special(std::move(special));
}

const data::ChatFormat& Chat::chosen(const GenerateOptions& o, const run::LoadedModel& model) try {
  const data::Tokenizer& tokenizer = *model.tokenizer;
  const bool trained = !tokenizer.special().chat_format.empty() || !data::chat_template(tokenizer.special()).empty();
  if (!trained && o.chat_format == "auto")
    throw Error(Code::usage, format("{}: no chat format is stored; use --chat-format ({} fits this tokenizer)",
                                    model.folder.string(), data::fitting_formats(tokenizer)));
  if (!trained) log::warning("{}: this model was not trained on conversations", model.folder.string());
  return data::choose_chat_format(o.chat_format, tokenizer, "--chat-format");
} catch (Error& error) {
  throw error.on(Scope::all_ranks);
}

data::Conversation Chat::begin(const std::string& message) const {
  data::Conversation conversation = {{.role = Role::user, .content = message}};
  add_system(conversation);
  return conversation;
}

void Chat::add_system(data::Conversation& conversation) const {
  if (options_.system && (conversation.empty() || conversation.front().role != Role::system))
    conversation.insert(conversation.begin(), {.role = Role::system, .content = *options_.system});
}

std::vector<int32_t> Chat::prompt(data::Conversation& conversation) {
  const int64_t answer = std::min(options_.tokens, std::max<int64_t>(1, context_ / 2));
  for (;;) {
    std::vector<int32_t> ids = encoder_.prompt(conversation);
    if (std::ssize(ids) + answer <= context_) return ids;
    const auto first = conversation.begin() + (conversation.front().role == Role::system ? 1 : 0);
    const auto next =
        std::find_if(first + 1, conversation.end(), [](const auto& message) { return message.role == Role::user; });
    if (next == conversation.end())
      throw Error(Code::data, format("the message has {} tokens with its format; the model's context of {} tokens has "
                                     "room for {} before an answer of {} (--tokens)",
                                     ids.size(), context_, context_ - answer, answer))
          .on(Scope::all_ranks);
    conversation.erase(first, next);
    if (!std::exchange(noticed_, true))
      log::info("the conversation exceeds the context of {} tokens: its oldest turns are dropped", context_);
  }
}

InputLines::State InputLines::next(std::string& line) {
  for (;;) {
    if (const size_t end = kept_.find('\n'); end != kept_.npos) {
      line = kept_.substr(0, end);
      kept_.erase(0, end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return State::line;
    }
    if (ended_) {
      line = std::exchange(kept_, {});
      return line.empty() ? State::ended : State::line;
    }
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (::poll(&input, 1, 1000) <= 0) return State::waiting;  // or a signal arrived
    char block[4096];
    const ssize_t count = ::read(STDIN_FILENO, block, sizeof block);
    if (count < 0 && errno != EINTR && errno != EAGAIN)
      throw Error(Code::io, format("cannot read standard input: {}", system_reason(errno)));
    if (count > 0) kept_.append(block, static_cast<size_t>(count));
    ended_ = count == 0;
  }
}

}  // namespace trainer::cli
