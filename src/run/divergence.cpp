#include "run/divergence.h"

#include <cmath>

#include "base/format.h"
#include "checkpoint/manifest.h"

namespace trainer::run {

bool proves(double loss, const checkpoint::TrainState& saved, int64_t vocab) {
  constexpr double kNear = 1;  // nats: a batch of few tokens may differ by that much from the previous one
  const double guess = std::log(static_cast<double>(vocab));
  const bool jumped = loss > saved.loss + kNear;  // false if the previous loss is unknown
  return saved.is_sound() && loss <= guess + kNear && !jumped;
}

std::string suggest_resume(const std::filesystem::path& proven, const std::filesystem::path& checkpoints) {
  std::error_code missing;
  if (!proven.empty() && std::filesystem::exists(proven / checkpoint::kCompleteFile, missing))
    return format(
        "resume from the last checkpoint that was followed by a step with a normal loss: --resume {}{}",
        proven.string(),
        std::filesystem::equivalent(proven / "..", checkpoints, missing) ? "" : ", and set a different run.dir");
  return "no checkpoint was followed by a step with a normal loss: start again with --resume never";
}

}  // namespace trainer::run
