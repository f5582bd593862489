#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file_io.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/process.h"
#include "cli/tokenizing.h"
#include "config/file_kind.h"
#include "data/chat.h"
#include "data/file_list.h"
#include "device/thread_pool.h"
#include "run/signals.h"

namespace trainer::cli {
namespace {

namespace fs = std::filesystem;

config::Document document_named(const std::string& name) {
  return name == "line"    ? config::Document::line
         : name == "block" ? config::Document::block
         : name == "chat"  ? config::Document::chat
                           : config::Document::file;
}

/// Returns the files that --input names. A pipe must be the only input.
std::vector<std::string> input_files(const TokenizeOptions& o, config::DataFormat stated) {
  std::vector<std::string> names = o.input;
  std::ranges::replace(names, std::string("-"), std::string(data::kStandardInput));
  const auto pipe = std::ranges::find_if(names, data::is_pipe);
  if (pipe == names.end()) return data::expand_files(names, stated, "--format");
  const std::string shown = *pipe == data::kStandardInput ? "-" : *pipe;
  if (names.size() > 1)
    throw Error(Code::usage,
                format("--input: {} is a pipe, which can be read only once; give it as the only input", shown));
  if (o.train_vocab > 0)
    throw Error(Code::usage,
                format("--train-vocab reads the text twice, but --input {} is a pipe; name a file, or give "
                       "a tokenizer with --tokenizer",
                       shown));
  if (!config::file_kind(*pipe, stated))
    throw Error(Code::usage, format("--input {}: unknown format; specify --format text or --format jsonl", shown));
  return names;
}

data::Tokenizer tokenizer_of(const TokenizeOptions& o, const std::vector<std::string>& files,
                             const data::TokenizeOptions& options) {
  if (!o.tokenizer.empty()) return data::Tokenizer::load(o.tokenizer);
  return interruptible(
      "training the tokenizer", {options.stop, options.busy},
      [files, size = o.train_vocab, text = options.text, symbols = data::control_symbols(o.chat_format)] {
        return data::Tokenizer::train({{files, text}}, size, data::Tokenizer::kSampleBytes, symbols);
      });
}

}  // namespace

int tokenize_command(const TokenizeOptions& o) try {
  if (o.tokenizer.empty() && o.train_vocab == 0)
    throw Error(Code::usage, "`tokenize` requires --tokenizer PATH or --train-vocab N");
  const run::SignalGuard signals;
  const config::DataFormat stated = format_named(o.format);
  const std::vector<std::string> files = input_files(o, stated);
  const bool piped = data::is_pipe(files.front());
  data::TokenizeOptions options;
  options.text = {o.text_key, document_named(o.document), o.strict, stated};
  options.threads = device::default_threads();
  options.stop = run::stop_requested;
  options.progress = show_tokenizing();
  options.busy = show_work();
  data::Tokenizer tokenizer = tokenizer_of(o, files, options);
  tokenizer.use_bos(o.bos == "on"    ? config::Bos::on
                    : o.bos == "off" ? config::Bos::off
                                     : config::Bos::automatic,
                    o.tokenizer.empty() ? "the trained tokenizer" : o.tokenizer);
  if (options.text.document == config::Document::chat)
    options.text.chat = &data::choose_chat_format(o.chat_format, tokenizer, "--chat-format");
  make_folders(o.output);
  for (const char* other : data::kTokenizerFiles)
    if (std::error_code none; other != tokenizer.file_name() && fs::exists(fs::path(o.output) / other, none))
      throw Error(
          Code::data,
          format("{}: contains {}, a different kind of tokenizer; remove that file or choose a different --output",
                 o.output, other));
  const fs::path output = fs::path(o.output) / "tokens.bin";
  options.begin = [&] {
    if (std::error_code none; fs::exists(output, none))
      log::warning(
          "{}: these tokens were made from a different text, tokenizer or setting and will be replaced; to keep them, "
          "stop now and choose a different --output",
          output.string());
  };
  const data::TokenizeResult result = data::tokenize_files(files, tokenizer, output, options);
  if (!result.finished) {
    log::info("{}", piped ? "stopped; reading from a pipe cannot be resumed: pipe the text again from its beginning"
                          : "stopped; run the same command again to resume");
    return run::kStoppedBySignal;
  }
  replace_file(fs::path(o.output) / tokenizer.file_name(), tokenizer.bytes());
  data::warn_of_flaws(result, options.text);
  if (o.json) {
    const nlohmann::json document{{"file", result.tokens_file.string()},
                                  {"tokens", result.tokens},
                                  {"documents", result.documents},
                                  {"text_bytes", result.text_bytes},
                                  {"replaced_bytes", result.replaced},
                                  {"lines_without_text", result.without_text},
                                  {"empty_files", result.empty_files},
                                  {"counted_tokens", options.text.chat == nullptr ? result.tokens : result.counted},
                                  {"vocab_size", tokenizer.vocab_size()},
                                  {"bos", tokenizer.bos() < 0 ? nlohmann::json() : nlohmann::json(tokenizer.bos())},
                                  {"reused", result.reused}};
    print(json_text(document) + "\n");
  } else {
    const bool chat = options.text.chat != nullptr;
    const auto trained = static_cast<double>(result.counted) / static_cast<double>(result.tokens);
    print(format("{}: {} tokens, {}, vocabulary {}{}{}\n", result.tokens_file.string(), result.tokens,
                 counted(result.documents, chat ? "conversation" : "document"), tokenizer.vocab_size(),
                 chat ? format(", {} format, {:.0f} % trained", options.text.chat->name, 100 * trained) : "",
                 result.reused ? " (up to date)" : ""));
  }
  return 0;
} catch (const Interrupted& interrupted) {
  log::info("stopped by {} while {}; nothing was written", run::signal_name(run::stop_signal()), interrupted.what());
  return run::kStoppedBySignal;
}

}  // namespace trainer::cli
