#pragma once
// Training steps on random tokens, or on those of token files.
#include <memory>
#include <string>
#include <vector>

#include "comm/world.h"
#include "config/config.h"
#include "train/trainer.h"

namespace trainer::bench {

/// Returns a source of random tokens; the target of each is the next one. All steps use the same tokens, which are
/// drawn at first use, so that only the first step includes the time to draw them.
train::BatchSource random_batches(const config::Config& config);

/// The same with the first samples that a run on these files of tokens would train on: tokens with the frequencies of
/// text. Throws Code::usage for text, Code::data for tokens outside the vocabulary.
train::BatchSource file_batches(const config::Config& config, const std::vector<std::string>& files, int threads);

/// Returns the work of a step. Steps count from 1.
train::StepWork work_of(const config::Config& config, int64_t step);

/// SmallModel trains on this rank only, independently of the other ranks: two layers, 4 sequences of 256 tokens per
/// step, in two micro-steps.
class SmallModel {
 public:
  /// `shape`: configuration keys with values, such as "model.d_model=512".
  SmallModel(device::Device& device, DType compute, const std::vector<std::string>& shape);
  void step() { trainer_.step(work_of(config_, ++steps_), random_); }
  Meter& meter() { return trainer_.meter(); }

 private:
  const config::Config config_;
  const std::unique_ptr<comm::World> solo_ = comm::solo_world();
  const train::BatchSource random_;
  train::Trainer trainer_;
  int64_t steps_ = 0;
};

}  // namespace trainer::bench
