#pragma once
// Evaluation: windows from the start of the data, each token predicted once. Windows follow each other without overlap,
// or slide by less than their length, so that each token except the first ones is predicted from more context.
#include <functional>

#include "data/source.h"
#include "report/events.h"
#include "train/trainer.h"

namespace trainer::run {

struct Evaluation {
  report::EvalReport report;
  bool interrupted = false;  // stopped before the last window; the report is then meaningless
};

/// The positions of the windows in the data.
struct EvalWindows {
  /// Groups of global_batch windows; 0: all of the data. The set of windows thus does not depend on the layout.
  int64_t groups = 0;
  /// Tokens between the starts of two windows, at most seq_len: all tokens are predicted, the last window may be
  /// shorter, and a window counts only the tokens that earlier ones did not. 0: consecutive whole windows.
  int64_t stride = 0;
};

/// Without a tokenizer bits_per_byte is empty. `progress(done, windows)` is called between micro-batches and returns
/// false to stop.
Evaluation evaluate(train::Trainer& trainer, const data::TokenDataset& dataset, const EvalWindows& windows,
                    const data::Tokenizer* tokenizer,
                    const std::function<bool(int64_t done, int64_t windows)>& progress);

/// Evaluates each set. The report has the numbers of sets[followed] and, if the sets have names, those of each.
Evaluation evaluate_sets(train::Trainer& trainer, const std::vector<data::NamedDataset>& sets, size_t followed,
                         const EvalWindows& windows, const data::Tokenizer* tokenizer,
                         const std::function<bool(int64_t done, int64_t windows)>& progress);

}  // namespace trainer::run
