#include "run/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace trainer::run {

double learning_rate(const config::Optim& optim, int64_t total_steps, int64_t step) {
  TRAINER_CHECK(step >= 1 && total_steps >= 1, "step {} of {}: steps count from 1", step, total_steps);
  const int64_t warmup = std::clamp<int64_t>(optim.warmup_steps, 0, total_steps);
  if (step <= warmup) return optim.lr * static_cast<double>(step) / static_cast<double>(warmup);
  if (optim.schedule == config::Schedule::constant) return optim.lr;
  if (step > total_steps) return optim.min_lr;

  int64_t decay_steps = total_steps - warmup;
  if (optim.schedule == config::Schedule::wsd) {
    const double target = std::round(optim.decay_fraction * static_cast<double>(total_steps));
    decay_steps = static_cast<int64_t>(std::clamp(target, 0.0, static_cast<double>(decay_steps)));
  }
  const int64_t done = step - 1 - (total_steps - decay_steps);
  if (done <= 0) return optim.lr;
  const double p = static_cast<double>(done) / static_cast<double>(decay_steps);
  if (optim.schedule == config::Schedule::cosine) {
    return optim.min_lr + (optim.lr - optim.min_lr) * 0.5 * (1.0 + std::cos(std::numbers::pi * p));
  }
  return optim.lr + (optim.min_lr - optim.lr) * p;
}

}  // namespace trainer::run
