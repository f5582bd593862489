#include "run/divergence.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/format.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"

namespace trainer::run {

namespace fs = std::filesystem;

bool proves(double loss, const checkpoint::TrainState& saved, int64_t vocab) {
  constexpr double kNear = 1;  // nats by which the losses of two small batches may differ
  const double guess = std::log(static_cast<double>(vocab));
  const bool jumped = loss > saved.loss + kNear;  // false if the previous loss is unknown
  return saved.is_sound() && loss <= guess + kNear && !jumped;
}

namespace {

/// Returns the newest checkpoint that a later checkpoint records as proven, or an empty path.
fs::path newest_recorded(const std::vector<checkpoint::Entry>& newest_first) {
  for (auto entry = newest_first.begin(); entry != newest_first.end(); ++entry)
    if (std::any_of(newest_first.begin(), entry,
                    [&](const checkpoint::Entry& later) { return later.state.proven_step == entry->state.step; }))
      return entry->folder;
  return {};
}

/// Returns the option that resumes from a checkpoint. With the path of a different run's checkpoint, or of one that
/// this run resumed before, --resume would continue from the run's own later checkpoints.
std::string option_of(const fs::path& advised, const std::vector<checkpoint::Entry>& own) {
  std::error_code missing;
  const auto entry = std::ranges::find_if(
      own, [&](const checkpoint::Entry& each) { return fs::equivalent(each.folder, advised, missing); });
  const bool is_origin = entry == own.end() || !checkpoint::descendants(own, entry->sequence).empty();
  return format("--resume {}{}", advised.string(), is_origin ? ", and set a different run.dir" : "");
}

}  // namespace

std::string suggest_resume(const fs::path& proven, const fs::path& checkpoints) {
  const std::vector<checkpoint::Entry> own = checkpoint::list_checkpoints(checkpoints).complete;
  std::error_code missing;
  const bool is_there = !proven.empty() && fs::exists(proven / checkpoint::kCompleteFile, missing);
  const fs::path advised = is_there ? proven : newest_recorded(own);
  if (advised.empty())
    return format("{}: start again with --resume never{}",
                  proven.empty() ? "no checkpoint was followed by a step with a normal loss"
                                 : format("{}, the last checkpoint that was followed by a step with a normal loss, no "
                                          "longer exists",
                                          proven.string()),
                  proven.empty() ? "" : ", or with --resume PATH and a different run.dir if you have a copy of it");
  return "resume from the last checkpoint that was followed by a step with a normal loss: " + option_of(advised, own);
}

std::string suggest_verified(const fs::path& checkpoints, int64_t verified_step, int64_t origin) {
  if (verified_step < 0) return "no replay has agreed before";
  const std::vector<checkpoint::Entry> own = checkpoint::list_checkpoints(checkpoints).complete;
  const checkpoint::Entry* advised = checkpoint::newest_up_to(own, verified_step, origin);
  return format("the last replay that agreed was before step {}; {}", verified_step,
                advised == nullptr ? "no checkpoint is as old"
                                   : "resume without that host, from the newest checkpoint up to it: " +
                                         option_of(advised->folder, own));
}

}  // namespace trainer::run
