#include "offload/lanes.h"

#include <algorithm>

#include "base/clock.h"
#include "base/limits.h"

namespace trainer::offload {

Lanes::Lanes(std::function<void(const Operation&)> perform, std::span<const Subgroup> subgroups, int groups)
    : perform_(std::move(perform)),
      subgroups_(subgroups.begin(), subgroups.end()),
      groups_(static_cast<size_t>(groups)) {
  for (int lane = 0; lane < kLanes; ++lane)
    threads_.push_back(start_thread(format("lane \"{}\" of the optimizer", name_of(static_cast<Lane>(lane))),
                                    [this, lane] { work(static_cast<Lane>(lane)); }));
}

Lanes::~Lanes() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  changed_.notify_all();
}

int64_t Lanes::start(const Schedule& schedule) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return finished_ >= started_ - 1; });
  Run& next = run(started_);
  next.schedule = &schedule;
  next.done.assign(schedule.operations.size(), 0);
  next.gradients.assign(groups_, 0);
  next.weights_left.assign(groups_, 0);
  next.flushes_left.assign(groups_, 0);
  for (const Operation& op : schedule.operations) {
    const auto group = static_cast<size_t>(group_of(op));
    next.weights_left[group] += op.kind == Kind::refresh || op.kind == Kind::update_device;
    next.flushes_left[group] += op.kind == Kind::flush;
  }
  next.scalars = next.cancelled = false;
  next.lanes_left = kLanes;
  next.busy = {};
  next.error = nullptr;
  changed_.notify_all();
  return started_++;
}

void Lanes::gradient_complete(int group) {
  const std::lock_guard lock(mutex_);
  run(started_ - 1).gradients[static_cast<size_t>(group)] = 1;
  changed_.notify_all();
}

void Lanes::scalars_known() {
  const std::lock_guard lock(mutex_);
  run(started_ - 1).scalars = true;
  changed_.notify_all();
}

void Lanes::cancel() {
  std::unique_lock lock(mutex_);
  if (started_ == 0) return;
  run(started_ - 1).cancelled = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return finished_ == started_; });
}

void Lanes::recover() {
  cancel();
  const std::lock_guard lock(mutex_);
  for (Run& each : runs_) each.error = nullptr;
}

template <typename Reached>
void Lanes::wait(int64_t list, Reached&& reached) {
  std::unique_lock lock(mutex_);
  if (list < started_ - 2) return;
  Run& at = run(list);
  changed_.wait(lock, [&] { return at.error != nullptr || reached(at) || finished_ > list; });
  if (at.error != nullptr) std::rethrow_exception(at.error);
}

void Lanes::wait_for_weights(int64_t list, int group) {
  wait(list, [&](const Run& at) { return at.weights_left[static_cast<size_t>(group)] == 0; });
}

void Lanes::wait_for_gradient(int64_t list, int group) {
  wait(list, [&](const Run& at) { return at.flushes_left[static_cast<size_t>(group)] == 0; });
}

// After an error too nobody works on the list any more: it may go away.
void Lanes::wait_for_all(int64_t list) {
  std::unique_lock lock(mutex_);
  if (list < started_ - 2) return;
  changed_.wait(lock, [&] { return finished_ > list; });
  if (run(list).error != nullptr) std::rethrow_exception(run(list).error);
}

std::array<double, kLanes> Lanes::busy() {
  const std::lock_guard lock(mutex_);
  return busy_;
}

bool Lanes::ready(const Run& run, const Operation& op) const {
  return (!op.scalars || run.scalars) && (!op.gradient || run.gradients[static_cast<size_t>(group_of(op))] != 0) &&
         std::ranges::all_of(op.after, [&](int before) { return run.done[static_cast<size_t>(before)] != 0; });
}

void Lanes::work_on(Run& run, Lane lane, std::unique_lock<std::mutex>& lock) {
  for (size_t i = 0; i < run.schedule->operations.size(); ++i) {
    const Operation& op = run.schedule->operations[i];
    if (op.lane() != lane) continue;
    changed_.wait(lock, [&] { return ending_ || run.cancelled || ready(run, op); });
    if (ending_ || run.cancelled) return;
    lock.unlock();
    const double start = now_seconds();
    std::exception_ptr error;
    try {
      perform_(op);
    } catch (...) {
      error = std::current_exception();
    }
    const double seconds = now_seconds() - start;
    lock.lock();
    run.busy[static_cast<size_t>(lane)] += seconds;
    if (error != nullptr) {
      run.cancelled = true;
      if (run.error == nullptr) run.error = error;
    } else {
      const auto group = static_cast<size_t>(group_of(op));
      run.done[i] = 1;
      run.weights_left[group] -= op.kind == Kind::refresh || op.kind == Kind::update_device;
      run.flushes_left[group] -= op.kind == Kind::flush;
    }
    changed_.notify_all();
  }
}

void Lanes::work(Lane lane) {
  std::unique_lock lock(mutex_);
  for (int64_t list = 0;; ++list) {
    changed_.wait(lock, [&] { return ending_ || (started_ > list && finished_ == list); });
    if (ending_) return;
    Run& current = run(list);
    if (const Run& before = run(list + 1); list > 0 && before.error != nullptr) {
      current.error = before.error;
      current.cancelled = true;
    }
    work_on(current, lane, lock);
    if (--current.lanes_left > 0) continue;
    if (!current.cancelled) busy_ = current.busy;
    ++finished_;
    changed_.notify_all();
  }
}

}  // namespace trainer::offload
