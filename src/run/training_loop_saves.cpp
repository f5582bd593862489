// The saves of a training loop: while training waits, or in the background.
#include "base/clock.h"
#include "base/error.h"
#include "checkpoint/folder.h"
#include "checkpoint/param_slices.h"
#include "checkpoint/shard.h"
#include "run/training_loop.h"
#include "train/soundness.h"

namespace trainer::run {

// A skipped step is not saved, since its checkpoint would displace a better one.
bool TrainingLoop::is_save_due() {
  if (!is_due(config_.checkpoint.interval) || state_.skipped_in_row > 0) return false;
  if (train::weights_are_finite(trainer_)) return true;
  reporter_.warn(state_.step, format("step {}: no checkpoint was saved: weights are not finite", state_.step));
  return false;
}

void TrainingLoop::save(bool background) {
  end_save();
  const TraceScope traced(trainer_.meter().trace, "checkpoint");
  save_.background = background;
  save_.began = now_seconds();
  checkpoint::Snapshot& snapshot = save_.snapshot = header_;
  snapshot.state = state_;
  if (const data::Mixture* mixture = open_.datasets.train->mixture()) snapshot.mixture.phases = mixture->phases();
  snapshot.state.finite_weights = train::weights_are_finite(trainer_);
  note_best(snapshot.state);
  snapshot.state.val_loss = loss_of_last_;
  snapshot.tensors = checkpoint::slices_to_save(trainer_.store(), /*states=*/true);
  save_.report = {.step = state_.step, .path = (store_.folder() / checkpoint::step_name(state_.step)).string()};
  for (const checkpoint::TensorSlice& slice : snapshot.tensors)
    save_.report.bytes += slice.shape.count() * size_of(slice.local.dtype);
  save_.report.best = snapshot.state.best_step == state_.step;
  if (background) snapshot.tensors = checkpoint::copy_to_host(device_->host_pool(), snapshot.tensors, save_.copies);
  attempt([&] { store_.begin(snapshot, background); });
  save_.report.wait_seconds = now_seconds() - save_.began;
  if (!background) end_save();
  state_ = snapshot.state;  // begin() may have set best_step to this step
  saved_step_ = state_.step;
  saved_ = save_.report.path;
}

void TrainingLoop::attempt(const std::function<void()>& part) {
  try {
    part();
  } catch (const Error& error) {
    if (error.code() != Code::io || !save_.background) throw;
    reporter_.warn(state_.step, format("step {}: {}; saving again, while training waits", state_.step, error.what()));
    save_.background = false;
    store_.begin(save_.snapshot, false);
  }
}

void TrainingLoop::proceed_with_save() {
  const TraceScope traced(trainer_.meter().trace, "checkpoint");
  const double start = now_seconds();
  std::optional<double> complete_at;
  attempt([&] { complete_at = store_.proceed(); });
  save_.report.wait_seconds += now_seconds() - start;
  if (!complete_at) return;
  save_.report.seconds = *complete_at - save_.began;
  reporter_.checkpoint(save_.report);
}

void TrainingLoop::end_save() {
  while (store_.is_saving()) proceed_with_save();
}

void TrainingLoop::save_or_warn() {
  end_save();
  try {
    save(asynchronous_);
  } catch (const Error& error) {
    if (error.code() != Code::io || asynchronous_) throw;
    reporter_.warn(state_.step, format("step {}: no checkpoint was saved: {}", state_.step, error.what()));
  }
}

void TrainingLoop::save_last_step() {
  end_save();
  if (saved_step_ != state_.step && state_.step > 0) save(false);
}

}  // namespace trainer::run
