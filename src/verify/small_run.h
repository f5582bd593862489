#pragma once
// SmallRun: a trainer of this rank on tokens from a counter, ready to step.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/gpu_transport.h"
#include "config/faults.h"
#include "setup/machine.h"
#include "tensor/buffer.h"
#include "train/trainer.h"
#include "verify/shrink.h"

namespace trainer::verify {

/// The steps of the longest run; its learning rate warms up for two of them.
inline constexpr int64_t kSteps = 3;

/// Returns choices of experts [layers, rows, k] that depend only on the place of a row in the micro-batches of all
/// replicas together, from `first` on. Their loads are uneven: the first experts have most rows.
std::vector<int32_t> given_choices(const config::Model& model, int64_t first, int64_t rows);

class SmallRun {
 public:
  /// One rank of `world`, computing in `compute` on `device`, with initial weights. `between_gpus` must be chosen for
  /// the world if the device is a GPU. Collective.
  SmallRun(comm::World& world, std::unique_ptr<device::Device> device, const comm::GpuTransport& between_gpus,
           const Small& small, DType compute);

  /// Makes step `n`, from 1 on, and calls `between` before the update, when gradients can be read: Muon overwrites
  /// them. Some tokens of even steps are masked. All ranks of the run's world throw Code::nonfinite if one computed a
  /// loss or gradients that are not finite. Collective.
  train::Trainer::Outcome step(int64_t n, const std::function<void()>& between = {});
  enum class Padding { gradients, weights };
  /// Returns which padding of this rank's gradients (before the update) or weights (after it) is not 0; empty if all of
  /// it is.
  std::string written_padding(Padding of);
  /// Flips a bit of a gradient or of a weight if it is on this rank; collective if it is a weight.
  void plant(const config::Fault& fault);
  /// Plants the faults of this kind. `rank`: the only one whose faults are planted, by a run on its own; negative: all.
  void plant(const std::vector<config::Fault>& faults, config::Fault::Kind kind, int64_t rank = -1);
  /// Returns a hash of all master weights and states of this rank.
  uint64_t fingerprint();

  train::Trainer& trainer() { return *trainer_; }
  device::Device& device() { return *device_; }
  /// Returns the samples that this rank's replica drew, in order.
  const std::vector<int64_t>& samples() const { return samples_; }

 private:
  /// Copies sequences of the training order. `masks`: masks some of their tokens.
  void batch(int64_t sample, int64_t sequences, bool masks, data::TokenBatch& out) const;
  comm::World& world_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<comm::World> carrier_;  // transfers tensors between GPUs; null: the world does
  std::unique_ptr<train::Trainer> trainer_;
  Buffer choices_;  // Small::given_choices
  int64_t vocab_;
  DType compute_;
  std::vector<int64_t> samples_;
};

/// Returns `small` for a run that computes in `compute`: in f64 nothing is rounded to a smaller type.
Small in_type(Small small, DType compute);

}  // namespace trainer::verify
