#pragma once
// Evaluation on windows from the start of the data, in which each token is predicted once. Windows are consecutive, or
// they overlap, so that tokens after the first window are predicted from more context.
#include <functional>

#include "data/source.h"
#include "report/events.h"
#include "train/model_runner.h"

namespace trainer::run {

struct Evaluation {
  report::EvalReport report;
  bool interrupted = false;  // stopped before the last window; the report is then meaningless
};

/// The positions of the windows in the data.
struct EvalWindows {
  /// Number of groups of global_batch windows, so that the windows do not depend on the layout; 0: all of the data.
  int64_t groups = 0;
  /// Tokens between the starts of two windows, at most seq_len: all tokens are predicted, the last window may be
  /// shorter, and a window counts only tokens that no earlier window counted. 0: the windows of the set.
  int64_t stride = 0;
};

/// Returns a hash of what an evaluation of the set predicts: the tokens, the windows, and what each token is predicted
/// from. It does not depend on the layout. Losses of evaluations with different hashes are not comparable.
std::string evaluated_data(const config::Config& config, const data::NamedDataset& set, const EvalWindows& windows);

/// Evaluates the loss on a dataset: the mean over the targets that count. bits_per_byte is empty without a tokenizer,
/// and if only some tokens count. `progress(done, windows)` is called between micro-batches and returns false to stop.
Evaluation evaluate(train::ModelRunner& runner, const data::TokenDataset& dataset, const EvalWindows& windows,
                    const data::Tokenizer* tokenizer,
                    const std::function<bool(int64_t done, int64_t windows)>& progress);

/// Evaluates each set. The report contains the results for sets[followed] and, if the sets are named, for each set.
Evaluation evaluate_sets(train::ModelRunner& runner, const std::vector<data::NamedDataset>& sets, size_t followed,
                         const EvalWindows& windows, const data::Tokenizer* tokenizer,
                         const std::function<bool(int64_t done, int64_t windows)>& progress);

}  // namespace trainer::run
