#pragma once
// Learning-rate schedules: pure functions of the step, so that a resumed run needs no state.
#include <cstdint>

#include "config/optim.h"

namespace trainer::run {

/// Returns the learning rate of update `step` (counted from 1) in a run of `total_steps`.
///   warm-up   step <= W:  lr · step / W
///   decay     after W, with p = (step − 1 − W) / (T − W), the share of the decay already done before this update:
///     cosine   min_lr + (lr − min_lr) · (1 + cos πp) / 2
///     linear   lr + (min_lr − lr) · p
///     wsd      lr until the last D = decay_steps or round(decay_fraction · T) steps (at most T − W), which fall from
///              lr as linear does, with decay_shape = "sqrt" by √p instead of p
///     constant lr
/// p stays below 1 within the run, so every update changes the weights even if min_lr is 0. Beyond total_steps a
/// decaying schedule stays at min_lr. W = min(warmup_steps, T), so a run no longer than its warm-up never decays.
double learning_rate(const config::Optim& optim, int64_t total_steps, int64_t step);

}  // namespace trainer::run
