#pragma once
// Training steps on random tokens.
#include "config/config.h"
#include "train/trainer.h"

namespace trainer::bench {

/// Tokens are drawn by position, and each predicts the next. Every step has the same ones, drawn when they are first
/// asked for: drawing them is not a part of a step.
train::BatchSource random_batches(const config::Config& config);

/// Returns the work of step `step`, from 1 on.
train::StepWork work_of(const config::Config& config, int64_t step);

}  // namespace trainer::bench
