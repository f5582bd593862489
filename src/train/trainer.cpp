#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace trainer::train {
namespace {

/// Adds the time since the last call to a phase.
class PhaseClock {
 public:
  void charge(double& phase_ms) {
    const double now = now_seconds();
    phase_ms += (now - last_) * 1e3;
    last_ = now;
  }

 private:
  double last_ = now_seconds();
};

}  // namespace

Trainer::Trainer(device::Device& device, const config::Config& config, int64_t vocab, DType compute, bool training)
    : device_(device), config_(config), arena_(device), store_(device, compute) {
  strategy_ = parallel::make_strategy(config.parallel, /*world=*/1, store_);
  model_ = std::make_unique<model::Transformer>(device, store_, *strategy_, config.model, vocab, config.train.recompute,
                                                static_cast<uint64_t>(config.run.seed));
  store_.allocate(training);
  const Shape rows{config.train.micro_batch * config.model.seq_len};
  ids_ = Buffer(device, "data", rows, DType::i32);
  targets_ = Buffer(device, "data", rows, DType::i32);
  weights_ = Buffer(device, "data", rows, store_.state_dtype());
  if (!training) return;
  saved_ = std::make_unique<model::Transformer::Saved>(*model_);
  grads_ = std::make_unique<params::GradSink>(store_);
  optimizer_ = std::make_unique<optim::AdamW>(store_);
}

Trainer::Outcome Trainer::step(const StepWork& work, const BatchSource& batches, bool (*stop)()) {
  Outcome outcome;
  Exec ex = exec();
  PhaseClock clock;
  const int64_t tokens = work.micro_batches * micro_batch() * config_.model.seq_len;
  double loss = 0;
  grads_->begin_step();
  for (int64_t micro = 0; micro < work.micro_batches; ++micro) {
    if (stop != nullptr && stop()) {
      outcome.interrupted = true;
      return outcome;
    }
    arena_.begin(train_key_);
    batches(work.first_sample + micro * micro_batch(), micro_batch(), host_);
    parallel::Batch batch = upload(host_);
    batch.first_sample = micro * micro_batch();
    batch.step = static_cast<uint32_t>(work.step);
    batch.loss_scale = 1.0 / static_cast<double>(tokens);
    batch.dropout = true;
    clock.charge(outcome.phase_ms.data);
    model_->forward(ex, batch, *saved_);
    clock.charge(outcome.phase_ms.forward);
    loss += model_->backward(ex, batch, *saved_, *grads_);
    clock.charge(outcome.phase_ms.backward);
    arena_.end();
  }
  outcome.loss = loss / static_cast<double>(tokens);
  outcome.norm = grads_->finish(ex);
  outcome.skipped = !outcome.norm.finite() || !std::isfinite(outcome.loss);
  if (!outcome.skipped)
    optimizer_->step(ex, store_, config_.optim, work.lr, work.adam_step, outcome.norm.clip(config_.optim.grad_clip));
  clock.charge(outcome.phase_ms.optimizer);
  return outcome;
}

double Trainer::loss_sum(const data::TokenBatch& host) {
  Exec ex = exec();
  arena_.begin(eval_key_);
  const double sum = model_->loss(ex, upload(host));
  arena_.end();
  return sum;
}

void Trainer::plan() {
  device::DryDevice dry(device_.threads(), device_.isa());
  Exec ex{dry, arena_, meter_};
  parallel::Batch batch = views();
  batch.dropout = true;
  if (saved_ != nullptr)
    arena_.record(train_key_, [&] {
      model_->forward(ex, batch, *saved_);
      model_->backward(ex, batch, *saved_, *grads_);
    });
  const Meter train_costs = meter_;
  batch.dropout = false;
  arena_.record(eval_key_, [&] { model_->loss(ex, batch); });
  if (grads_ != nullptr) grads_->prepare(device_);
  meter_ = train_costs;
  arena_.seal();
}

BytesByCategory Trainer::memory() const {
  BytesByCategory bytes;
  for (const auto& [category, use] : device_.memory()) bytes[category] = use.peak;
  return bytes;
}

parallel::Batch Trainer::views() const {
  return {.ids = ids_,
          .targets = targets_,
          .weights = weights_,
          .sequences = config_.train.micro_batch,
          .seq_len = config_.model.seq_len};
}

parallel::Batch Trainer::upload(const data::TokenBatch& host) {
  const auto rows = static_cast<size_t>(ids_.tensor().count());
  TRAINER_CHECK(host.ids.size() == rows, "a batch of {} rows for buffers of {}", host.ids.size(), rows);
  std::memcpy(ids_.tensor().data, host.ids.data(), rows * sizeof(int32_t));
  std::memcpy(targets_.tensor().data, host.targets.data(), rows * sizeof(int32_t));
  if (weights_.tensor().dtype == DType::f64) {
    std::copy(host.weights.begin(), host.weights.end(), weights_.tensor().as<double>());
  } else {
    std::copy(host.weights.begin(), host.weights.end(), weights_.tensor().as<float>());
  }
  return views();
}

}  // namespace trainer::train
