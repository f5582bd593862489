#include "train/model_runner.h"

#include <algorithm>
#include <utility>

#include "config/layouts.h"
#include "parallel/loss.h"

namespace trainer::train {

ModelRunner::ModelRunner(Unallocated, device::Device& device, comm::World& world, const config::Config& config,
                         int64_t vocab, DType compute, std::optional<sharding::ModelSharding> sharding)
    : device_(device),
      config_(config),
      sharding_(sharding ? std::move(*sharding) : config::sharding_on(config, world.size())),
      micro_batch_(config.train.micro_batch / sharding_.depth()),
      arena_(device),
      mesh_(world, device, parallel::mesh_shape(sharding_)),
      store_(device, compute, &mesh_, /*split_state=*/config.parallel.zero_stage == 1),
      strategy_(mesh_, store_, sharding_, config.debug.overlap) {
  store_.weights().set_gather_ahead(config.debug.overlap && config.parallel.overlap_all_gather);
  model_ = std::make_unique<model::Transformer>(device, store_, strategy_, config.model, vocab, config.train,
                                                static_cast<uint64_t>(config.run.seed));
}

ModelRunner::ModelRunner(device::Device& device, comm::World& world, const config::Config& config, int64_t vocab,
                         DType compute, std::optional<sharding::ModelSharding> sharding)
    : ModelRunner(Unallocated{}, device, world, config, vocab, compute, std::move(sharding)) {
  allocate(params::ParamStore::Gradients::none, 1);
}

void ModelRunner::allocate(params::ParamStore::Gradients gradients, int64_t losses) {
  store_.allocate(gradients);
  const Shape rows{micro_batch_ * config_.model.seq_len};
  ids_ = Buffer(device_, "data", rows, DType::i32);
  targets_ = Buffer(device_, "data", rows, DType::i32);
  weights_ = Buffer(device_, "data", rows, store_.state_dtype());
  losses_ = Buffer(device_, "data", {losses * model_->loss_rows({rows.count()})}, DType::f64);
  if (config_.data.separate_documents) first_key_ = Buffer(device_, "data", rows, DType::i32);
  scalars_.emplace(device_, arena_, meter_, mesh_, model_->loss_axes());
}

void ModelRunner::plan() {
  scalars_->make_communicators();
  const parallel::Batch rows = batch();
  Meter uncounted;
  record(
      eval_key_, [&](Exec& ex) { model_->loss(ex, rows, losses(0)); }, uncounted);
  arena_.seal();
  store_.weights().forget_kept();
  mesh_.world().connect();
}

double ModelRunner::loss_sum(const data::TokenBatch& host) {
  upload(host);
  Exec ex = exec();
  begin(ex, eval_key_);
  model_->loss(ex, batch(), losses(0));
  end();
  return parallel::sum_of_losses(ex, losses(0));
}

void ModelRunner::record(const std::string& program, const std::function<void(Exec&)>& body, Meter& meter) {
  record_gathers(program, body);
  const std::unique_ptr<device::Device> dry = device::make_dry(device_);
  Exec ex{*dry, arena_, meter};
  arena_.record(program, [&] { run_recorded(ex, program, body); });
}

void ModelRunner::record_gathers(const std::string& program, const std::function<void(Exec&)>& body) {
  const std::unique_ptr<device::Device> dry = device::make_dry(device_);
  Arena heap(*dry, Arena::Mode::heap);
  Meter uncounted;
  Exec ex{*dry, heap, uncounted};
  store_.weights().record(program, [&] { body(ex); });
  store_.weights().forget_kept();
}

void ModelRunner::run_recorded(Exec& dry, const std::string& program, const std::function<void(Exec&)>& body) {
  store_.weights().begin(dry, program);
  body(dry);
  store_.weights().end();
}

void ModelRunner::begin(Exec& ex, const std::string& program) {
  arena_.begin(program);
  store_.weights().begin(ex, program);
}

void ModelRunner::end() {
  store_.weights().end();
  arena_.end();
}

BytesByCategory ModelRunner::memory() const {
  BytesByCategory bytes;
  for (const auto& [category, use] : device_.memory()) bytes[category] = use.peak;
  if (state_home_ != nullptr)
    for (const auto& [category, use] : state_home_->memory()) bytes["host_" + category] = use.peak;
  return bytes;
}

parallel::Batch ModelRunner::batch() const {
  return {.ids = ids_,
          .targets = targets_,
          .weights = weights_,
          .first_key = first_key_,
          .sequences = micro_batch_,
          .seq_len = config_.model.seq_len};
}

Tensor ModelRunner::losses(int64_t number) const {
  const int64_t rows = model_->loss_rows({ids_.tensor().count()});
  return losses_.tensor().range(number * rows, rows);
}

void ModelRunner::upload(const data::TokenBatch& host) { upload(host, {ids_, targets_, weights_, first_key_}); }

void ModelRunner::upload(const data::TokenBatch& host, const BatchTensors& to) {
  const auto rows = static_cast<size_t>(to.ids.count());
  TRAINER_CHECK(host.ids.size() == rows, "a batch of {} rows does not fit buffers of {} rows", host.ids.size(), rows);
  const TraceScope copying(device_.kind() == device::DeviceKind::cuda ? meter_.trace : nullptr, "batch to the GPU", -1,
                           Span::Kind::host_link);
  device_.copy_to_device(to.ids.data, host.ids.data(), to.ids.bytes());
  device_.copy_to_device(to.targets.data, host.targets.data(), to.targets.bytes());
  if (to.first_key) {
    fill_first_keys(host, first_keys_);
    device_.copy_to_device(to.first_key.data, first_keys_.data(), to.first_key.bytes());
  }
  if (to.weights.dtype == DType::f64) {  // CPUs only
    std::copy(host.weights.begin(), host.weights.end(), to.weights.as<double>());
  } else {
    device_.copy_to_device(to.weights.data, host.weights.data(), to.weights.bytes());
  }
}

}  // namespace trainer::train
