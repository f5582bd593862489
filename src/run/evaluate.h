#pragma once
// Evaluation: windows from the start of the data, each token predicted once. Windows follow each other without overlap,
// or slide by less than their length, so that each token but the first ones is predicted from more context.
#include <functional>

#include "data/tokenizer.h"
#include "report/events.h"
#include "train/trainer.h"

namespace trainer::run {

struct Evaluation {
  report::EvalReport report;
  bool interrupted = false;  // stopped before the last window; the report is then meaningless
};

/// The positions of the windows in the data.
struct EvalWindows {
  /// Groups of global_batch windows; 0: all of the data. So the set of windows does not depend on the layout.
  int64_t groups = 0;
  /// Tokens from the begin of a window to that of the next, at most seq_len: all tokens are predicted, the last window
  /// may be shorter, and a window counts the tokens that earlier ones did not. 0: the whole windows that the data hold,
  /// one behind the other.
  int64_t stride = 0;
};

/// Without a tokenizer bits_per_byte is none.
/// `progress(done, windows)` is called between micro-batches and returns false to stop.
Evaluation evaluate(train::Trainer& trainer, const data::TokenDataset& dataset, const EvalWindows& windows,
                    const data::Tokenizer* tokenizer,
                    const std::function<bool(int64_t done, int64_t windows)>& progress);

}  // namespace trainer::run
