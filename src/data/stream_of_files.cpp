#include "data/stream_of_files.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "config/file_kind.h"
#include "config/resolve.h"
#include "data/chat.h"
#include "data/file_parts.h"

namespace trainer::data {
namespace {

namespace fs = std::filesystem;

/// Files with a manifest next to them must match it.
std::shared_ptr<TokenStream> open_token_files(const std::vector<std::string>& files, const config::Data& data,
                                              const Tokenizer* tokenizer) {
  for (const std::string& file : files)
    if (const std::string damage = damage_of_tokens(file); !damage.empty())
      throw Error(Code::data, damage + "; recreate it with `trainer tokenize`");
  auto stream = std::make_shared<TokenStream>(files);
  if ((data.separates() || config::is_packed(data)) && tokenizer != nullptr)
    stream->end_documents_with(tokenizer->eos());
  return stream;
}

std::shared_ptr<TokenStream> open_text(const std::vector<std::string>& files, const config::Data& data,
                                       const Tokenizer& tokenizer, const fs::path& output,
                                       const std::function<fs::path()>& place, const OpenOptions& options) {
  TokenizeOptions how{.text = text_options(data),
                      .threads = options.threads,
                      .stop = options.stop,
                      .progress = options.progress,
                      .busy = options.busy};
  if (data.document == config::Document::chat) how.text.chat = &choose_chat_format(data.chat_format, tokenizer);
  const double start = now_seconds();
  std::optional<TokenizeResult> found = find_tokens(files, tokenizer, output, how.text, {options.stop, options.busy});
  if (!found && fs::exists(output))
    for (const std::string& file : files)
      if (!fs::exists(file))
        throw Error(
            Code::data,
            fmt::format("{0} not found, and {1} does not contain all of its tokens in today's form; restore {0}", file,
                        output.string()));
  how.from_scratch = true;
  const TokenizeResult result = found ? *found : tokenize_files(files, tokenizer, place(), how);
  if (!result.finished) return nullptr;
  if (how.text.chat != nullptr)
    log::info("{}: {}, {} tokens, {:.0f} % trained", result.tokens_file.string(),
              counted(result.documents, "conversation"), result.tokens,
              100 * static_cast<double>(result.counted) / static_cast<double>(result.tokens));
  else if (!result.reused) {
    log::info("{}: {} tokens in {}, {:.2f} bytes per token, {:.1f} s", result.tokens_file.string(), result.tokens,
              counted(result.documents, "document"),
              static_cast<double>(result.text_bytes) / static_cast<double>(result.tokens), now_seconds() - start);
  }
  warn_of_flaws(result, how.text);
  return std::make_shared<TokenStream>(std::vector{result.tokens_file.string()});
}

}  // namespace

std::shared_ptr<TokenStream> open_stream(const std::vector<std::string>& files, const config::Data& data,
                                         const Tokenizer* tokenizer, const fs::path& output,
                                         const std::function<fs::path()>& place, const OpenOptions& options) {
  if (data.document == config::Document::chat)
    for (const std::string& file : files) require_conversations(file, data.format);
  if (all_token_files(files, data.format)) return open_token_files(files, data, tokenizer);
  const auto tokens_file = [&](const auto& file) { return file_kind(file, data.format) == config::FileKind::tokens; };
  if (const auto tokens = std::ranges::find_if(files, tokens_file); tokens != files.end())
    throw Error(Code::data,
                fmt::format("{}: token files and text cannot be mixed in one list ({}); turn the text into tokens "
                            "first with `trainer tokenize`",
                            *tokens, *std::ranges::find_if_not(files, tokens_file)));
  if (tokenizer == nullptr)
    throw Error(Code::config,
                fmt::format("data.tokenizer: {} is text and needs a tokenizer: \"train\", or the file or folder of one",
                            files.front()));
  return open_text(files, data, *tokenizer, output, place, options);
}

}  // namespace trainer::data
