#pragma once
// Data sets from the [data] section. Opening finds the files, trains or loads the tokenizer, tokenizes text (once; the
// tokens are cached), opens token files and splits off validation.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/forward.h"
#include "data/tokenize.h"
#include "data/tokenizer.h"
#include "data/training_data.h"

namespace trainer::data {

struct OpenOptions {
  int threads = 1;
  std::filesystem::path cache;  // tokens of text files; empty: RUN_DIR/tokens
  std::string tokenizer;        // a serialized model, used instead of training or loading data.tokenizer
  std::optional<int32_t> bos;   // the token that begins documents (−1: none); overrides data.bos ...
  std::string bos_of;           // ... if the tokenizer has this hash; empty: in any case
  SpecialTokens special;        // likewise, override those of the tokenizer's files unless empty
  /// New tokens are written to a folder in the cache (Datasets::staged), and existing ones are not changed, until
  /// adopt_staged() or drop_staged() is called.
  bool stage = false;
  std::function<bool()> stop;                                          // polled; true: save the work and return
  std::function<void(const TokenizeProgress&)> progress;               // called while tokenizing
  std::function<void(const std::string& doing, double seconds)> busy;  // called during other long work (Watch)
};

struct Datasets {
  std::optional<Tokenizer> tokenizer;
  int64_t vocab = 0;
  int32_t bos = -1;  // token that begins each document; −1: none
  SpecialTokens special;
  std::optional<TrainingData> train;                 // empty if opening was stopped
  std::string stopped;                               // then: in what, as in "tokenizing"
  std::map<std::string, std::string> source_hashes;  // by name of the source
  std::vector<NamedDataset> val;                     // in the order of the file
  size_t followed = 0;                               // index of the set that checkpoint.best names
  std::string data_hash;                             // hash of the training tokens and their end positions
  std::string val_hash;  // hash of the validation tokens, their starts and names; empty: none
  bool staged = false;   // some tokens are still staged
  double unigram_entropy =
      std::numeric_limits<double>::quiet_NaN();  // nats per token of the followed set, see statistics.h; NaN: none
};

/// Opens the training and validation data of a resolved configuration. Training windows are permuted by run.seed.
/// Throws Code::data, naming file and offset, for anything wrong with the files. Throws Code::config for text without a
/// tokenizer, a tokenizer to train without text, or an unknown vocabulary.
Datasets open_data(const config::Config& config, const OpenOptions& options);

/// Returns the configured weights of the sources: those from the first sample, and those of each phase.
std::vector<WeightChange> weight_changes(const config::Config& config, const TrainingData& train);

/// Moves staged tokens to their final place in a cache folder; drop_staged() removes them.
void adopt_staged(const std::filesystem::path& cache);
void drop_staged(const std::filesystem::path& cache);
/// Returns the folder of the tokens of a run's text files: RUN_DIR/tokens.
std::filesystem::path token_cache(const config::Config& config);

/// Opens the data that a run trains on, for a look at its samples: token files, or in `cache` the tokens of its text.
/// Writes nothing. Throws Code::data if a file is missing.
TrainingData open_trained_data(const config::Config& config, const std::filesystem::path& cache);

struct EvalData {
  std::vector<NamedDataset> sets;  // empty if reading was stopped
  std::string name;                // for messages
  std::string hash;                // comparable with the Datasets::val_hash of training; empty if `files` were given
  std::string own_hash;            // the same, also of `files`
};
/// Opens data to evaluate a trained model on: `files`, which are paths or globs. Without files it is all validation
/// sets of the configuration that the model was trained with. Text needs `tokenizer` (may be null otherwise); tokens
/// must be < vocab. Writes nothing into the cache: tokens that are not complete there are written to a temporary
/// folder.
EvalData open_eval_data(const config::Config& config, const std::vector<std::string>& files, const Tokenizer* tokenizer,
                        int64_t vocab, const OpenOptions& options);

/// Returns the vocabulary size that open_data would find, without training a tokenizer or reading text.
int64_t planned_vocab(const config::Config& config);

}  // namespace trainer::data
