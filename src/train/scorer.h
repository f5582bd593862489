#pragma once
// Scorer: computes the likelihood of texts of different lengths, to choose among several texts, and whether the model
// would have written them.
#include <map>
#include <span>
#include <vector>

#include "train/model_runner.h"

namespace trainer::train {

class Scorer {
 public:
  /// Records a program of `runner` for each shape that texts of these lengths need (rows: tokens − 1), and allocates
  /// memory, for activations no more than an evaluation. Every rank must construct a Scorer and call the same
  /// functions.
  Scorer(ModelRunner& runner, std::span<const int64_t> texts);

  /// The shape of one replica's batch: micro_batch · seq_len rows, as in an evaluation.
  struct Shape {
    int64_t sequences, length;
  };
  /// Returns the shape for a text with this number of rows: the length is seq_len, halved as often as it holds the text
  /// and can be halved.
  Shape shape_for(int64_t text) const;

  /// Scores of the sequences of all replicas, in replica order.
  struct Scores {
    std::vector<double> losses;  // Σ weights · loss, in nats
    std::vector<bool> greedy;    // no token was more likely than a target with a weight above 0
  };
  /// Evaluates each replica's batch, of a recorded shape. Returns the same on every rank. Collective.
  Scores scores(const data::TokenBatch& batch);

 private:
  struct Program {
    Shape shape;
    parallel::RowOrder row_order;
    Buffer order, positions;
    std::vector<std::string> keys;  // by chunk
  };
  void record(const Shape& shape);
  /// Runs the forward pass of this rank's chunk with that index.
  void run(Exec& ex, const Program& program, size_t chunk);

  ModelRunner& runner_;
  Buffer ids_, targets_, weights_, losses_, margins_;
  std::vector<int64_t> rows_;            // the stored row of each loss of this rank, whatever the shape
  std::map<int64_t, Program> programs_;  // by length
};

}  // namespace trainer::train
