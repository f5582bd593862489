#include "data/source_checks.h"

#include "base/error.h"
#include "config/config.h"
#include "config/mistakes.h"

namespace trainer::data {

void require_bos(const TokenStream& stream, int32_t bos) {
  if (stream.info().bos == bos) return;
  throw Error(
      Code::data,
      fmt::format("{}: offset 40: its documents begin with {}, but the run's begin with {}; change data.bos, or "
                  "tokenize the text again with --bos {}",
                  stream.name(), bos_text(stream.info().bos), bos_text(bos), bos < 0 ? "off" : "on"));
}

void require_vocabulary(TokenStream& stream, const Tokenizer* tokenizer, int64_t vocab, int threads, int64_t most) {
  const TokenFileInfo& info = stream.info();
  if (tokenizer != nullptr && !info.tokenizer_hash.empty() && info.tokenizer_hash != tokenizer->hash()) {
    throw Error(Code::data, fmt::format("{}: offset 24: these tokens were made with tokenizer {}, but data.tokenizer "
                                        "is {}; set data.tokenizer to that tokenizer, or tokenize the text again",
                                        stream.name(), info.tokenizer_hash, tokenizer->hash()));
  }
  if (tokenizer != nullptr && !info.tokenizer_hash.empty()) require_bos(stream, tokenizer->bos());
  stream.limit_vocabulary(vocab);
  if (stream.tokens() <= most) stream.check_vocabulary(vocab, threads);
}

void require_one_tokenizer(const std::vector<FilePart>& parts,
                           const std::vector<std::shared_ptr<TokenStream>>& streams) {
  const TokenFileInfo& first = streams.front()->info();
  for (size_t i = 1; i < streams.size(); ++i) {
    const TokenFileInfo& info = streams[i]->info();
    if (info.bos != first.bos)
      throw Error(Code::data, fmt::format("data.source \"{}\": {}: its documents begin with {}, those of data.source "
                                          "\"{}\" ({}) with {}; tokenize both with the same data.bos",
                                          parts[i].name, streams[i]->name(), bos_text(info.bos), parts[0].name,
                                          streams[0]->name(), bos_text(first.bos)));
    if (info.vocab_size == first.vocab_size && info.tokenizer_hash == first.tokenizer_hash) continue;
    throw Error(Code::data,
                fmt::format("data.source \"{}\": {}: its vocabulary ({}) or tokenizer ({}) differs from that of "
                            "data.source \"{}\": {} ({}, {}); sources of different tokenizers cannot be mixed",
                            parts[i].name, streams[i]->name(), info.vocab_size, info.tokenizer_hash, parts[0].name,
                            streams[0]->name(), first.vocab_size, first.tokenizer_hash));
  }
}

int64_t vocabulary_of(int64_t implied, const std::string& name, const config::Config& config) {
  const int64_t requested = config.data.vocab_size;
  if (implied == 0 && requested == 0) {
    throw Error(Code::config,
                fmt::format("data.vocab_size: {} does not contain the size of its vocabulary; set data.vocab_size "
                            "(50257 for GPT-2's tokens)",
                            name));
  }
  if (requested > 0 && requested < implied) {
    const auto given = config.origins.find("data.vocab_size");  // a line or --set, unless it is that of the model
    const bool of_model = given != config.origins.end() && given->second.line == 0 && given->second.set.empty();
    throw Error(Code::config,
                fmt::format("{}: {}, but {} has a vocabulary of {}: {}",
                            of_model ? given->second.file + ": vocab_size" : config::place(config, "data.vocab_size"),
                            requested, name, implied,
                            of_model ? "the model of model.init_from has fewer rows; use that model's own tokenizer"
                                     : "leave data.vocab_size out or set it to at least that"));
  }
  return requested > 0 ? requested : implied;
}

void require_windows(const TokenStream& train, int64_t train_end, const config::Config& config) {
  const int64_t window = config.model.seq_len + 1, all = train.tokens(), val = all - train_end;
  if (val >= window && train_end >= window) return;
  const double share = static_cast<double>(window) / static_cast<double>(all);
  const std::string remedy =
      share < 0.5 ? fmt::format("a value from {0:.2g} to 1 - {0:.2g} leaves enough for both; 0 means no validation",
                                1.1 * share)
                  : "add data or choose a smaller model.seq_len";
  throw Error(Code::data,
              fmt::format("{}: {}: of the {} tokens of {} this leaves {} for {}, fewer than one window of "
                          "seq_len + 1 = {}; {}",
                          config::place(config, "data.val_fraction"), config.data.val_fraction, all, train.name(),
                          val < window ? val : train_end, val < window ? "validation" : "training", window, remedy));
}

}  // namespace trainer::data
