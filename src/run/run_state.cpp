#include "run/run_state.h"

#include <algorithm>

#include "base/log.h"
#include "base/utf8.h"
#include "checkpoint/folder.h"
#include "checkpoint/model_keys.h"
#include "checkpoint/param_slices.h"
#include "config/resolve.h"
#include "config/text.h"
#include "config/toml_reader.h"
#include "huggingface/import.h"
#include "optim/make.h"
#include "run/fallback.h"

namespace trainer::run {

namespace fs = std::filesystem;

namespace {

constexpr const char* kImported = "imported";  // in the run folder, while a run starts from a model of Hugging Face

bool is_path(const std::string& resume) {
  return resume != "auto" && resume != "must" && resume != "verified" && resume != "never";
}

bool is_in(const fs::path& folder, const fs::path& step_folder) {
  std::error_code missing;
  return fs::equivalent(folder, step_folder / "..", missing);  // not parent_path(), which is empty for "step-00000004"
}

/// Explains why the run's own checkpoints are not a branch of `path`, whose checkpoints are `given`.
std::string no_branch(const fs::path& folder, const fs::path& path, const std::vector<fs::path>& given) {
  const std::string why = given.size() > 1 || !fs::equivalent(path, given.front())
                              ? format("descend from none of the {} checkpoints now in {}", given.size(), path.string())
                              : format("do not descend from {}", given.front().string());
  return format(
      "{}: its checkpoints {}; use --resume auto to continue from them, or a different run.dir to start a branch",
      folder.string(), why);
}

/// Returns the newest checkpoint that a replay confirmed: of the history of the newest checkpoint, and of at most the
/// step that it records.
fs::path newest_verified(const fs::path& folder) {
  const std::vector<checkpoint::Entry> all = checkpoint::list_checkpoints(folder).complete;
  const checkpoint::TrainState newest = all.empty() ? checkpoint::TrainState() : all.front().state;
  if (const checkpoint::Entry* found = checkpoint::newest_up_to(all, newest.verified_step, newest.origin))
    return found->folder;
  const std::string why =
      all.empty() ? "there is none"
                  : format("the newest is of step {}, and {}", newest.step,
                           newest.verified_step < 0
                               ? "no replay agreed before it (debug.replay_every)"
                               : format("the last replay that agreed was before step {}", newest.verified_step));
  throw Error(Code::checkpoint,
              format("checkpoint.resume = \"verified\": no checkpoint in {} is verified; {}", folder.string(), why));
}

/// Returns the step folders to try, best first. If a command that branched from a different run, or went back to an
/// earlier step of this run, is repeated, the checkpoints saved since then are tried first, so that a requeued job
/// makes progress.
std::vector<fs::path> resume_candidates(const config::Checkpoint& checkpoint, const fs::path& folder, bool aloud) {
  if (checkpoint.resume == "never") return {};
  if (!is_path(checkpoint.resume)) {
    if (checkpoint.resume == "verified") return {newest_verified(folder)};
    const std::vector<fs::path> all = checkpoint::complete_checkpoints(folder, aloud);
    if (checkpoint.resume == "auto") return all;
    if (all.empty())
      throw Error(
          Code::checkpoint,
          format("checkpoint.resume = \"must\": no complete checkpoint in {}; use \"auto\" to start a fresh run",
                 folder.string()));
    return {all.front()};
  }
  const std::vector<fs::path> given = checkpoint::candidates(checkpoint.resume, aloud);
  const std::vector<checkpoint::Entry> own = checkpoint::list_checkpoints(folder).complete;
  const bool inside = is_in(folder, given.front());
  if (own.empty() || (inside && given.size() > 1)) return {given.front()};
  for (const fs::path& begin : given) {
    const auto branch = checkpoint::descendants(own, checkpoint::Reader(begin).manifest().sequence);
    if (branch.empty()) continue;
    if (aloud)
      log::info("branch of {}, resuming at step {}; to branch there again, set a different run.dir", begin.string(),
                branch.front().state.step);
    std::vector<fs::path> folders;
    for (const checkpoint::Entry& entry : branch) folders.push_back(entry.folder);
    return folders;
  }
  if (inside) return {given.front()};
  throw Error(Code::checkpoint, no_branch(folder, checkpoint.resume, given));
}

/// Returns the damage that some rank found in the checkpoint. Empty: every rank has filled its tensors.
std::string load_all(train::ModelRunner& runner, const fs::path& folder, const checkpoint::Snapshot& expected,
                     Resumed& resumed) {
  comm::World& world = runner.mesh().world();
  std::optional<checkpoint::Reader> opened;
  std::string damage = find_damage_on_any_rank(world, [&] { opened.emplace(folder); });
  if (!damage.empty()) return damage;
  require_same_copy(world, *opened);
  damage = find_damage_on_any_rank(world, [&] {
    const checkpoint::Reader& reader = *opened;
    if (world.first())
      checkpoint::require_compatible(reader.header(), expected, folder, runner.config().checkpoint.allow_other_data);
    reader.load(checkpoint::slices_to_fill(runner.store(), /*states=*/true),
                {.weights_only = false,
                 .tied = runner.config().model.tie_embeddings.value(),
                 .elsewhere = runner.names_elsewhere()});
    const checkpoint::Snapshot& stored = reader.header();
    resumed = {folder,
               reader.manifest().sequence,
               stored.state,
               stored.config_toml,
               stored.gemm_tuning_hash,
               stored.data_hash,
               stored.val_hash,
               stored.mixture.phases};
  });
  if (damage.empty()) runner.store().refresh_compute();
  return damage;
}

}  // namespace

checkpoint::Snapshot model_header(const config::Config& config, int64_t vocab) {
  checkpoint::Snapshot snapshot;
  snapshot.model_keys = checkpoint::model_keys(config.model, vocab);
  snapshot.optimizer = optim::named_rule(config)->name();
  return snapshot;
}

namespace {

/// Returns the configuration with absolute paths to the data files, so that the copy in the checkpoint is valid in any
/// working directory.
std::string config_for_anywhere(config::Config config) {
  const auto whole = [](std::string& path) {
    std::error_code failed;
    const fs::path absolute = fs::absolute(path, failed);
    // In a folder whose name TOML cannot contain, the path stays relative.
    if (std::string text = absolute.lexically_normal().string(); !failed && utf8_repair(text).replaced == 0)
      path = text;
  };
  for (std::vector<std::string>* files : config::file_lists(config.data))
    for (std::string& path : *files) whole(path);
  if (!config.data.tokenizer.empty() && config.data.tokenizer != "train") whole(config.data.tokenizer);
  return config::to_toml(config);
}

}  // namespace

checkpoint::Snapshot snapshot_header(const config::Config& config, const data::Datasets& datasets, DType compute,
                                     const std::string& gemm_tuning_hash) {
  checkpoint::Snapshot snapshot = model_header(config, datasets.vocab);
  snapshot.config_toml = config_for_anywhere(config);
  if (datasets.tokenizer) {
    snapshot.tokenizer = datasets.tokenizer->bytes();
    snapshot.tokenizer_hash = datasets.tokenizer->hash();
  }
  snapshot.bos = datasets.bos;
  snapshot.special = datasets.special;
  snapshot.data_hash = datasets.data_hash;
  snapshot.val_hash = datasets.val_hash;
  for (const auto& [name, hash] : datasets.source_hashes) {
    const auto source = std::ranges::find(datasets.train->sources(), name, &data::NamedDataset::name);
    snapshot.mixture.sources[name] = {source->dataset.windows(), hash};
  }
  snapshot.tied = config.model.tie_embeddings.value();
  snapshot.compute = name_of(compute);
  snapshot.gemm_tuning_hash = gemm_tuning_hash;
  return snapshot;
}

std::optional<StoredHeader> header_to_resume(const config::Checkpoint& config, const fs::path& folder) {
  for (const fs::path& candidate : resume_candidates(config, folder, /*aloud=*/false)) try {
      return StoredHeader{candidate, checkpoint::Reader(candidate).header()};
    } catch (const checkpoint::Damage&) {
      continue;  // damage is reported when the checkpoint is loaded
    }
  return std::nullopt;
}

std::optional<Resumed> resume(train::ModelRunner& runner, const fs::path& folder,
                              const checkpoint::Snapshot& expected) {
  const config::Checkpoint& config = runner.config().checkpoint;
  comm::World& world = runner.mesh().world();
  const std::vector<fs::path> candidates =
      list_on_first_rank(world, [&] { return resume_candidates(config, folder, /*aloud=*/true); });
  if (candidates.empty()) return std::nullopt;
  const std::string none_whole =
      config.resume != "auto"
          ? ""
          : format("{}: none of the {} checkpoints is intact; remove the folder to start from scratch: ",
                   folder.string(), candidates.size());
  Resumed resumed;
  load_first_whole(world, candidates, none_whole,
                   [&](const fs::path& candidate) { return load_all(runner, candidate, expected, resumed); });
  // The path of the run's own checkpoints folder selects the newest checkpoint, as "auto" does, and sets no origin; the
  // path of a step folder within it does, and so does "verified".
  std::error_code missing;
  if (config.resume == "verified" ||
      (is_path(config.resume) &&
       (!is_in(folder, resumed.folder) || fs::equivalent(config.resume, resumed.folder, missing))))
    resumed.state.origin = resumed.sequence;
  return resumed;
}

/// Removes its folder, if it has one, when it is destroyed, even if an exception unwinds.
struct RemoveAtEnd {
  fs::path folder;
  ~RemoveAtEnd() {
    std::error_code error;
    if (!folder.empty()) fs::remove_all(folder, error);
  }
};

/// Returns whether the experts of a new run get copies of a dense checkpoint's MLPs.
static bool upcycles(const train::ModelRunner& runner, const checkpoint::Reader& reader) {
  return runner.config().model.n_expert > 0 && !reader.header().model_keys.contains("n_expert");
}

std::string load_weights(train::ModelRunner& runner, const checkpoint::Reader& reader) {
  if (upcycles(runner, reader))  // for the routers
    runner.store().initialize(static_cast<uint64_t>(runner.config().run.seed));
  std::string damage = find_damage_on_any_rank(runner.mesh().world(), [&] {
    reader.load(checkpoint::slices_to_fill(runner.store(), /*states=*/false),
                {.weights_only = true,
                 .tied = runner.config().model.tie_embeddings.value(),
                 .elsewhere = runner.names_elsewhere(),
                 .upcycles = upcycles(runner, reader)});
  });
  if (damage.empty()) runner.store().refresh_compute();
  return damage;
}

namespace {

/// Returns a line for each key that has changed since the run was saved: "optim.lr: 0.0006 -> 0.0003", or for a named
/// table "data.source.web.weight: 0.7 -> 0.5". Throws config::TomlMistake.
std::vector<std::string> changed_lines(const std::string& stored_toml, const std::string& present_toml) {
  const auto values = [](const std::string& toml) {
    std::map<std::string, std::string> keys;
    for (const config::TomlNode& node : config::read_toml(toml)) {
      const std::string key = node.section + "." + node.name;
      const auto* tables = std::get_if<config::TableList>(&node.value);
      const auto name_of = [](const config::Table& table) {
        const auto name = std::ranges::find(table.members, "name", &config::TableMember::name);
        const auto* text = name == table.members.end() ? nullptr : std::get_if<std::string>(&name->value);
        return text == nullptr ? std::string() : *text;
      };
      if (tables == nullptr ||
          std::ranges::any_of(*tables, [&](const auto& table) { return name_of(table).empty(); })) {
        if (!node.is_section) keys[key] = config::to_toml(node.value);
        continue;
      }
      for (const config::Table& table : *tables)
        for (const config::TableMember& member : table.members)
          if (member.name != "name")
            keys[key + "." + name_of(table) + "." + member.name] = config::to_toml(member.value);
    }
    return keys;
  };
  const auto before = values(stored_toml), after = values(present_toml);
  std::vector<std::string> changes;
  for (const auto& [key, value] : after) {
    const auto it = before.find(key);
    if (it == before.end()) {
      const size_t dot = key.find('.');  // a key added since the checkpoint has no effect at its initial value
      const config::Key* known = config::find_key(key.substr(0, dot), key.substr(dot + 1));
      if (known != nullptr && value == config::to_toml(known->initial)) continue;
      changes.push_back(format("{}: {} (new)", key, value));
    } else if (it->second != value) {
      changes.push_back(format("{}: {} -> {}", key, it->second, value));
    }
  }
  for (const auto& [key, value] : before)
    if (!after.contains(key)) changes.push_back(format("{}: {} (removed)", key, value));
  return changes;
}

}  // namespace

void log_changes(Resumed& resumed, const checkpoint::Snapshot& present) {
  std::vector<std::string> changes;
  try {
    changes = changed_lines(resumed.config_toml, present.config_toml);
  } catch (const config::TomlMistake& mistake) {  // only this comparison reads the file
    log::warning("{}:{}:{}: {}; the keys that have changed since the checkpoint are unknown",
                 (resumed.folder / "config.toml").string(), mistake.line, mistake.column, mistake.text);
  }
  resumed.other_steps = resumed.data_hash != present.data_hash;
  for (const std::string& change : changes) {
    resumed.other_steps = resumed.other_steps || change.starts_with("train.global_batch: ");
    const bool weights = (change.starts_with("data.source.") && change.find(".weight: ") != std::string::npos) ||
                         change.starts_with("data.phase: ");
    log::info("changed since the checkpoint: {}{}", change,
              weights ? format(", starting at sample {}", resumed.state.samples_seen) : std::string());
  }
  if (!resumed.val_hash.empty() && resumed.val_hash != present.val_hash)
    log::info("changed since the checkpoint: the validation data; earlier validation losses are not comparable");
  if (resumed.gemm_tuning_hash != present.gemm_tuning_hash)
    log::info(
        "changed since the checkpoint: the GEMM algorithms (a different tuning table, or none); results may round "
        "differently");
}

std::optional<Resumed> fill_model(train::ModelRunner& runner, const fs::path& folder,
                                  const checkpoint::Snapshot& expected) {
  const config::Config& config = runner.config();
  if (auto resumed = resume(runner, folder, expected)) {
    log::info("resumed step {} from {}", resumed->state.step, resumed->folder.string());
    log_changes(*resumed, expected);
    return resumed;
  }
  if (config.model.init_from.empty()) {
    runner.store().initialize(static_cast<uint64_t>(config.run.seed));
    return std::nullopt;
  }
  comm::World& world = runner.mesh().world();
  bool imports = false;  // on rank 0, which reads models of Hugging Face for all ranks
  RemoveAtEnd imported;
  const fs::path source = list_on_first_rank(world, [&]() -> std::vector<fs::path> {
                            imports = huggingface::is_model_folder(config.model.init_from);
                            if (!imports) return {checkpoint::resolve(config.model.init_from)};
                            imported.folder = fs::path(config.run.dir) /
                                              kImported;      // a checkpoint, from which each rank reads its elements
                            fs::remove_all(imported.folder);  // left by a killed start
                            huggingface::import_model(config.model.init_from, imported.folder);
                            return {imported.folder};
                          }).front();
  std::optional<checkpoint::Reader> opened;
  world.control().run_on_all_ranks([&] { opened.emplace(source); });
  const checkpoint::Reader& reader = *opened;
  require_same_copy(world, reader);
  world.control().run_on_all_ranks([&] {  // only rank 0 compares, so that warnings are logged once
    if (!world.first()) return;
    if (imports)  // else open_run_data() compared them, before text was tokenized
      checkpoint::require_same_use(reader.header(), expected, reader.folder(),
                                   [&](const std::string& key) { return config.origins.contains("model." + key); });
    checkpoint::require_same_tokenizer(reader.header(), expected, reader.folder(), config.checkpoint.allow_other_data);
  });
  load_first_whole(world, {reader.folder()}, "", [&](const fs::path&) { return load_weights(runner, reader); });
  log::info("initialized with the weights of {}{}, new optimizer state",
            imports ? config.model.init_from : reader.folder().string(),
            upcycles(runner, reader) ? ", experts copied from its MLPs, new routers" : "");
  return std::nullopt;
}

}  // namespace trainer::run
