#pragma once
// Scorer: computes the likelihood of each sequence, to choose among several texts.
#include <vector>

#include "train/model_runner.h"

namespace trainer::train {

class Scorer {
 public:
  /// Records a program of `runner` for sequences of at most `longest` tokens and allocates memory, as much as for an
  /// evaluation. Every rank must construct a Scorer and call the same functions.
  Scorer(ModelRunner& runner, int64_t longest);

  /// Return the shape of one replica's batch: the number of sequences and their length (at least `longest`, unless the
  /// context window is shorter).
  int64_t sequences() const { return sequences_; }
  int64_t length() const { return length_; }

  /// Evaluates each replica's batch of sequences() · length() rows. Returns Σ weights · loss (in nats, f64) for each
  /// sequence of all replicas, in replica order, on every rank. Collective.
  std::vector<double> losses(const data::TokenBatch& batch);

 private:
  parallel::Batch batch() const;

  ModelRunner& runner_;
  int64_t sequences_, length_;
  parallel::RowOrder row_order_;
  Buffer ids_, targets_, weights_, losses_, order_, positions_;
  std::vector<int64_t> rows_;  // the natural row of each loss of this rank
  const std::string key_ = "score";
};

}  // namespace trainer::train
