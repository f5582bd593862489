#include "bench/random_steps.h"

#include <map>
#include <memory>

#include "base/philox.h"
#include "config/load.h"

namespace trainer::bench {
namespace {

constexpr const char* kSmallModel = R"(
[model]
n_layer = 2
seq_len = 256
[data]
vocab_size = 2048
[train]
steps = 1
micro_batch = 2
global_batch = 4
)";

}  // namespace

train::BatchSource random_batches(const config::Config& config) {
  const PhiloxKey key = philox_key(static_cast<uint64_t>(config.run.seed), "bench");
  const int64_t length = config.model.seq_len, vocab = config.data.vocab_size, samples = config.train.global_batch;
  const auto drawn = std::make_shared<std::map<int64_t, data::TokenBatch>>();
  return [=](int64_t sample, int64_t sequences, data::TokenBatch& out) {
    data::TokenBatch& batch = (*drawn)[sample % samples];
    if (batch.ids.empty()) {
      batch.resize(sequences, length);
      for (size_t r = 0; r < batch.ids.size(); ++r) {
        const auto index = static_cast<uint64_t>(sample % samples * length) + r;
        batch.ids[r] = static_cast<int32_t>(philox_at(key, index) % static_cast<uint64_t>(vocab));
        batch.targets[r] = static_cast<int32_t>(philox_at(key, index + 1) % static_cast<uint64_t>(vocab));
      }
    }
    out = batch;
  };
}

train::StepWork work_of(const config::Config& config, int64_t step) {
  train::StepWork work;
  work.step = work.adam_step = step;
  work.first_sample = (step - 1) * config.train.global_batch;
  work.micro_batches = config.train.global_batch / config.train.micro_batch;
  work.lr = 1e-4;
  return work;
}

SmallModel::SmallModel(device::Device& device, DType compute, const std::vector<std::string>& shape)
    : config_(config::load_text(kSmallModel, "", shape, {.files = false})),
      random_(random_batches(config_)),
      trainer_(device, *solo_, config_, config_.data.vocab_size, compute, true) {
  trainer_.plan();
  trainer_.store().initialize(1);
}

}  // namespace trainer::bench
