#pragma once
// Evaluation: consecutive, non-overlapping windows from the start of the data, each token predicted once.
#include <functional>

#include "data/tokenizer.h"
#include "report/events.h"
#include "train/trainer.h"

namespace trainer::run {

struct Evaluation {
  report::EvalReport report;
  bool interrupted = false;  // stopped before the last window; the report is then meaningless
};

/// `groups` groups of global_batch windows (0: all of the data), so the set of windows does not depend on the layout.
/// Without a tokenizer bits_per_byte is none.
/// `progress(done, windows)` is called between micro-batches and returns false to stop.
Evaluation evaluate(train::Trainer& trainer, const data::TokenDataset& dataset, int64_t groups,
                    const data::Tokenizer* tokenizer,
                    const std::function<bool(int64_t done, int64_t windows)>& progress);

}  // namespace trainer::run
