// The engine's watchdog. It detects operations that do not end, and exchanges control messages with other ranks about
// them and about other failures.
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/join.h"
#include "base/log.h"
#include "comm/engine_operation.h"
#include "device/pages.h"

namespace trainer::comm {
namespace {

constexpr double kAnswerSeconds = 2;  // time for other ranks to answer a probe, part of the timeout
constexpr double kMarginSeconds = 1;  // see may_wait_longer()

}  // namespace

Engine::Operation* Engine::watch(Channel& channel, CommOp op) {
  Operation& operation = submit(channel, {.op = op}, true);
  // While operations are watched, the progress thread wakes up periodically, so the compute thread need not spend time
  // on notifying it for each of them.
  if (watched_.fetch_add(1) == 0) transport_->notifier().notify();
  return &operation;
}

void Engine::mark_ended(Operation& operation) noexcept { operation.over.store(true, std::memory_order_release); }

void Engine::end_all_operations() noexcept {
  {
    const std::lock_guard lock(mutex_);
    gave_up_ = true;
  }
  transport_->notifier().notify();
}

bool Engine::failed() {
  const std::lock_guard lock(mutex_);
  return failure_.has_value();
}

void Engine::check() {
  const std::lock_guard lock(mutex_);
  if (failure_) throw *failure_;
}

void Engine::fail(Code code, const std::string& why) noexcept try {
  fail(Error(code, format("{} stopped: {}", name_of_rank(rank()), why)).on(Scope::another_rank));
} catch (...) {  // for example out of memory: the other ranks then fail at the timeout
}

void Engine::fail(const Error& error) noexcept try {
  std::unique_lock lock(mutex_);
  if (failure_ && !gave_up_) return;  // all ranks have been notified already
  stop_reason_ = error;
  transport_->notifier().notify();
  answered_.wait_for(lock, std::chrono::seconds(1), [this] { return !stop_reason_; });
} catch (...) {
}

void Engine::skip_suspension(double now) {
  const double before = std::exchange(turned_at_, now), gap = now - before;
  if (before == 0 || gap < kSuspendedSeconds) return;
  for (Channel* channel : active_) {
    for (Operation* operation = channel->first; operation != nullptr; operation = operation->next)
      operation->started = std::min(now, operation->started + gap);
    channel->finished_at = std::min(now, channel->finished_at + gap);
  }
  probe_.sent += gap;
  probe_.until += gap;
}

void Engine::watch(double now) {
  skip_suspension(now);
  if (now < next_watch_) return;
  next_watch_ = now + std::min(20e-3, options_.timeout_s / 20);
  drop_ended();
  if (probe_.channel != nullptr) {
    const Operation* first = probe_.channel->first;
    if (first == nullptr || first->number != probe_.number) {
      probe_.channel = nullptr;
    } else if (now >= probe_.until) {
      conclude_probe(now);
    }
    return;
  }
  const double probe_after = options_.timeout_s - std::min(kAnswerSeconds, options_.timeout_s / 2);
  for (Channel* channel : active_) {
    const Operation* first = channel->first;
    if (first == nullptr) continue;
    const double since = std::max(first->started, channel->finished_at);
    if (now - since < probe_after) continue;
    const size_t members = channel->group.members.size();
    probe_ = {.channel = channel,
              .number = first->number,
              .sent = now,
              .until = std::max(since + options_.timeout_s, now + std::min(kAnswerSeconds, options_.timeout_s / 2)),
              .answers = std::vector<int64_t>(members, -1),
              .waits = std::vector<double>(members, -1)};
    probe_.answers[static_cast<size_t>(channel->group.index)] = channel->taken;
    for (int member : channel->group.members)
      if (member != rank())
        transport_->send_control(member, {ControlMessage::Kind::probe, rank(), channel->tag, first->number});
    return;
  }
}

void Engine::drop_ended() {
  for (Channel* channel : active_)
    while (channel->first != nullptr && channel->first->watched &&
           channel->first->over.load(std::memory_order_acquire)) {
      Operation& operation = *channel->first;
      channel->first = operation.next;
      channel->finished_at = now_seconds();
      --watched_;
      recycle(operation);
    }
}

void Engine::conclude_probe(double now) {
  Channel& channel = *probe_.channel;
  // An exchange of host data, or a message on a link, may wait longer for a rank that is busy preparing the data, if
  // that rank is alive and has not ended.
  bool lost = false;
  for (size_t place = 0; place < channel.group.members.size(); ++place)
    lost |= probe_.answers[place] < 0 ||
            (probe_.answers[place] < probe_.number && arrived_[static_cast<size_t>(channel.group.members[place])]);
  if (channel.is_patient() && !lost && may_wait_longer(now)) {
    probe_.channel = nullptr;
    return;
  }
  const Operation& operation = *channel.first;
  if (channel.group.link > 0) {
    fail_here(Error(Code::comm, format("{}: {}", describe_wait(now), describe_missing())), true);
    return;
  }
  fail_here(
      Error(Code::comm, format("{}: {} along {} (operation {} of channel {}) did not complete within {:.3g} s: {}",
                               name_of_rank(rank()), name_of(operation.collective.op), channel.group.name,
                               operation.number, name_of(channel.purpose), options_.timeout_s, describe_missing())),
      true);
}

bool Engine::may_wait_longer(double now) {
  Channel& channel = *probe_.channel;
  bool missing = false, busy = false;
  double least = channel.blocked(now);  // the least time that this rank or a missing one has waited
  if (least < 0) {                      // this rank is busy: it has started the operation ahead of its use
    channel.finished_at = now;
    return true;
  }
  for (size_t place = 0; place < probe_.answers.size(); ++place) {
    if (probe_.answers[place] >= probe_.number) continue;
    missing = true;
    busy |= probe_.waits[place] < 0;
    least = std::min(least, probe_.waits[place] + now - probe_.sent);
  }
  if (busy) {
    log::warning("{}: {}", describe_wait(now), describe_missing());
    channel.excused = probe_.number;
    channel.finished_at = now;
    return true;
  }
  channel.excused = 0;
  if (!missing) {  // messages may still be in flight: wait once more
    channel.finished_at = now;
    return std::exchange(channel.stalled, probe_.number) != probe_.number;
  }
  // All missing ranks are waiting themselves. Only after its own timeout does a rank find out whether it is waiting for
  // a busy rank, so this rank fails only if all of them have waited for longer than the timeout plus a margin.
  const double enough = options_.timeout_s + std::min(kMarginSeconds, options_.timeout_s / 4);
  if (least >= enough) return false;
  channel.finished_at = now - options_.timeout_s + (enough - least);
  return true;
}

double Engine::waits_since(double now) const {
  double longest = -1;
  for (const Channel* channel : active_) {
    const double waited = channel->is_patient() ? channel->blocked(now) : -1;
    if (waited >= 0 && channel->first->number == channel->excused) return -1;
    longest = std::max(longest, waited);
  }
  return longest;
}

std::string Engine::name_of_rank(int rank, std::string place) const {
  if (const int stages = stages_.load(std::memory_order_relaxed); stages > 1)
    place = format("stage {}{}{}", rank * stages / size(), place.empty() ? "" : ", ", place);
  return place.empty() ? format("rank {}", rank) : format("rank {} ({})", rank, place);
}

std::string Engine::describe_wait(double now) const {
  const Channel& channel = *probe_.channel;
  const Group& group = channel.group;
  const double seconds = now - channel.first->started;
  const std::string own = name_of_rank(rank());
  if (group.link == 0) return format("{} has been waiting for other ranks for {:.3g} s", own, seconds);
  return format("{} has been waiting for {} for {:.3g} s in send along {} (operation {} of link {})", own,
                name_of_rank(group.members[static_cast<size_t>(1 - group.index)]), seconds, group.name,
                channel.first->number, group.link);
}

std::string Engine::describe_missing() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> missing;
  for (size_t place = 0; place < probe_.answers.size(); ++place) {
    const size_t member = static_cast<size_t>(probe_.channel->group.members[place]);
    const std::string name = name_of_rank(static_cast<int>(member), member < places_.size() ? places_[member] : "");
    const int64_t answer = probe_.answers[place];
    if (answer < 0) {
      missing.push_back(format("{} does not respond: it has stopped, died or become unreachable", name));
    } else if (answer < probe_.number) {
      const double waits = probe_.waits[place];
      missing.push_back(format("{} {} (operations that it has started on this channel: {}){}", name,
                               arrived_[member] ? "has ended without starting it" : "has not started it", answer,
                               waits < 0 ? "" : format(" and has itself been waiting for {:.3g} s", waits)));
    }
  }
  if (missing.empty()) return "all ranks of its group have started it and respond, but messages are not arriving";
  return format("{}", fmt::join(missing, "; "));
}

bool Engine::receive_control_messages() {
  bool any = false;
  for (ControlMessage message; transport_->receive_control(message); any = true) {
    switch (message.kind) {
      case ControlMessage::Kind::probe: {
        const auto probed =
            std::find_if(active_.begin(), active_.end(), [&](const Channel* c) { return c->tag == message.tag; });
        const int64_t started = probed == active_.end() ? 0 : (*probed)->taken;
        transport_->send_control(
            message.from, {ControlMessage::Kind::answer, rank(), message.tag, started, waits_since(now_seconds())});
        break;
      }
      case ControlMessage::Kind::answer:
        if (probe_.channel != nullptr && probe_.channel->tag == message.tag) {
          const std::vector<int>& members = probe_.channel->group.members;
          const auto place = std::find(members.begin(), members.end(), message.from);
          if (place != members.end()) {
            probe_.answers[static_cast<size_t>(place - members.begin())] = message.number;
            probe_.waits[static_cast<size_t>(place - members.begin())] = message.waits;
          }
        }
        break;
      case ControlMessage::Kind::failed:
        fail_here(Error(static_cast<Code>(message.number), message.text).on(Scope::another_rank), false);
        break;
      case ControlMessage::Kind::arrived:
        arrived_[static_cast<size_t>(message.from)] = true;
        break;
    }
  }
  return any;
}

void Engine::send_to_all_ranks(const ControlMessage& message) noexcept {
  ControlMessage signed_message = message;
  signed_message.from = rank();
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) transport_->send_control(peer, signed_message);
}

void Engine::fail_here(const Error& error, bool tell) noexcept {
  if (tell && !failure_reported_) {
    failure_reported_ = true;
    ControlMessage message{.kind = ControlMessage::Kind::failed, .number = static_cast<int64_t>(error.code())};
    std::strncpy(message.text, error.what(), sizeof(message.text) - 1);
    send_to_all_ranks(message);
  }
  if (failed_) return;
  failed_ = true;
  probe_.channel = nullptr;
  delayed_.clear();
  if (transport_->cancel()) device::keep_memory();
  Operation* submitted = nullptr;
  {
    const std::lock_guard lock(mutex_);
    failure_ = error;
    submitted = std::exchange(submitted_, nullptr);
    last_submitted_ = nullptr;
  }
  const auto finish_all = [](Operation* operation) {
    while (operation != nullptr) finish(*std::exchange(operation, operation->next), Operation::kFailed);
  };
  for (Channel* channel : active_) {
    channel->filling = channel->last = nullptr;
    finish_all(std::exchange(channel->first, nullptr));
  }
  finish_all(submitted);
}

void Engine::complete_barrier() {
  if (barrier_reported_ || std::find(arrived_.begin(), arrived_.end(), false) != arrived_.end() ||
      !transport_->control_sent())
    return;
  barrier_reported_ = true;
  {
    const std::lock_guard lock(mutex_);
    barrier_done_ = true;
  }
  answered_.notify_all();
}

}  // namespace trainer::comm
