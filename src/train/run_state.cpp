#include "train/run_state.h"

#include <algorithm>
#include <functional>
#include <sstream>

#include "base/log.h"
#include "checkpoint/folder.h"
#include "checkpoint/param_slices.h"

namespace trainer::train {

namespace fs = std::filesystem;

namespace {

/// The step folders to try, the best first.
std::vector<fs::path> resume_candidates(const config::Checkpoint& checkpoint, const fs::path& folder) {
  if (checkpoint.resume == "never") return {};
  if (checkpoint.resume == "auto") return checkpoint::complete_checkpoints(folder);
  if (checkpoint.resume != "must") return {checkpoint::resolve(checkpoint.resume)};
  const std::optional<fs::path> newest = checkpoint::newest_checkpoint(folder);
  if (!newest)
    throw Error(Code::checkpoint, format("checkpoint.resume = \"must\": no complete checkpoint in {}; use \"auto\" to "
                                         "start a fresh run",
                                         folder.string()));
  return {*newest};
}

/// The first rank's list on every rank.
std::vector<fs::path> shared(comm::World& world, const std::function<std::vector<fs::path>()>& list) {
  std::string lines;
  world.control().together([&] {
    if (!world.first()) return;
    for (const fs::path& path : list()) lines += path.string() + '\n';
  });
  world.control().broadcast(lines);
  std::vector<fs::path> paths;
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) paths.emplace_back(line);
  return paths;
}

/// What is damaged in the checkpoint, as some rank found; empty: every rank has filled its tensors.
std::string load_all(Trainer& trainer, const fs::path& folder, const checkpoint::Snapshot& expected, Resumed& resumed) {
  comm::Control& control = trainer.mesh().host();
  std::string damage;
  control.together([&] {
    try {
      const checkpoint::Reader reader(folder);
      if (trainer.mesh().world().first())
        checkpoint::require_compatible(reader.header(), expected, trainer.config().checkpoint.allow_other_data);
      reader.load(checkpoint::slices_to_fill(trainer.store(), /*moments=*/true),
                  {.weights_only = false, .tied = trainer.config().model.tie_embeddings.value()});
      resumed = {folder, reader.header().state, reader.header().config_toml};
    } catch (const checkpoint::Damage& found) {
      damage = found.what();
    }
  });
  for (std::string& each : control.gather(damage))
    if (!each.empty()) return std::move(each);
  trainer.store().refresh_compute();
  return {};
}

}  // namespace

std::map<std::string, std::string> model_keys(const config::Model& m, int64_t vocab) {
  return {{"arch", m.arch == config::Arch::llama ? "llama" : "gpt2"},
          {"n_layer", format("{}", m.n_layer)},
          {"n_head", format("{}", m.n_head)},
          {"n_kv_head", format("{}", m.n_kv_head)},
          {"d_model", format("{}", m.d_model)},
          {"d_ff", format("{}", m.d_ff)},
          {"seq_len", format("{}", m.seq_len)},
          {"tie_embeddings", format("{}", m.tie_embeddings.value())},
          {"bias", format("{}", m.bias.value())},
          {"norm_eps", format("{}", m.norm_eps)},
          {"rope_theta", format("{}", m.rope_theta)},
          {"vocab_size", format("{}", vocab)}};
}

std::optional<Resumed> resume(Trainer& trainer, const fs::path& folder, const checkpoint::Snapshot& expected) {
  const config::Checkpoint& config = trainer.config().checkpoint;
  comm::World& world = trainer.mesh().world();
  const std::vector<fs::path> candidates = shared(world, [&] { return resume_candidates(config, folder); });
  for (const fs::path& candidate : candidates) {
    Resumed resumed;
    std::string damage = load_all(trainer, candidate, expected, resumed);
    if (damage.empty()) return resumed;
    if (candidate == candidates.back()) {
      if (config.resume == "auto")
        damage = format("{}: none of its {} checkpoints is whole; remove the folder to start anew: {}", folder.string(),
                        candidates.size(), damage);
      throw checkpoint::Damage(damage).on(Scope::all_ranks);
    }
    if (world.first()) log::warning("checkpoint passed over, trying the one before: {}", damage);
  }
  return std::nullopt;
}

void load_weights(Trainer& trainer, const checkpoint::Reader& reader) {
  trainer.mesh().host().together([&] {
    reader.load(checkpoint::slices_to_fill(trainer.store(), /*moments=*/false),
                {.weights_only = true, .tied = trainer.config().model.tie_embeddings.value()});
  });
  trainer.store().refresh_compute();
}

std::vector<std::string> changed_lines(const std::string& stored_toml, const std::string& present_toml) {
  const auto values = [](const std::string& toml) {
    std::map<std::string, std::string> keys;
    std::istringstream lines(toml);
    std::string line, section;
    while (std::getline(lines, line)) {
      if (line.starts_with('[')) section = line.substr(1, line.find(']') - 1);
      const size_t equals = line.find(" = ");
      if (equals == std::string::npos || line.starts_with('#')) continue;
      std::string key = line.substr(0, equals);
      key.erase(std::remove(key.begin(), key.end(), ' '), key.end());
      keys[section + "." + key] = line.substr(line.find_first_not_of(' ', equals + 3));
    }
    return keys;
  };
  const auto before = values(stored_toml), after = values(present_toml);
  std::vector<std::string> changes;
  for (const auto& [key, value] : after) {
    const auto it = before.find(key);
    if (it == before.end()) {
      changes.push_back(format("{}: {} (new)", key, value));
    } else if (it->second != value) {
      changes.push_back(format("{}: {} -> {}", key, it->second, value));
    }
  }
  return changes;
}

}  // namespace trainer::train
