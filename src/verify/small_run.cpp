#include "verify/small_run.h"

#include <cmath>

#include "base/checksum.h"
#include "base/philox.h"
#include "base/units.h"
#include "run/schedule.h"
#include "tensor/host_copy.h"
#include "verify/compare.h"

namespace trainer::verify {

Small in_type(Small small, DType compute) {
  if (compute == DType::bf16) return small;
  config::Config& c = small.config;
  c.precision.compute = compute == DType::f64 ? config::Compute::fp64 : config::Compute::fp32;
  c.optim.moments = config::Moments::fp32;
  c.offload.grad_transport = config::GradTransport::fp32;
  c.muon.compute = config::Compute::automatic;
  return small;
}

SmallRun::SmallRun(comm::World& world, std::unique_ptr<device::Device> device, const comm::GpuTransport& between_gpus,
                   const Small& small, DType compute)
    : world_(world), device_(std::move(device)), vocab_(small.vocab), compute_(compute) {
  if (device_->kind() == device::DeviceKind::cuda) carrier_ = comm::gpu_world(world, *device_, between_gpus);
  trainer_ =
      std::make_unique<train::Trainer>(*device_, carrier_ ? *carrier_ : world, small.config, small.vocab, compute);
  trainer_->plan();
  trainer_->store().initialize(static_cast<uint64_t>(small.config.run.seed));
  trainer_->meter().reset();
  if (!small.given_choices || trainer_->routing() == nullptr) return;
  const config::Model& m = small.config.model;
  const int64_t rows = trainer_->micro_batch() * m.seq_len;
  const std::vector<int32_t> natural = given_choices(m, trainer_->replica() * rows, rows);
  const std::vector<int32_t>& order = trainer_->row_order().rows();
  const auto chosen = static_cast<size_t>(m.experts_per_token), all = static_cast<size_t>(rows);
  std::vector<int32_t> choices = natural;
  for (size_t i = 0; i < (order.empty() ? 0 : choices.size()); ++i) {
    const size_t row = i / chosen;
    choices[i] = natural[(row / all * all + static_cast<size_t>(order[row % all])) * chosen + i % chosen];
  }
  choices_ = Buffer(*device_, "verify", {moe_layers(m) * rows, m.experts_per_token}, DType::i32);
  device_->copy_to_device(choices_.tensor().data, choices.data(), choices_.tensor().bytes());
  trainer_->routing()->choices = choices_;
}

std::vector<int32_t> given_choices(const config::Model& model, int64_t first, int64_t rows) {
  const PhiloxKey key = philox_key(1, "verify.choices");
  std::vector<int32_t> choices;
  for (int64_t layer = 0; layer < moe_layers(model); ++layer)
    for (int64_t row = first; row < first + rows; ++row) {
      const Philox4 draws = philox_block(key, static_cast<uint64_t>(row), static_cast<uint32_t>(layer));
      const int64_t expert = static_cast<int64_t>(std::min(draws[0], draws[1])) * model.n_expert >> 32;
      for (int64_t j = 0; j < model.experts_per_token; ++j)
        choices.push_back(static_cast<int32_t>((expert + j) % model.n_expert));
    }
  return choices;
}

namespace {

constexpr uint32_t kPerMask = 4;  // tokens, on average

bool is_masked(const config::Config& c, uint64_t token) {
  return philox_at(philox_key(static_cast<uint64_t>(c.run.seed), "verify.masks"), token) % kPerMask == 0;
}

}  // namespace

void SmallRun::batch(int64_t sample, int64_t sequences, bool masks, data::TokenBatch& out) const {
  const config::Config& c = trainer_->config();
  const int64_t length = c.model.seq_len;
  out.resize(sequences, length);
  const PhiloxKey tokens = philox_key(static_cast<uint64_t>(c.run.seed), "verify.tokens");
  const PhiloxKey documents = philox_key(static_cast<uint64_t>(c.run.seed), "verify.documents");
  const auto token = [&](uint64_t at) {
    return static_cast<int32_t>(philox_at(tokens, at) % static_cast<uint32_t>(vocab_));
  };
  for (size_t r = 0; r < out.ids.size(); ++r) {
    const uint64_t at = static_cast<uint64_t>(sample * length) + r;
    out.ids[r] = token(at);
    out.targets[r] = token(at + 1);
    if (masks && is_masked(c, at)) out.weights[r] = 0;
    constexpr uint32_t kPerDocument = 8;  // tokens, on average
    if (c.data.separates() && philox_at(documents, at) % kPerDocument == 0)
      out.starts.push_back(static_cast<int64_t>(r));
  }
}

train::Trainer::Outcome SmallRun::step(int64_t n, const std::function<void()>& between) {
  const config::Config& c = trainer_->config();
  train::StepWork work{.step = n,
                       .first_sample = (n - 1) * c.train.global_batch,
                       .adam_step = n,
                       .micro_batches = trainer_->accumulation(),
                       .lr = run::learning_rate(c.optim, 10 * kSteps, n)};
  const bool masks = n % 2 == 0;
  const auto first = static_cast<uint64_t>(work.first_sample * c.model.seq_len),
             tokens = static_cast<uint64_t>(c.train.global_batch * c.model.seq_len);
  for (uint64_t at = first; masks && at < first + tokens; ++at) work.unmasked_tokens += is_masked(c, at) ? 0 : 1;
  train::Trainer::Outcome outcome =
      trainer_->gradients(work, [&](int64_t sample, int64_t sequences, data::TokenBatch& out) {
        for (int64_t i = 0; i < sequences; ++i) samples_.push_back(sample + i);
        batch(sample, sequences, masks, out);
      });
  world_.control().run_on_all_ranks([&] {
    const params::GradNorm& norm = outcome.norm;
    if (norm.is_finite() && std::isfinite(norm.norm) && std::isfinite(outcome.loss + outcome.z_loss)) return;
    throw Error(Code::nonfinite,
                format("step {}, {}, {}: the loss is {:g}, the z-loss {:g}, the gradient norm {:g}{}{}", n,
                       name_of(compute_), counted(world_.size(), "rank"), outcome.loss, outcome.z_loss, norm.norm,
                       norm.bad_tensor.empty() ? "" : ", first in ", norm.bad_tensor));
  });
  if (between) between();
  trainer_->update(work, outcome);
  return outcome;
}

std::string SmallRun::written_padding(Padding of) {
  const params::ParamStore& store = trainer_->store();
  if (of == Padding::weights) store.settle();  // would discard a step that is not updated yet
  for (const params::Group& group : store.groups()) {
    std::vector<bool> used(static_cast<size_t>(group.elements));
    for (const int index : group.params)
      for (const mesh::Run& run : store.params()[static_cast<size_t>(index)].runs)
        for (int64_t i = 0; i < run.length; ++i) used[static_cast<size_t>(run.local + i * run.stride)] = true;
    const auto written = [&](const Tensor& tensor, device::Device& device, int64_t begin) {
      const HostCopy copy(device, tensor);
      for (int64_t i = 0; i < tensor.count(); ++i)
        if (!used[static_cast<size_t>(begin + i)] && element_of(copy.tensor(), i) != 0) return true;
      return false;
    };
    if (of == Padding::gradients ? written(group.grad, *device_, 0)
                                 : written(group.master.tensor(), store.home(), group.master_range().begin))
      return format("a {} in {}", of == Padding::gradients ? "gradient" : "weight", group.name);
  }
  return {};
}

void SmallRun::plant(const config::Fault& fault) {
  params::ParamStore& store = trainer_->store();
  const bool weight = fault.kind == config::Fault::Kind::weight, here = fault.rank == trainer_->mesh().rank();
  bool planted = !here;
  if (weight) {
    store.settle();
    store.forget();
  }
  for (const params::Param& param : store.params())
    for (const mesh::Run& run : param.runs) {
      if (!here || param.name != fault.tensor || fault.at < run.global || fault.at >= run.global + run.length) continue;
      const params::Group& group = store.groups()[static_cast<size_t>(param.group)];
      const comm::Chunk range{run.local + (fault.at - run.global) * run.stride, 1};
      const comm::Chunk held = weight ? group.master_range() : group.held;
      if (params::overlap(held, range).count == 0) continue;
      HostCopy element(weight ? store.home() : *device_,
                       weight ? group.master_of(range) : group.grad.range(range.begin, range.count));
      const int64_t bit = fault.bit % (8 * element.tensor().bytes());
      element.tensor().data[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      element.put();
      planted = true;
    }
  if (!planted)
    throw Error(Code::usage, format("debug.inject: rank {} does not hold element {} of {} in the small model",
                                    fault.rank, fault.at, fault.tensor));
  if (weight) store.refresh_compute();
}

void SmallRun::plant(const std::vector<config::Fault>& faults, config::Fault::Kind kind, int64_t rank) {
  for (config::Fault fault : faults) {
    if (fault.kind != kind || (rank >= 0 && fault.rank != rank)) continue;
    if (rank >= 0) fault.rank = 0;
    plant(fault);
  }
}

uint64_t SmallRun::fingerprint() {
  const params::ParamStore& store = trainer_->store();
  store.settle();
  uint64_t hash = 0;
  const auto add = [&](const Tensor& tensor) {
    const HostCopy copy(store.home(), tensor);
    const uint64_t both[] = {hash, hash64({copy.tensor().data, static_cast<size_t>(copy.tensor().bytes())})};
    hash = hash64(std::as_bytes(std::span(both)));
  };
  for (const params::Group& group : store.groups()) {
    if (group.master.tensor().count() > 0) add(group.master.tensor());
    for (const params::State& state : group.states)
      if (state.memory.tensor().count() > 0) add(state.memory.tensor());
  }
  return hash;
}

}  // namespace trainer::verify
