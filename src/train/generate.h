#pragma once
// Text generation with KV caches.
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "data/tokenizer.h"
#include "train/model_runner.h"
#include "train/sampler.h"

namespace trainer::train {

/// Tokens to continue. `emit` receives each new token as it is chosen; returning false ends the continuation.
struct TokenRequest {
  std::vector<int32_t> prompt;  // empty: starts from the first of `stops`, or from token 0
  int64_t tokens = 0;           // appends at most this many
  Sampling sampling;
  std::vector<int32_t> stops;  // ends before each of these tokens
  std::function<bool(int32_t)> emit;
  /// Called once, after the last token, with whether stop() ended it; may be empty.
  std::function<void(bool stopped)> ended;
  /// The tokens allowed as the first one and after it (TokenSampler); null: all.
  const std::vector<bool>*first = nullptr, *later = nullptr;
};

/// Returns the next request, or nothing after the last one.
using TokenRequests = std::function<std::optional<TokenRequest>()>;

/// Text, or tokens as they are. A text begins with the tokenizer's BOS token if the tokenizer uses one. Tokens include
/// the space before a word, so a trailing space is removed from a text, and the first token must begin with a space.
using Prompt = std::variant<std::string, std::vector<int32_t>>;

/// Text to continue.
struct TextRequest {
  Prompt prompt;
  int64_t tokens = 0;
  Sampling sampling;
  std::function<bool(const std::string&)> emit;             // receives the text that follows, token by token
  std::function<void(int64_t tokens, bool stopped)> ended;  // as in TokenRequest
};
using TextRequests = std::function<std::optional<TextRequest>()>;

class Generator {
 public:
  /// Records the generation programs of `runner` and allocates their memory (outside any step) and KV caches for up to
  /// `sequences` sequences, which are decoded together. Every rank of a replica must construct a Generator and call the
  /// same functions; the values that `emit` and `stop` return count only on the first rank of the replica's last stage.
  explicit Generator(ModelRunner& runner, int64_t sequences = 1);

  /// Continues all requests; the next one is taken when one ends. On one CPU rank the tokens do not depend on how many
  /// sequences are decoded together, up to kSequencesOfEqualBits. (Sums over ranks and cuBLASLt round differently for
  /// other numbers of rows.) If a text exceeds the context window (seq_len), its last half is kept; this is logged
  /// once. `stop` is called after each step and before each request; once it returns true, all requests in progress
  /// end, no other starts, and run() returns false. Throws Code::nonfinite on all ranks of the replica if the logits
  /// are not finite.
  bool run(const TokenRequests& next, bool (*stop)() = nullptr);
  static constexpr int64_t kSequencesOfEqualBits = 8;  // kSmallBatchRows of the GEMMs (ops/cpu/gemm_kernel.h)

  /// Does the same for text. Rows of the model without a token in the tokenizer are never chosen.
  bool write(const data::Tokenizer& tokenizer, const TextRequests& next, bool (*stop)() = nullptr);
  /// Returns the text that follows `prompt`. `stop` is called after each token; returning true ends the text.
  std::string complete(const data::Tokenizer& tokenizer, const Prompt& prompt, int64_t tokens, const Sampling& sampling,
                       bool (*stop)() = nullptr);

 private:
  struct Sequence;
  /// A pass over the next `rows` tokens of each cache's sequence.
  struct Pass {
    std::span<model::Transformer::Cache* const> caches;
    int64_t rows = 0;
    bool with_logits = true;
  };
  /// Records the programs of a pass, one for each of this rank's chunks, unless they are recorded, and allocates their
  /// memory.
  void record(const Pass& pass);
  std::string program_of(const Pass& pass, size_t chunk) const;
  /// Runs the pass in a chunk; returns the logits if the chunk has the head and they are computed.
  Scratch run_chunk(Exec& ex, const Pass& pass, size_t chunk);
  parallel::Batch batch(size_t sequences, int64_t rows) const;
  /// Takes the next request into `slot`; returns false after the last one.
  bool start(std::optional<Sequence>& slot, model::Transformer::Cache& cache, const TokenRequests& next);
  /// Feeds the next `rows` tokens of each sequence to the model in one pass, and chooses the next token if all of their
  /// tokens are fed.
  void feed(std::span<Sequence* const> sequences, int64_t rows);
  /// Emits the chosen tokens and ends the sequences that are complete, or all of them if `stop` returns true; then it
  /// returns false.
  bool emit(std::vector<std::optional<Sequence>>& slots, bool (*stop)());
  /// Returns whether `stop` returned true where it counts.
  bool stops(bool (*stop)());
  static void end(std::optional<Sequence>& slot, bool stopped);
  /// If the text exceeds the context window, keeps its last half and empties the cache.
  void keep_within_context(Sequence& sequence);

  ModelRunner& runner_;
  int64_t most_rows_;                              // the most tokens per pass over one sequence; a power of two
  std::vector<model::Transformer::Cache> caches_;  // one per sequence that is decoded
  StageLinks links_;
  Buffer ids_;
  bool noticed_ = false;  // a text exceeded the context window
};

}  // namespace trainer::train
