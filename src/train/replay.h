#pragma once
// Replays (debug.replay_every): replicas hold the same weights, and compute the same operations on the same samples
// with equal hardware. So if a replica computes the micro-batch of a different one, losses and gradients agree in every
// bit, or a machine computes wrong results.
#include <string>
#include <vector>

#include "train/trainer.h"

namespace trainer::train {

class Replay {
 public:
  /// `hardware`: what this rank computes with. Collective.
  Replay(Trainer& trainer, const std::string& hardware);

  /// Returns why replicas cannot be compared: ranks with the same part of the model compute with different hardware.
  /// Empty if they can. The same on all ranks.
  const std::string& obstacle() const { return obstacle_; }

  /// Before a step, each replica computes its own and the next replica's first micro-batch; a single replica computes
  /// its own twice. Returns an empty string if the results agree. If not, all replicas compute a batch on which two
  /// disagree; the text says what differs, and which ranks and hosts the majority suspects. The same on all ranks.
  /// Collective.
  std::string check(const StepWork& work, const BatchSource& batches);

 private:
  /// The results for one batch, of one rank and one term of the loss or parameter.
  struct Result {
    int64_t replica = 0, rank = 0, group = 0;
    std::string name;
    uint64_t first = 0, again = 0;
    bool suspect = false;
  };
  /// Returns the results of all ranks, sorted by their group, those that backward passes compute first first; then
  /// those of the same quantity on ranks with the same part of the model are adjacent. `first` and `again` are as
  /// Trainer::replay() returns them. Collective.
  std::vector<Result> gather(const std::vector<uint64_t>& first, const std::vector<uint64_t>& again);
  /// Returns what is wrong in results for the batch of a replica.
  std::string judge(std::vector<Result> results, int64_t batch) const;

  int64_t replica_of(int64_t rank) const;
  int64_t part_of(int64_t rank) const;  // the ranks with an equal part of the model have the same

  Trainer& trainer_;
  std::vector<std::string> hosts_;  // by rank
  std::string obstacle_;
};

}  // namespace trainer::train
