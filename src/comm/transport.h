#pragma once
// Transport: messages between ranks, point to point. All collectives are built on it (collective.h), so threads and
// processes run the same schedules. It is used by one thread only, the progress thread of its rank (engine.h).
#include <cstddef>
#include <cstdint>

#include "comm/bell.h"

namespace trainer::comm {

/// A control message can reach any rank at any time, independently of all operations.
struct ControlMessage {
  enum class Kind : int32_t { probe, answer, failed, meet };
  Kind kind = Kind::probe;
  int32_t from = 0;
  int32_t tag = 0;     // probe, answer: the channel in question
  int64_t number = 0;  // probe: number of the operation that waits; answer: operations started there; failed: the Code
  /// Answer: seconds that the rank itself has waited for ranks none of which is busy; negative: it does not wait.
  double waits = -1;
  char text[1000] = {};  // failed: the message
};

class Transport {
 public:
  virtual ~Transport() = default;

  /// Called first (open) and last (close). `clean`: all ranks have reached the end, so no message follows.
  virtual void open() {}
  virtual void close(bool /*clean*/) noexcept {}
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int max_tag() const { return INT32_MAX; }

  /// Start a message. *open is decremented in progress() when the memory may be reused (send) or is filled (receive).
  /// Messages with the same sender, receiver and tag are matched in order; their sizes must agree (internal error).
  virtual void send(int peer, int tag, const std::byte* data, int64_t bytes, int* open) = 0;
  virtual void receive(int peer, int tag, std::byte* data, int64_t bytes, int* open) = 0;
  /// Makes progress on messages; returns true if any was completed.
  virtual bool progress() = 0;
  /// Cancels everything that was started. Afterwards this rank's memory is no longer written.
  virtual void cancel() noexcept = 0;

  virtual void send_control(int peer, const ControlMessage& message) noexcept = 0;
  virtual bool receive_control(ControlMessage& message) = 0;
  /// True if all control messages have been sent.
  virtual bool control_sent() { return true; }

  /// Returns the bell, which is rung when an operation starts and, if peers_ring(), whenever progress() has work to do.
  virtual Bell& bell() = 0;
  virtual bool peers_ring() const = 0;
};

}  // namespace trainer::comm
