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

  const bool wsd = optim.schedule == config::Schedule::wsd;
  int64_t decay_steps = total_steps - warmup;
  if (wsd) decay_steps = std::min(decay_steps, config::final_decay(optim, total_steps));
  const int64_t done = step - 1 - (total_steps - decay_steps);
  if (done <= 0) return optim.lr;
  const double p = static_cast<double>(done) / static_cast<double>(decay_steps);
  if (optim.schedule == config::Schedule::cosine) {
    return optim.min_lr + (optim.lr - optim.min_lr) * 0.5 * (1.0 + std::cos(std::numbers::pi * p));
  }
  const bool root = wsd && optim.decay_shape == config::DecayShape::sqrt;
  return optim.lr + (optim.min_lr - optim.lr) * (root ? std::sqrt(p) : p);
}

}  // namespace trainer::run
