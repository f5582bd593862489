#include "offload/streams.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"

namespace trainer::offload {

Streams::Streams(Work work, std::span<const Subgroup> subgroups, int groups)
    : work_(std::move(work)), subgroups_(subgroups.begin(), subgroups.end()), groups_(static_cast<size_t>(groups)) {
  for (int stream = 0; stream < kStreams; ++stream)
    threads_.push_back(start_thread(format("the optimizer\'s stream \"{}\"", name_of(static_cast<Stream>(stream))),
                                    [this, stream] { work_all(static_cast<Stream>(stream)); }));
}

Streams::~Streams() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  changed_.notify_all();
}

void Streams::count(Progress& progress, const Operation& op, int change) const {
  const auto group = static_cast<size_t>(group_of(op));
  if (makes_weights(op.kind)) progress.weights_left[group] += change;
  if (op.kind == OperationKind::flush) progress.flushes_left[group] += change;
}

int64_t Streams::start(const Schedule& schedule) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return finished_ >= started_ - 1; });
  Progress& next = progress_of(started_);
  next.schedule = &schedule;
  next.done.assign(schedule.size(), 0);
  next.gradients.assign(groups_, 0);
  next.weights_left.assign(groups_, 0);
  next.flushes_left.assign(groups_, 0);
  for (const Operation& op : schedule) count(next, op, +1);
  next.norm_known = next.cancelled = false;
  next.streams_left = kStreams;
  next.norm_at = next.weights_at = 0;
  next.busy = {};
  next.error = nullptr;
  changed_.notify_all();
  return started_++;
}

void Streams::gradient_complete(int group) {
  const std::lock_guard lock(mutex_);
  progress_of(started_ - 1).gradients[static_cast<size_t>(group)] = 1;
  changed_.notify_all();
}

void Streams::norm_known() {
  const std::lock_guard lock(mutex_);
  Progress& current = progress_of(started_ - 1);
  current.norm_known = true;
  current.norm_at = now_seconds();
  changed_.notify_all();
}

void Streams::cancel() {
  std::unique_lock lock(mutex_);
  if (started_ == 0) return;
  progress_of(started_ - 1).cancelled = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return finished_ == started_; });
}

void Streams::recover() {
  cancel();
  const std::lock_guard lock(mutex_);
  for (Progress& each : progress_) each.error = nullptr;
}

template <typename Reached>
void Streams::wait(int64_t list, Reached&& reached) {
  std::unique_lock lock(mutex_);
  if (list < started_ - 2) return;
  Progress& at = progress_of(list);
  changed_.wait(lock, [&] { return at.error != nullptr || reached(at) || finished_ > list; });
  if (at.error != nullptr) std::rethrow_exception(at.error);
}

void Streams::wait_for_weights(int64_t list, int group) {
  wait(list, [&](const Progress& at) { return at.weights_left[static_cast<size_t>(group)] == 0; });
}

void Streams::wait_for_gradient(int64_t list, int group) {
  wait(list, [&](const Progress& at) { return at.flushes_left[static_cast<size_t>(group)] == 0; });
}

// On return, even after an error, no thread is working on the list any more, so it may be destroyed.
void Streams::wait_for_all(int64_t list) {
  std::unique_lock lock(mutex_);
  if (list < started_ - 2) return;
  changed_.wait(lock, [&] { return finished_ > list; });
  if (progress_of(list).error != nullptr) std::rethrow_exception(progress_of(list).error);
}

Measured Streams::measured() {
  const std::lock_guard lock(mutex_);
  return measured_;
}

void Streams::record(bool on) {
  const std::lock_guard lock(mutex_);
  recording_ = on;
}

std::vector<Done> Streams::recorded() {
  const std::lock_guard lock(mutex_);
  return std::exchange(recorded_, {});
}

bool Streams::is_ready(const Progress& progress, const Operation& op) const {
  return (!is_update(op.kind) || progress.norm_known) &&
         (op.kind != OperationKind::flush || progress.gradients[static_cast<size_t>(group_of(op))] != 0) &&
         std::ranges::all_of(op.after, [&](int before) { return progress.done[static_cast<size_t>(before)] != 0; });
}

void Streams::work_on(int64_t list, Stream stream, std::unique_lock<std::mutex>& lock) {
  Progress& current = progress_of(list);
  for (size_t i = 0; i < current.schedule->size(); ++i) {
    const Operation& op = (*current.schedule)[i];
    if (op.stream() != stream) continue;
    changed_.wait(lock, [&] { return ending_ || current.cancelled || is_ready(current, op); });
    if (ending_ || current.cancelled) return;
    lock.unlock();
    std::exception_ptr error;
    double start = 0, end = 0;
    try {
      work_.prepare(op);
      start = now_seconds();
      work_.perform(op, list);
      end = now_seconds();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error != nullptr) {
      current.cancelled = true;
      if (current.error == nullptr) current.error = error;
    } else {
      current.busy[static_cast<size_t>(op.kind)] += end - start;
      current.done[i] = 1;
      if (recording_) recorded_.push_back({op.kind, op.subgroup, {start, end}});
      count(current, op, -1);
      if (makes_weights(op.kind)) current.weights_at = std::max(current.weights_at, end);
    }
    changed_.notify_all();
  }
}

void Streams::work_all(Stream stream) {
  std::unique_lock lock(mutex_);
  for (int64_t list = 0;; ++list) {
    changed_.wait(lock, [&] { return ending_ || (started_ > list && finished_ == list); });
    if (ending_) return;
    Progress& current = progress_of(list);
    if (const Progress& before = progress_of(list + 1); list > 0 && before.error != nullptr) {
      current.error = before.error;
      current.cancelled = true;
    }
    work_on(list, stream, lock);
    if (--current.streams_left > 0) continue;
    if (!current.cancelled) measured_ = {current.busy, std::max(0.0, current.weights_at - current.norm_at)};
    ++finished_;
    changed_.notify_all();
  }
}

}  // namespace trainer::offload
