#include "config/resolve.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/files.h"
#include "base/shape.h"
#include "config/families.h"
#include "config/keys.h"
#include "config/layouts.h"

namespace trainer::config {
namespace {

constexpr int64_t kDefaultSteps = 1000;
constexpr double kDefaultValFraction = 0.05;
constexpr int64_t kWarmupShare = 20, kLongestDefaultWarmup = 2000;

/// Replaces "{name}" in `path`.
void put_name(const std::string& name, std::string& path) {
  constexpr std::string_view kPlace = "{name}";
  for (size_t at = path.find(kPlace); at != std::string::npos; at = path.find(kPlace, at + name.size()))
    path.replace(at, kPlace.size(), name);
}

/// Calls fn for every path of a configuration.
template <typename F>
void each_path(Config& config, F fn) {
  for (std::string* path : {&config.run.dir, &config.model.init_from, &config.data.tokenizer, &config.checkpoint.dir,
                            &config.checkpoint.resume, &config.hardware.gemm_tuning, &config.hardware.profile})
    fn(*path);
  for (std::vector<std::string>* paths : file_lists(config.data))
    for (std::string& path : *paths) fn(path);
}

void resolve_run(Config& config) {
  Run& run = config.run;
  if (run.name.empty()) run.name = std::filesystem::path(config.path).stem().string();
  if (run.name.empty()) run.name = "run";
  each_path(config, [&](std::string& path) { put_name(run.name, path); });
}

void resolve_model(Model& model) {
  set_family(model, model.arch);
  if (model.n_kv_head == 0) model.n_kv_head = model.n_head;
  if (model.d_ff == 0 && model.n_expert == 0)
    model.d_ff = has_gated_mlp(model) ? round_up(divide_up(8 * model.d_model, 3), 64) : 4 * model.d_model;
  if (!model.tie_embeddings) model.tie_embeddings = model.family.tied;
  if (!model.bias) model.bias = model.family.bias;
  if (model.norm_eps == 0) model.norm_eps = model.family.norm_eps;
  if (model.rope_theta == 0) model.rope_theta = model.family.rope_theta;
  if (model.window < 0) model.window = model.family.window;
  const double base = model.family.window_rope_theta,
               unscaled = model.rope_type == RopeType::plain ? 0 : model.rope_theta;
  if (model.window_rope_theta < 0)
    model.window_rope_theta = model.window == 0 ? 0 : base == kUnscaledBase ? unscaled : base;
  if (model.window_full_every < 0) model.window_full_every = model.window > 0 ? model.family.window_full_every : 0;
}

/// True if the windows of some set are packed.
bool packs_any(const Data& data) {
  bool some = is_packed(data);
  for (const auto* sets : {&data.source, &data.validation})
    for (const FileSet& set : *sets) some |= is_packed(data_of(data, set));
  return some;
}

}  // namespace

int64_t total_steps(const Config& config) { return total_steps(config, 0, 0); }

int64_t total_steps(const Config& config, int64_t step, int64_t tokens_seen) {
  const Train& train = config.train;
  if (train.steps > 0) return train.steps;
  const int64_t left = std::max<int64_t>(0, train.tokens - tokens_seen);
  return step + divide_up(left, std::max<int64_t>(1, train.global_batch * config.model.seq_len));
}

void resolve(Config& config) {
  each_path(config, [](std::string& path) { path = expand_home(path); });
  resolve_run(config);
  resolve_model(config.model);
  if (config.data.val_fraction < 0)
    config.data.val_fraction = config.data.val.empty() && config.data.validation.empty() ? kDefaultValFraction : 0;
  if (!config.data.separate_documents) config.data.separate_documents = packs_any(config.data);
  if (config.train.steps == 0 && config.train.tokens == 0) config.train.steps = kDefaultSteps;
  if (!config.log.jsonl && !config.origins.contains("log.report")) config.log.report = false;
  config.model.init_hidden = std::sqrt(width_ratio(config));
  config.model.init_head = width_ratio(config);
  constexpr double kDefaultBalanceLoss = 0.01;
  if (config.model.n_expert > 0 && config.train.balance_loss < 0) config.train.balance_loss = kDefaultBalanceLoss;
  if (config.train.task_interval < 0) config.train.task_interval = config.train.eval_interval;
  Optim& optim = config.optim;
  if (optim.min_lr < 0) optim.min_lr = optim.lr / 10;
  if (optim.name == OptimizerName::muon && config.muon.weight_decay < 0) config.muon.weight_decay = optim.weight_decay;
  if (optim.warmup_steps < 0) optim.warmup_steps = std::min(kLongestDefaultWarmup, total_steps(config) / kWarmupShare);
}

std::filesystem::path checkpoint_folder(const Config& config) {
  return config.checkpoint.dir.empty() ? std::filesystem::path(config.run.dir) / "checkpoints"
                                       : std::filesystem::path(config.checkpoint.dir);
}

std::vector<std::vector<std::string>*> file_lists(Data& data) {
  std::vector<std::vector<std::string>*> lists = {&data.train, &data.val};
  for (auto* sets : {&data.source, &data.validation})
    for (FileSet& set : *sets) lists.push_back(&set.files);
  for (Task& task : data.task) lists.push_back(&task.files);
  return lists;
}

Data data_of(const Data& data, const FileSet& set) {
  Data own = data;
  own.train = set.files;
  own.format = set.format.value_or(data.format);
  own.document = set.document.value_or(data.document);
  own.strict = set.strict.value_or(data.strict);
  own.packing = set.packing.value_or(data.packing);
  if (!set.text_key.empty()) own.text_key = set.text_key;
  return own;
}

bool is_packed(const Data& data) {
  return data.packing == Windows::best_fit || (data.packing == Windows::automatic && data.document == Document::chat);
}

bool has_conversations(const Data& data) {
  const auto chat = [&](const FileSet& set) { return data_of(data, set).document == Document::chat; };
  return data.source.empty() ? data.document == Document::chat : std::ranges::any_of(data.source, chat);
}

std::vector<std::string> validation_names(const Data& data) {
  std::vector<std::string> names;
  const bool tails = data.validation.empty() && data.val.empty() && data.val_fraction > 0;
  for (const FileSet& set : tails ? data.source : data.validation) names.push_back(set.name);
  return names;
}

size_t followed_set(const Config& config) {
  const std::vector<std::string> names = validation_names(config.data);
  const auto found = std::ranges::find(names, config.checkpoint.best);
  return found == names.end() ? 0 : static_cast<size_t>(found - names.begin());
}

int64_t fewest_ranks(const Config& config) {
  return ranks_of_replica(config) * std::max<int64_t>(1, config.parallel.data);
}

int64_t world_size(const Config& config, int64_t launched) {
  return launched > 1 || config.parallel.transport != Transport::threads ? launched : fewest_ranks(config);
}

std::optional<DType> type_of(Compute compute) {
  switch (compute) {
    case Compute::bf16:
      return DType::bf16;
    case Compute::fp32:
      return DType::f32;
    case Compute::fp64:
      return DType::f64;
    case Compute::automatic:
      break;
  }
  return std::nullopt;
}

void resolve_shards(Config& config, int64_t world) {
  const Key& key = *find_key("parallel", "shards");
  if (!key.belongs(config.parallel.strategy) || config.parallel.shards > 0) return;
  config.parallel.shards =
      std::max(config.parallel.context, world / config.parallel.stages / std::max<int64_t>(1, config.parallel.data));
}

void resolve_world(Config& config, int64_t world) {
  if (config.parallel.data == 0) config.parallel.data = world / ranks_of_replica(config);
}

int64_t final_decay(const Optim& optim, int64_t steps) {
  if (optim.decay_steps > 0) return optim.decay_steps;
  return static_cast<int64_t>(std::round(optim.decay_fraction * static_cast<double>(steps)));
}

}  // namespace trainer::config
