#include "train/run_state.h"

#include <algorithm>
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

checkpoint::TrainState restore(Trainer& trainer, const checkpoint::Reader& reader,
                               const checkpoint::Snapshot& expected) {
  checkpoint::require_compatible(reader.header(), expected, trainer.config().checkpoint.allow_other_data);
  const auto slices = checkpoint::param_slices(trainer.store(), /*moments=*/true);
  reader.load(slices, {.weights_only = false, .tied = trainer.config().model.tie_embeddings.value()});
  trainer.store().refresh_compute();
  return reader.header().state;
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
  const std::vector<fs::path> candidates = resume_candidates(trainer.config().checkpoint, folder);
  for (const fs::path& candidate : candidates) {
    try {
      const checkpoint::Reader reader(candidate);
      return Resumed{candidate, restore(trainer, reader, expected), reader.header().config_toml};
    } catch (checkpoint::Damage& damage) {
      if (candidate == candidates.back()) {
        if (trainer.config().checkpoint.resume == "auto")
          damage.add_context(format("{}: none of its {} checkpoints is whole; remove the folder to start anew",
                                    folder.string(), candidates.size()));
        throw;
      }
      log::warning("checkpoint passed over, trying the one before: {}", damage.what());
    }
  }
  return std::nullopt;
}

void load_weights(Trainer& trainer, const checkpoint::Reader& reader) {
  const auto slices = checkpoint::param_slices(trainer.store(), /*moments=*/false);
  reader.load(slices, {.weights_only = true, .tied = trainer.config().model.tie_embeddings.value()});
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
