#pragma once
// Text generation with a KV cache.
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"
#include "train/sampler.h"
#include "train/trainer.h"

namespace trainer::train {

class Generator {
 public:
  /// Records the generation programs of `trainer` and allocates their memory (outside any step). Every rank of a
  /// replica must construct a Generator and call the same functions; the value that `emit` returns counts only on the
  /// replica's first rank.
  explicit Generator(Trainer& trainer);

  /// Appends up to `tokens` tokens to the prompt; `emit` receives each token as it is chosen and returns false to stop.
  /// Stops at each of `stops` (not emitted). An empty prompt starts from the first of them. If the text exceeds the
  /// context window (seq_len), its last half is kept; this is logged once. `first`, `later`: the tokens allowed as the
  /// first one and after it (see TokenSampler). Throws Code::nonfinite on all ranks of the replica if the logits are
  /// not finite.
  void run(const std::vector<int32_t>& prompt, int64_t tokens, const Sampling& sampling,
           const std::vector<int32_t>& stops, const std::function<bool(int32_t)>& emit,
           const std::vector<bool>& first = {}, const std::vector<bool>& later = {});

  /// Passes the text that follows `prompt` to `emit`, token by token (returning false stops); returns the number of
  /// tokens. The prompt begins with the tokenizer's BOS token if the tokenizer uses one. Tokens include the space
  /// before a word, so a trailing space is removed from the prompt, and the first token must begin with a space. Rows
  /// of the model without a token in the tokenizer are never chosen.
  int64_t write(const data::Tokenizer& tokenizer, std::string_view prompt, int64_t tokens, const Sampling& sampling,
                const std::function<bool(const std::string&)>& emit);
  /// Returns the same text as one string. `stop` is called after each token; returning true ends the text.
  std::string complete(const data::Tokenizer& tokenizer, std::string_view prompt, int64_t tokens,
                       const Sampling& sampling, bool (*stop)() = nullptr);

 private:
  /// Feeds ids to the model in few passes; returns the token chosen from the last row's logits.
  int32_t feed(const std::vector<int32_t>& ids, TokenSampler& sampler, int64_t position,
               const std::vector<bool>& allowed);
  parallel::Batch batch(int64_t rows) const;

  Trainer& trainer_;
  model::Transformer::Cache cache_;
  Buffer ids_;
  std::vector<std::string> programs_;  // names of passes over 1, 2, 4, … tokens
};

}  // namespace trainer::train
