#include "config/stages.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "config/flops.h"
#include "config/keys.h"
#include "sharding/pipeline.h"

namespace trainer::config {

using sharding::PipelineSchedule;

void check_stages(const Config& config, std::vector<BrokenRule>& broken) {
  const Parallel& p = config.parallel;
  const int64_t layers = config.model.n_layer, chunks = p.stages * p.chunks, most = layers + 2;
  if (p.stages == 1 && p.chunks > 1)
    broken.push_back({{"parallel.chunks", "parallel.stages"},
                      format("chunks = {} needs several stages; use chunks = 1, or set stages", p.chunks)});
  if (p.pipeline_schedule == PipelineSchedule::zb_h1 && (p.stages == 1 || p.chunks > 1))
    broken.push_back({{"parallel.pipeline_schedule", "parallel.stages", "parallel.chunks"},
                      format("pipeline_schedule = \"zb-h1\" needs several stages of one chunk each, found stages = {} "
                             "and chunks = {}; use \"1f1b\"",
                             p.stages, p.chunks)});
  if (p.stages > 1 && chunks > most) {
    const std::string remedy = most / p.chunks >= 2 ? format("stages <= {}", most / p.chunks)
                                                    : format("chunks <= {}", most / std::min(p.stages, most));
    broken.push_back({{"parallel.stages", "parallel.chunks", "model.n_layer"},
                      format("stages = {} with chunks = {}: {} layers allow at most {} chunks (the first may have only "
                             "the embedding, the last only the head); use {}",
                             p.stages, p.chunks, layers, most, remedy)});
  }
  if (p.stages > 1 && p.strategy == StrategyName::autoddl && p.axes.size() > 5)  // a mesh has at most 8 axes
    broken.push_back({{"parallel.axes", "parallel.stages"},
                      format("axes has {} axis sizes, at most 5 with several stages", p.axes.size())});
  const std::vector<int64_t>& split = p.stage_layers;
  const auto wrong = [&](const std::string& text) {
    broken.push_back({{"parallel.stage_layers", "parallel.stages", "parallel.chunks", "model.n_layer"},
                      text + "; use [] to have them chosen"});
  };
  if (split.empty()) return;
  if (std::ssize(split) != chunks)
    return wrong(format("stage_layers has {} numbers, expected {} = stages x chunks", split.size(), chunks));
  if (const auto sum = std::accumulate(split.begin(), split.end(), int64_t{0}); sum != layers)
    wrong(format("stage_layers adds up to {}, expected n_layer = {}", sum, layers));
  for (size_t chunk = 1; chunk + 1 < split.size(); ++chunk)
    if (split[chunk] == 0)
      return wrong(format("stage_layers: chunk {} has no layers; only the first and the last may have none", chunk));
}

std::vector<int64_t> stage_counts(const Config& config, int64_t devices) {
  std::vector<int64_t> counts = divisors(devices);
  std::erase_if(counts, [&](int64_t count) {
    return is_given(config, "parallel.stages") ? count != config.parallel.stages
                                               : count * config.parallel.chunks > config.model.n_layer + 2;
  });
  return counts;
}

std::vector<Config> stage_variants(const Config& config) {
  std::vector<Config> all;
  const Parallel& p = config.parallel;
  const int64_t micro_batches = config.train.global_batch / (config.train.micro_batch * p.data);
  if (p.stages == 1 || is_given(config, "parallel.chunks") || is_given(config, "parallel.stage_layers")) return all;
  Config other = config;
  other.parallel.stage_layers.clear();
  for (int64_t chunks = 2; chunks <= 64 && chunks * p.stages <= config.model.n_layer + 2; chunks *= 2) {
    other.parallel.chunks = chunks;
    if (micro_batches % p.stages == 0 && layout_fits(other)) all.push_back(other);
  }
  return all;
}

void choose_stage_layers(Config& config, int64_t vocab) {
  Parallel& p = config.parallel;
  if (p.stages == 1 || !p.stage_layers.empty()) return;
  std::vector<double> costs;
  for (int64_t layer = 0; layer < config.model.n_layer; ++layer)
    costs.push_back((recompute_of(config.train, layer) == Recompute::full ? 4 : 3) * layer_flops(config.model, layer));
  p.stage_layers =
      sharding::split_layers(costs, 6.0 * static_cast<double>(vocab * config.model.d_model), p.stages * p.chunks);
}

}  // namespace trainer::config
