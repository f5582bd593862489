#pragma once
// Trainer: the model, its optimizer state and the step. Built on a dry device it is the plan of a run: the same code
// counts memory and FLOPs without computing.
#include <functional>
#include <memory>
#include <string>

#include "config/config.h"
#include "data/dataset.h"
#include "model/transformer.h"
#include "optim/adamw.h"
#include "params/grad_sink.h"
#include "train/step_report.h"

namespace trainer::train {

/// What varies by step, decided once at its top.
struct StepWork {
  int64_t step = 0;          // 1-based
  int64_t first_sample = 0;  // samples seen before it
  int64_t adam_step = 0;     // number of this update, 1-based (skipped steps do not count)
  int64_t micro_batches = 0;
  double lr = 0;
};

/// Fills sequences [first_sample, first_sample + sequences) of the training order into `out`.
using BatchSource = std::function<void(int64_t first_sample, int64_t sequences, data::TokenBatch& out)>;

class Trainer {
 public:
  /// `config` resolved. `training` false: weights only, for evaluation and generation.
  Trainer(device::Device& device, const config::Config& config, int64_t vocab, DType compute, bool training);

  /// Records the programs of training and evaluation and takes the memory; before the first step.
  void plan();

  /// One optimizer step over micro_batches · micro_batch sequences. A non-finite gradient skips the update. Returns
  /// early with `interrupted` when `stop` says so between micro-steps (the partial step is discarded).
  struct Outcome {
    double loss = 0;  // mean over the step's unmasked tokens
    params::GradNorm norm;
    bool skipped = false;  // loss or gradient not finite: no update was made
    bool interrupted = false;
    PhaseMs phase_ms;
  };
  Outcome step(const StepWork& work, const BatchSource& batches, bool (*stop)() = nullptr);

  /// Σ loss over the rows of one evaluation group (masked rows count 0), dropout off.
  double loss_sum(const data::TokenBatch& batch);

  model::Transformer& model() { return *model_; }
  params::ParamStore& store() { return store_; }
  Exec exec() { return {device_, arena_, meter_}; }
  Meter& meter() { return meter_; }
  Arena& arena() { return arena_; }
  device::Device& device() { return device_; }
  const config::Config& config() const { return config_; }
  int64_t vocab() const { return model_->vocab(); }
  int64_t micro_batch() const { return config_.train.micro_batch; }

  /// Memory the run will hold, by category, in bytes; activations are the largest program.
  BytesByCategory memory() const;

 private:
  parallel::Batch upload(const data::TokenBatch& batch);
  parallel::Batch views() const;

  device::Device& device_;
  config::Config config_;
  Meter meter_;
  Arena arena_;
  params::ParamStore store_;
  std::unique_ptr<parallel::Strategy> strategy_;
  std::unique_ptr<model::Transformer> model_;
  std::unique_ptr<model::Transformer::Saved> saved_;
  std::unique_ptr<params::GradSink> grads_;
  std::unique_ptr<optim::AdamW> optimizer_;
  Buffer ids_, targets_, weights_;
  data::TokenBatch host_;
  const std::string train_key_ = "train", eval_key_ = "evaluate";
};

}  // namespace trainer::train
