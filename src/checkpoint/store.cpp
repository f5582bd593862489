#include "checkpoint/store.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>

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
      alone_(world == nullptr ? comm::solo_world() : nullptr),
      world_(world == nullptr ? *alone_ : *world) {
  run_on_first_rank([&] {
    make_folders(calls_, folder_);
    remove_left_overs();
  });
}

void CheckpointStore::run_on_first_rank(const std::function<void()>& action) {
  world_.control().run_on_all_ranks([&] {
    if (world_.first()) action();
  });
}

fs::path CheckpointStore::save(const Snapshot& snapshot) {
  const std::string name = step_name(snapshot.state.step);
  try {
    std::string temporary;
    run_on_first_rank([&] {
      make_folders(calls_, folder_);  // where somebody removed it
      temporary = fresh(kSaving, name).string();
      if (!make_folder(calls_, temporary)) throw Error(Code::io, format("{}: already exists", temporary));
    });
    world_.control().broadcast(temporary);
    Manifest manifest = write_shards(snapshot, temporary);
    run_on_first_rank([&] {
      write_manifest(std::move(manifest), snapshot, temporary);
      publish(temporary, name);
      point_latest_to(name);
    });
  } catch (Error& error) {
    error.add_context(format("saving the checkpoint of step {}", snapshot.state.step));
    try {
      if (world_.first()) remove_left_overs();
    } catch (const Error& second) {
      log::warning("{}", second.what());
    }
    throw;
  }
  if (world_.first()) remove_old(snapshot.state.proven_step);
  return folder_ / name;
}

void CheckpointStore::remove_old(int64_t proven) {
  try {
    apply_retention(proven);
  } catch (const Error& error) {
    log::warning("removing old checkpoints: {}", error.what());
  }
}

Manifest CheckpointStore::write_shards(const Snapshot& snapshot, const fs::path& temporary) {
  Manifest part;
  world_.control().run_on_all_ranks([&] {
    const fs::path file = temporary / format("rank-{:05d}.shard", world_.rank());
    WrittenShard shard = write_shard(calls_, file, 0, snapshot.tensors);
    part.shards.push_back(std::move(shard.file));
    part.tensors = std::move(shard.tensors);
  });
  if (world_.size() == 1) return part;
  Manifest all;
  const std::vector<std::string> parts = world_.control().gather(part_to_json(part));
  if (world_.first())
    for (const std::string& each : parts) merge_part(all, parse_part(each));
  return all;
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
  complete_step_folder(calls_, temporary, std::move(manifest));
}

void CheckpointStore::publish(const fs::path& temporary, const std::string& name) {
  const fs::path target = folder_ / name;
  std::error_code error;
  if (!fs::exists(fs::symlink_status(target, error))) {
    rename(calls_, temporary, target);  // synced together with `latest`
    return;
  }
  fs::path replaced = temporary;
  if (!exchange(calls_, temporary, target)) {
    replaced = fresh(kReplacedPrefix, name);
    rename(calls_, target, replaced);
    rename(calls_, temporary, target);
  }
  sync_folder(calls_, folder_);
  remove_tree(calls_, replaced);
}

void CheckpointStore::point_latest_to(const std::string& name) {
  const fs::path next = fresh(kNextLatest, name);
  write_file(calls_, next, name + "\n");
  rename(calls_, next, folder_ / kLatestFile);
  sync_folder(calls_, folder_);
}

void CheckpointStore::remove_left_overs() {
  for (const std::string& name : names_in(folder_)) {
    if (name.starts_with(kReplacedPrefix)) {
      const std::string prefix = kReplacedPrefix;
      const std::string step = name.substr(prefix.size(), name.rfind('-') - prefix.size());
      std::error_code error;
      if (!fs::exists(fs::symlink_status(folder_ / step, error))) {  // a save was stopped between two renames
        rename(calls_, folder_ / name, folder_ / step);
        sync_folder(calls_, folder_);
        continue;
      }
    } else if (!name.starts_with(kSaving) && !name.starts_with(kDeleting) && !name.starts_with(kNextLatest)) {
      continue;
    }
    remove_tree(calls_, folder_ / name);
  }
}

void CheckpointStore::apply_retention(int64_t proven) {
  if (retention_.keep <= 0) return;
  const std::vector<Entry> entries = list_checkpoints(folder_, calls_).complete;
  if (entries.empty()) return;
  const int64_t best = retention_.keep_best ? entries.front().state.best_step : -1;
  int64_t newer = 0;  // sound ones
  for (size_t i = 0; i < entries.size(); ++i) {
    const int64_t step = entries[i].state.step;
    const bool sound = entries[i].state.is_sound();
    const bool kept = i == 0 || (sound && newer < retention_.keep) || step == best || step == proven ||
                      (sound && retention_.keep_every > 0 && step % retention_.keep_every == 0);
    newer += sound;
    if (kept) continue;
    const fs::path deleting = fresh(kDeleting, entries[i].folder.filename().string());
    rename(calls_, entries[i].folder, deleting);
    sync_folder(calls_, folder_);
    remove_tree(calls_, deleting);
  }
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
