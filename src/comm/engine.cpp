#include "comm/engine.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/join.h"
#include "base/limits.h"
#include "base/spin.h"
#include "base/time_slice.h"
#include "comm/engine_operation.h"

namespace trainer::comm {
namespace {

constexpr double kComputeSpin = 10e-6;   // a compute thread spins for this long before it sleeps
constexpr int kStillTurns = 20;          // polls without progress before the progress thread yields
constexpr int kSpinTurns = 50;           // polls without progress before the progress thread sleeps
constexpr double kShortNap = 200e-6;     // polling interval while messages are in flight and peers do not notify
constexpr double kLongNap = 1e-3;        // longest polling interval, reached after 0.1 s without progress
constexpr double kNotifiedNap = 50e-3;   // polling interval if peers notify: only for timers
constexpr double kExpectantNap = 50e-6;  // while a device copies data to be sent: devices do not notify
constexpr double kIdleNap = 0.25;        // polling interval for control messages while no operation is in flight
constexpr double kAbandonSeconds = 1;    // grace period for operations whose ticket was lost to an exception

}  // namespace

/// Posts the messages of one flow.
class Engine::Poster final : public PointToPoint {
 public:
  Poster(Engine& engine, Channel& channel, Channel::Running& flow)
      : engine_(engine), channel_(channel), flow_(flow), tag_(channel.tag + flow.slot) {}
  void send(int to, const std::byte* data, int64_t bytes) override {
    ++flow_.open;
    engine_.send(channel_.group.members[static_cast<size_t>(to)], tag_, data, bytes, &flow_.open);
  }
  void receive(int from, std::byte* data, int64_t bytes) override {
    ++flow_.open;
    engine_.transport_->receive(channel_.group.members[static_cast<size_t>(from)], tag_, data, bytes, &flow_.open);
  }

 private:
  Engine& engine_;
  Channel& channel_;
  Channel::Running& flow_;
  int tag_;
};

Engine::Engine(std::unique_ptr<Transport> transport, const WorldOptions& options)
    : transport_(std::move(transport)),
      options_(options),
      thread_(start_thread<std::thread>("a rank's progress thread", [this] { run(); })) {
  std::unique_lock lock(mutex_);
  answered_.wait(lock, [this] { return opened_; });
  if (!open_error_) return;
  lock.unlock();
  thread_.join();
  std::rethrow_exception(open_error_);
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  transport_->notifier().notify();
  thread_.join();
}

void Engine::configure(const WorldOptions& options) {
  run_on_progress_thread([&] { options_ = options; });
}

void Engine::set_places(std::vector<std::string> places) {
  const std::lock_guard lock(mutex_);
  places_ = std::move(places);
}

Engine::Channel& Engine::channel(const Group& group, Purpose purpose) {
  const bool shared = options_.lanes == 1 && purpose != Purpose::control;
  const int queue = group.link > 0 ? group.queue() : shared ? 0 : static_cast<int>(purpose);
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Channel>& slot = channels_[{group.axes, queue}];
  if (!slot) {
    // Tag 0 is for control messages. The next tags are for the group of all ranks (host data).
    const int64_t axes = group.axes == kControlGroup ? 0 : int64_t{group.axes};
    const int64_t tag = 1 + (axes * kQueues + queue) * kFlows;
    TRAINER_CHECK(tag + kFlows <= transport_->max_tag(), "axes {:#x} require message tags above the limit of {}",
                  group.axes, transport_->max_tag());
    slot = std::make_unique<Channel>();
    slot->group = group;
    slot->purpose = purpose;
    slot->tag = static_cast<int>(tag);
  }
  TRAINER_CHECK(slot->group.members == group.members, "groups along {} must have the same ranks, not {} and {}",
                group.name, fmt::join(slot->group.members, " "), fmt::join(group.members, " "));
  return *slot;
}

Engine::Operation& Engine::submit(Channel& channel, const Collective& collective, bool watched) {
  Operation* operation = nullptr;
  const std::lock_guard lock(mutex_);
  if (failure_) throw *failure_;
  if (free_ == nullptr) {
    pool_.push_back(std::make_unique<Operation>(*this));
    operation = pool_.back().get();
  } else {
    operation = std::exchange(free_, free_->next);
  }
  operation->collective = collective;
  operation->channel = &channel;
  operation->number = ++channel.submitted;
  operation->started = now_seconds();
  operation->flight = {};
  operation->segments = watched ? Segments{1, 0} : segments_of(collective);
  operation->begun = watched ? 1 : 0;
  operation->ended = 0;
  operation->watched = watched;
  operation->over.store(false, std::memory_order_relaxed);
  operation->next = nullptr;
  operation->state.store(Operation::kRunning, std::memory_order_relaxed);
  (last_submitted_ == nullptr ? submitted_ : last_submitted_->next) = operation;
  last_submitted_ = operation;
  return *operation;
}

Pending* Engine::start(Channel& channel, const Collective& collective) {
  Operation& operation = submit(channel, collective, false);
  transport_->notifier().notify();
  return &operation;
}

Interval Engine::wait(Operation& operation) {
  uint32_t state = operation.state.load(std::memory_order_acquire);
  for (const double begin = now_seconds(); state == Operation::kRunning && now_seconds() - begin < kComputeSpin;) {
    spin_pause();
    state = operation.state.load(std::memory_order_acquire);
  }
  if (state == Operation::kRunning) {
    operation.blocked_since = now_seconds();
    operation.state.compare_exchange_strong(state, Operation::kSleeping);
    while ((state = operation.state.load(std::memory_order_acquire)) == Operation::kSleeping)
      futex_wait(operation.state, Operation::kSleeping);
  }
  const Interval flight = operation.flight;
  recycle(operation);
  if (state == Operation::kDone) return flight;
  const std::lock_guard lock(mutex_);
  throw *failure_;
}

void Engine::abandon(Operation& operation) noexcept {
  const auto running = [&] {
    const uint32_t state = operation.state.load(std::memory_order_acquire);
    return state != Operation::kDone && state != Operation::kFailed;
  };
  for (const double begin = now_seconds(); running() && now_seconds() - begin < kAbandonSeconds;)
    futex_wait(operation.state, Operation::kRunning, 1e-3);
  if (running()) {
    end_all_operations();
    while (running()) futex_wait(operation.state, Operation::kRunning, 1e-3);
  }
  recycle(operation);
}

void Engine::recycle(Operation& operation) {
  const std::lock_guard lock(mutex_);
  operation.next = std::exchange(free_, &operation);
}

void Engine::run_on_progress_thread(const std::function<void()>& job) {
  std::unique_lock lock(mutex_);
  job_ = &job;
  transport_->notifier().notify();
  answered_.wait(lock, [this] { return job_ == nullptr; });
}

bool Engine::wait_for_all_ranks(double seconds) noexcept try {
  std::unique_lock lock(mutex_);
  in_barrier_ = true;
  transport_->notifier().notify();
  while (!barrier_done_ &&
         seconds > 0) {  // in short waits, so that time for which this process is suspended counts less
    const double begin = now_seconds();
    answered_.wait_for(lock, std::chrono::duration<double>(std::min(seconds, kSuspendedSeconds)),
                       [this] { return barrier_done_; });
    seconds -= std::min(now_seconds() - begin, kSuspendedSeconds);
  }
  return barrier_done_;
} catch (...) {
  return false;
}

void Engine::run() {
  prctl(PR_SET_NAME, "progress");
  request_short_slice();
  prctl(PR_SET_TIMERSLACK, 1000UL);  // timer slack in nanoseconds, so that short naps stay short
  try {
    transport_->open();
    arrived_.resize(static_cast<size_t>(transport_->size()));
  } catch (...) {
    open_error_ = std::current_exception();
  }
  bool stop = open_error_ != nullptr;
  {
    const std::lock_guard lock(mutex_);
    opened_ = true;
  }
  answered_.notify_all();
  moved_at_ = now_seconds();
  while (!stop) {
    const uint32_t seen = transport_->notifier().count();
    bool moved = false;
    try {
      moved = poll_once(seen);
    } catch (const Error& error) {
      fail_here(error, true);
    } catch (const std::exception& error) {
      fail_here(Error(Code::internal, error.what()), true);
    }
    if (moved) {
      moved_at_ = now_seconds();
      idle_turns_ = 0;
      continue;
    }
    {
      const std::lock_guard lock(mutex_);
      stop = ending_;
    }
    if (!stop) sleep_until_notified(seen);
  }
  if (!open_error_) transport_->close(barrier_done_);
}

bool Engine::poll_once(uint32_t seen) {
  bool moved = (seen != heard_ || (watched_.load() > 0 && now_seconds() >= next_watch_)) && take_requests();
  heard_ = seen;
  moved |= transport_->progress();
  moved |= receive_control_messages();
  if (!failed_) {
    moved |= advance_channels();
    const double now = now_seconds();
    moved |= send_delayed(now);
    watch(now);
  }
  complete_barrier();
  return moved;
}

bool Engine::take_requests() {
  Operation* taken = nullptr;
  std::optional<Error> reason;
  const std::function<void()>* job = nullptr;
  bool give_up = false;
  {
    const std::lock_guard lock(mutex_);
    taken = std::exchange(submitted_, nullptr);
    last_submitted_ = nullptr;
    reason = stop_reason_;
    give_up = gave_up_;
    job = job_;
    if (in_barrier_ && !arrived_[static_cast<size_t>(rank())]) {
      arrived_[static_cast<size_t>(rank())] = true;
      send_to_all_ranks({.kind = ControlMessage::Kind::arrived});
    }
  }
  const bool any = taken != nullptr || reason || job != nullptr;
  for (Operation* next = nullptr; taken != nullptr; taken = next) {
    next = std::exchange(taken->next, nullptr);
    Channel& channel = *taken->channel;
    if (!channel.active) {
      channel.active = true;
      const auto later = [](const Channel* a, const Channel* b) { return a->purpose < b->purpose; };
      active_.insert(std::upper_bound(active_.begin(), active_.end(), &channel, later), &channel);
    }
    (channel.first == nullptr ? channel.first : channel.last->next) = taken;
    channel.last = taken;
    if (channel.filling == nullptr && !taken->watched) channel.filling = taken;
    ++channel.taken;
  }
  if (job != nullptr) {
    (*job)();
    const std::lock_guard lock(mutex_);
    job_ = nullptr;
  }
  if (reason) {
    fail_here(*reason, true);
    const std::lock_guard lock(mutex_);
    stop_reason_.reset();
  }
  if (give_up) fail_here(Error(Code::comm, "an operation was abandoned after an error").on(Scope::another_rank), false);
  if (job != nullptr || reason) answered_.notify_all();
  return any;
}

bool Engine::advance_channels() {
  bool moved = false;
  expecting_ = false;
  for (Channel* channel : active_)
    if (channel->first != nullptr && !channel->first->watched) moved |= advance_channel(*channel);
  return moved;
}

bool Engine::has_arrived(const Collective& collective) {
  if (collective.arriving == nullptr || collective.arriving->is_fetched()) return true;
  expecting_ = true;
  return false;
}

bool Engine::advance_channel(Channel& channel) {
  bool moved = false;
  for (bool again = true; std::exchange(again, false);) {
    for (Channel::Running& flow : channel.flows) {
      while (flow.operation != nullptr && flow.open == 0) {
        moved = true;
        Poster peers(*this, channel, flow);
        if (advance(flow, peers)) continue;
        ++flow.operation->ended;
        flow.operation = nullptr;
        again = true;
      }
    }
    while (channel.filling != nullptr) {
      Operation& operation = *channel.filling;
      if (operation.begun == 0 && !has_arrived(operation.collective)) break;
      Channel::Running& flow = channel.flows[static_cast<size_t>(channel.next_flow % kFlows)];
      if (flow.operation != nullptr) break;
      static_cast<Flow&>(flow) = {&operation.collective, operation.begun, operation.segments.elements,
                                  static_cast<int>(channel.next_flow % kFlows), 0};
      flow.operation = &operation;
      if (operation.begun == 0) operation.flight.begin = now_seconds();
      ++channel.next_flow;
      if (++operation.begun == operation.segments.count) channel.filling = operation.next;
      again = true;
    }
    // Operations end in order, so an operation that does not complete is always the first in its queue.
    while (channel.first != nullptr && channel.first->ended == channel.first->segments.count) {
      Operation& done = *std::exchange(channel.first, channel.first->next);
      channel.finished_at = now_seconds();
      done.flight.end = channel.finished_at;
      finish(done, Operation::kDone);
    }
  }
  return moved;
}

void Engine::finish(Operation& operation, uint32_t state) {
  if (operation.state.exchange(state) == Operation::kSleeping) futex_wake(operation.state);
}

void Engine::send(int peer, int tag, const std::byte* data, int64_t bytes, int* open) {
  bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
  const double delay = options_.delay ? options_.delay(rank()) : 0;
  if (delay > 0) {
    delayed_.push_back({now_seconds() + delay, peer, tag, data, bytes, open});
  } else {
    transport_->send(peer, tag, data, bytes, open);
  }
}

bool Engine::send_delayed(double now) {
  // A slot has at most one message per peer in flight, so any sending order preserves the order within a tag.
  return std::erase_if(delayed_, [&](const Delayed& d) {
           if (d.due > now) return false;
           transport_->send(d.peer, d.tag, d.data, d.bytes, d.open);
           return true;
         }) > 0;
}

bool Engine::is_busy() const {
  return !delayed_.empty() || std::any_of(active_.begin(), active_.end(),
                                          [](const Channel* c) { return c->first != nullptr && !c->first->watched; });
}

void Engine::sleep_until_notified(uint32_t seen) {
  const double now = now_seconds(), waited = now - moved_at_;
  const bool in_barrier =
      arrived_[static_cast<size_t>(rank())] && std::find(arrived_.begin(), arrived_.end(), false) != arrived_.end();
  if (!is_busy() && !in_barrier) {
    const bool watches = !failed_ && watched_.load() > 0;
    transport_->notifier().wait(seen, watches ? std::clamp(next_watch_ - now, 0.0, kIdleNap) : kIdleNap);
  } else if (++idle_turns_ <= (transport_->peers_notify() ? kStillTurns : kSpinTurns)) {
    if (idle_turns_ > kStillTurns) sched_yield();
  } else {
    double nap =
        transport_->peers_notify() ? kNotifiedNap : std::clamp(waited / 100, std::min(waited / 8, kShortNap), kLongNap);
    if (expecting_) nap = std::min(nap, kExpectantNap);
    for (const Delayed& d : delayed_) nap = std::min(nap, std::max(0.0, d.due - now));
    if (!failed_ && is_busy()) nap = std::min(nap, std::max(0.0, next_watch_ - now));
    transport_->notifier().wait(seen, nap);
  }
}

}  // namespace trainer::comm
