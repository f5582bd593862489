#pragma once
// TrainingData: the training sequences of a run, from one set of files, or from several according to a mixture.
#include <optional>
#include <vector>

#include "data/dataset.h"
#include "data/mixture.h"

namespace trainer::data {

class TrainingData {
 public:
  /// A single source without a name, or several with names, in order, which need set_mixture() before the first batch.
  explicit TrainingData(std::vector<NamedDataset> sources);
  TrainingData(TrainingData&&) = default;
  TrainingData& operator=(TrainingData&&) = default;

  const std::vector<NamedDataset>& sources() const { return sources_; }
  bool is_mixed() const { return !sources_.front().name.empty(); }
  int64_t tokens() const;
  /// Returns the number of windows of all sources.
  int64_t windows() const;

  /// The mixture may name sources of earlier phases that are not open; no later sample may be drawn from them.
  void set_mixture(Mixture mixture);
  /// Null for a single source without a name.
  const Mixture* mixture() const { return mixture_ ? &*mixture_ : nullptr; }

  /// Returns the number of targets that count in sequences [sample, sample + sequences) of the training order.
  int64_t counted(int64_t sample, int64_t sequences) const;
  /// Like the functions of TokenDataset.
  void train_batch(int64_t sample, int64_t sequences, TokenBatch& out) const;
  void prefetch(int64_t sample, int64_t sequences) const;

 private:
  /// The dataset of a sample, and the number of its samples before it.
  struct Place {
    const TokenDataset& dataset;
    int64_t sample;
  };
  Place place_of(int64_t sample) const;

  std::vector<NamedDataset> sources_;
  std::optional<Mixture> mixture_;
  std::vector<const TokenDataset*> by_place_;  // by index in the mixture's names(); null: not open
};

}  // namespace trainer::data
