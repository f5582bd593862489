#include "checkpoint/store.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/shard.h"
#include "checkpoint/step_files.h"

namespace trainer::checkpoint {

namespace fs = std::filesystem;

namespace {
constexpr const char* kSaving = ".saving-";
constexpr const char* kDeleting = ".deleting-";
constexpr const char* kNextLatest = ".latest-";
}  // namespace

CheckpointStore::CheckpointStore(fs::path folder, Retention retention, SystemCalls& calls, comm::World* world)
    : folder_(std::move(folder)),
      retention_(retention),
      calls_(calls),
      solo_(world == nullptr ? comm::solo_world() : nullptr),
      world_(world == nullptr ? *solo_ : *world) {
  run_on_first_rank([&] {
    make_folders(folder_, calls_);
    remove_left_overs();
  });
}

void CheckpointStore::run_on_first_rank(const std::function<void()>& action) {
  world_.control().run_on_all_ranks([&] {
    if (world_.first()) action();
  });
}

fs::path CheckpointStore::save(const Snapshot& snapshot) {
  begin(snapshot, /*background=*/false);
  while (!proceed()) {
  }
  return folder_ / step_name(snapshot.state.step);
}

void CheckpointStore::begin(const Snapshot& snapshot, bool background) {
  TRAINER_CHECK(!is_saving(), "only one save may be in progress");
  // With both flags, std::async falls back to deferred execution if no thread can be started.
  const std::launch policy = background ? std::launch::async | std::launch::deferred : std::launch::deferred;
  saving_.emplace(Saving{snapshot, policy, snapshot.state.proven_step});
  attempt([&] {
    std::string temporary;
    run_on_first_rank([&] {
      make_folders(folder_, calls_);  // if it was removed meanwhile
      temporary = fresh(kSaving, step_name(snapshot.state.step)).string();
      if (!make_folder(temporary, calls_)) throw Error(Code::io, format("{}: already exists", temporary));
    });
    world_.control().broadcast(temporary);
    saving_->temporary = temporary;
    saving_->writer = std::async(policy, [this] { write_shard_of_rank(); });
  });
}

std::optional<double> CheckpointStore::proceed() {
  bool published = false;
  attempt([&] {
    world_.control().run_on_all_ranks([&] {
      if (saving_->writer.valid()) saving_->writer.get();
    });
    published = std::exchange(saving_->publishing, true);
    if (published) return;
    if (world_.size() > 1) {
      const std::vector<std::string> parts = world_.control().gather(part_to_json(saving_->manifest));
      saving_->manifest = {};
      if (world_.first())
        for (const std::string& each : parts) merge_part(saving_->manifest, parse_part(each));
    }
    if (world_.first())
      saving_->writer = std::async(saving_->policy, [this, proven = saving_->proven] { complete(proven); });
  });
  if (!published) return std::nullopt;
  const double complete_at = saving_->complete_at;
  saving_.reset();
  return complete_at;
}

bool CheckpointStore::is_writing() const {
  return saving_ && saving_->writer.valid() &&
         saving_->writer.wait_for(std::chrono::seconds(0)) == std::future_status::timeout;
}

void CheckpointStore::attempt(const std::function<void()>& part) {
  try {
    part();
  } catch (Error& error) {
    error.add_context(format("saving the checkpoint of step {}", saving_->snapshot.state.step));
    saving_.reset();
    try {
      if (world_.first()) remove_left_overs();
    } catch (const Error& second) {
      log::warning("{}", second.what());
    }
    throw;
  }
}

void CheckpointStore::write_shard_of_rank() {
  const fs::path file = saving_->temporary / format("rank-{:05d}.shard", world_.rank());
  WrittenShard shard = write_shard(file, 0, saving_->snapshot.tensors, calls_);
  saving_->manifest.shards.push_back(std::move(shard.file));
  saving_->manifest.tensors = std::move(shard.tensors);
}

void CheckpointStore::complete(int64_t proven) {
  const std::string name = step_name(saving_->snapshot.state.step);
  write_manifest(std::move(saving_->manifest), saving_->snapshot, saving_->temporary);
  const fs::path latest = fresh(kNextLatest, name);
  write_file(latest, name + "\n", calls_);  // the last that may need space on the disk
  const fs::path replaced = publish(saving_->temporary, name);
  saving_->complete_at = now_seconds();
  try {
    rename(latest, folder_ / kLatestFile, calls_);
    sync_folder(folder_, calls_);
    if (!replaced.empty()) {
      remove_tree(replaced, calls_);
      sync_folder(folder_, calls_);
    }
  } catch (const Error& error) {
    log::warning("{} is complete, but {}; older checkpoints are kept", (folder_ / name).string(), error.what());
    try {
      remove_left_overs();
    } catch (const Error& left) {
      log::warning("{}", left.what());
    }
    return;
  }
  apply_retention(proven);
}

void CheckpointStore::remove_old(int64_t proven) {
  if (saving_) {
    saving_->proven = proven;
  } else {
    apply_retention(proven);
  }
}

void CheckpointStore::write_manifest(Manifest manifest, const Snapshot& snapshot, const fs::path& temporary) {
  const Listing earlier = list_checkpoints(folder_, calls_);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  manifest.sequence = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  if (!earlier.complete.empty()) {
    manifest.sequence = std::max(manifest.sequence, earlier.complete.front().sequence + 1);
  }
  manifest.header = snapshot;
  manifest.header.tensors.clear();
  complete_step_folder(temporary, std::move(manifest), calls_);
}

fs::path CheckpointStore::publish(const fs::path& temporary, const std::string& name) {
  const fs::path target = folder_ / name;
  std::error_code error;
  if (!fs::exists(fs::symlink_status(target, error))) {
    rename(temporary, target, calls_);
    return {};
  }
  if (exchange(temporary, target, calls_)) return temporary;
  const fs::path replaced = fresh(kReplacedPrefix, name);
  rename(target, replaced, calls_);
  rename(temporary, target, calls_);
  return replaced;
}

void CheckpointStore::remove_left_overs() {
  for (const std::string& name : names_in(folder_)) {
    if (name.starts_with(kReplacedPrefix)) {
      const std::string prefix = kReplacedPrefix;
      const std::string step = name.substr(prefix.size(), name.rfind('-') - prefix.size());
      std::error_code error;
      if (!fs::exists(fs::symlink_status(folder_ / step, error))) {  // a save was stopped between two renames
        rename(folder_ / name, folder_ / step, calls_);
        sync_folder(folder_, calls_);
        continue;
      }
    } else if (!name.starts_with(kSaving) && !name.starts_with(kDeleting) && !name.starts_with(kNextLatest)) {
      continue;
    }
    remove_tree(folder_ / name, calls_);
  }
}

void CheckpointStore::apply_retention(int64_t proven) try {
  if (retention_.keep <= 0) return;
  const std::vector<Entry> entries = list_checkpoints(folder_, calls_).complete;
  if (entries.empty()) return;
  const int64_t best = retention_.keep_best ? entries.front().state.best_step : -1;
  const TrainState& newest = entries.front().state;
  const Entry* verified = newest_up_to(entries, newest.verified_step, newest.origin);
  int64_t newer = 0;  // number of newer intact checkpoints
  for (size_t i = 0; i < entries.size(); ++i) {
    const int64_t step = entries[i].state.step;
    const bool sound = entries[i].state.is_sound();
    const bool kept = i == 0 || (sound && newer < retention_.keep) || step == best || step == proven ||
                      &entries[i] == verified ||
                      (sound && retention_.keep_every > 0 && step % retention_.keep_every == 0);
    newer += sound;
    if (kept) continue;
    const fs::path deleting = fresh(kDeleting, entries[i].folder.filename().string());
    rename(entries[i].folder, deleting, calls_);
    sync_folder(folder_, calls_);
    remove_tree(deleting, calls_);
  }
} catch (const Error& error) {
  log::warning("removing old checkpoints: {}", error.what());
}

fs::path CheckpointStore::fresh(const std::string& prefix, const std::string& name) {
  std::random_device random;
  for (;;) {
    const fs::path path = folder_ / format("{}{}-{:x}.{:08x}", prefix, name, ::getpid(), random());
    std::error_code error;
    if (!fs::exists(fs::symlink_status(path, error))) return path;
  }
}

}  // namespace trainer::checkpoint
