#pragma once
// Scorer: the likelihood of single sequences, to choose among several texts.
#include <vector>

#include "train/trainer.h"

namespace trainer::train {

class Scorer {
 public:
  /// Records the program of `trainer` for sequences of at most `longest` tokens and allocates its memory, as much as an
  /// evaluation needs. Every rank makes one and calls the same functions.
  Scorer(Trainer& trainer, int64_t longest);

  /// Return the shape of a batch of one replica: sequences, and their tokens (at least `longest`, unless the context
  /// window is shorter).
  int64_t sequences() const { return sequences_; }
  int64_t length() const { return length_; }

  /// Evaluates each replica's batch of sequences() · length() rows. Returns Σ weights · loss (in nats, f64) of each
  /// sequence of all replicas, in replica order, on every rank. Collective.
  std::vector<double> losses(const data::TokenBatch& batch);

 private:
  parallel::Batch batch() const;

  Trainer& trainer_;
  int64_t sequences_, length_;
  Buffer ids_, targets_, weights_, losses_;
  std::vector<int64_t> rows_;  // the token row of each loss of this rank
  const std::string key_ = "score";
};

}  // namespace trainer::train
