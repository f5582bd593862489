#pragma once
// The engine's state per operation and per channel, shared by engine.cpp and watchdog.cpp.
#include <array>

#include "comm/engine.h"

namespace trainer::comm {

struct Engine::Operation final : Pending {
  // Values of `state`. A waiter sets kSleeping before it sleeps, so that the system call for a wake-up is made only if
  // necessary.
  static constexpr uint32_t kRunning = 0, kDone = 1, kFailed = 2, kSleeping = 4;

  explicit Operation(Engine& owner) : engine(owner) {}
  Interval wait() override { return engine.wait(*this); }
  void abandon() noexcept override { engine.abandon(*this); }

  Engine& engine;
  Collective collective;
  Channel* channel = nullptr;
  int64_t number = 0;  // position on its channel, from 1
  double started = 0;
  double blocked_since = 0;  // state kSleeping: when the compute thread began to wait
  Interval flight;  // from its first message to its end; owned by the progress thread until the operation has ended
  Segments segments;
  int64_t begun = 0, ended = 0;  // number of segments started and ended
  Operation* next = nullptr;     // in the pool, the list of submitted operations, or the channel
  std::atomic<uint32_t> state{kRunning};
  bool watched = false;  // runs outside the engine; mark_ended() sets `over`
  std::atomic<bool> over{false};
};

struct Engine::Channel {
  struct Running : Flow {
    Operation* operation = nullptr;  // null: the slot is free
    int open = 0;                    // incomplete messages of this step
  };

  /// True if operations may wait for busy ranks for longer than the timeout.
  bool is_patient() const { return purpose == Purpose::control || group.link > 0; }
  /// Returns the seconds for which the compute thread has been blocked in an operation of this channel, or a GPU in one
  /// that runs outside the engine; negative: neither is.
  double blocked(double now) const {
    for (const Operation* each = first; each != nullptr; each = each->next) {
      if (each->watched) return now - each->started;
      if (each->state.load(std::memory_order_acquire) == Operation::kSleeping) return now - each->blocked_since;
    }
    return -1;
  }

  Group group;
  Purpose purpose = Purpose::critical;
  int tag = 0;            // tag of slot 0
  int64_t submitted = 0;  // guarded by the engine's mutex; the progress thread owns the rest
  bool active = false;
  Operation *first = nullptr, *last = nullptr;  // not done yet
  Operation* filling = nullptr;                 // the operation that still has segments to start
  std::array<Running, kFlows> flows;
  int64_t next_flow = 0;
  int64_t taken = 0;       // number of operations taken from the submitted list
  int64_t excused = 0;     // number of the operation that is waiting for a busy rank
  int64_t stalled = 0;     // number of the operation that all ranks have started but that has not ended
  double finished_at = 0;  // when the last operation ended, or the watchdog last extended the wait
};

}  // namespace trainer::comm
