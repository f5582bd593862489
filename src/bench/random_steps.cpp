#include "bench/random_steps.h"

#include <map>
#include <memory>

#include "base/error.h"
#include "base/philox.h"
#include "config/load.h"
#include "data/file_list.h"
#include "data/file_parts.h"
#include "data/source.h"

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

/// Returns a source that repeats the samples of the first step, which `draw` gives once.
train::BatchSource repeated(const config::Config& config, train::BatchSource draw) {
  const auto drawn = std::make_shared<std::map<int64_t, data::TokenBatch>>();
  return [drawn, draw = std::move(draw), samples = config.train.global_batch](int64_t sample, int64_t sequences,
                                                                              data::TokenBatch& out) {
    data::TokenBatch& batch = (*drawn)[sample % samples];
    if (batch.ids.empty()) draw(sample % samples, sequences, batch);
    out = batch;
  };
}

}  // namespace

train::BatchSource random_batches(const config::Config& config) {
  const PhiloxKey key = philox_key(static_cast<uint64_t>(config.run.seed), "bench");
  const int64_t length = config.model.seq_len, vocab = config.data.vocab_size;
  return repeated(config, [=](int64_t sample, int64_t sequences, data::TokenBatch& batch) {
    batch.resize(sequences, length);
    for (size_t r = 0; r < batch.ids.size(); ++r) {
      const auto index = static_cast<uint64_t>(sample * length) + r;
      batch.ids[r] = static_cast<int32_t>(philox_at(key, index) % static_cast<uint64_t>(vocab));
      batch.targets[r] = static_cast<int32_t>(philox_at(key, index + 1) % static_cast<uint64_t>(vocab));
    }
  });
}

train::BatchSource file_batches(const config::Config& config, const std::vector<std::string>& files, int threads) {
  if (!data::all_token_files(data::expand_files(files), config.data.format))
    throw Error(Code::usage, format("--data {}: turn text into tokens first, with `trainer tokenize`", files.front()));
  const data::EvalData opened =
      data::open_eval_data(config, files, nullptr, config.data.vocab_size, {.threads = threads});
  return repeated(config,
                  [set = opened.sets.front().dataset](int64_t sample, int64_t sequences, data::TokenBatch& batch) {
                    set.train_batch(sample, sequences, batch);
                  });
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
      trainer_(device, *solo_, config_, config_.data.vocab_size, compute) {
  trainer_.plan();
  trainer_.store().initialize(1);
}

}  // namespace trainer::bench
