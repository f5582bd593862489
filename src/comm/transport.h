#pragma once
// Transport: point-to-point messages between ranks. All collectives are built on it (collective.h), so threads and
// processes run the same schedules. Only its rank's progress thread uses it (engine.h).
#include <cstddef>
#include <cstdint>

#include "comm/notifier.h"

namespace trainer::comm {

/// A message that can be sent to any rank at any time, independently of all operations.
struct ControlMessage {
  enum class Kind : int32_t { probe, answer, failed, arrived };
  Kind kind = Kind::probe;
  int32_t from = 0;
  int32_t tag = 0;     // probe, answer: the probed channel
  int64_t number = 0;  // probe: number of the waiting operation; answer: operations started; failed: the Code
  /// Answer: seconds for which the rank has itself been waiting in a control operation; negative: it is not waiting, or
  /// is waiting for a busy rank.
  double waits = -1;
  char text[1000] = {};  // failed: the message
};

class Transport {
 public:
  virtual ~Transport() = default;

  /// The first and the last call on a transport. `clean`: all ranks have reached the end, so no message will follow.
  virtual void open() {}
  virtual void close(bool /*clean*/) noexcept {}
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int max_tag() const { return INT32_MAX; }

  /// Start a message. progress() decrements *open when the memory may be reused (send) or has been filled (receive).
  /// Messages with the same sender, receiver and tag are matched in order; their sizes must agree (internal error).
  virtual void send(int peer, int tag, const std::byte* data, int64_t bytes, int* open) = 0;
  virtual void receive(int peer, int tag, std::byte* data, int64_t bytes, int* open) = 0;
  /// Makes progress on messages; returns true if any message completed.
  virtual bool progress() = 0;
  /// Cancels all messages that were started; progress() reports none of them. Returns true if some may still read or
  /// write this rank's memory, which must then outlive the transport.
  virtual bool cancel() noexcept = 0;

  virtual void send_control(int peer, const ControlMessage& message) noexcept = 0;
  virtual bool receive_control(ControlMessage& message) = 0;
  /// True if all control messages have been sent.
  virtual bool control_sent() { return true; }

  /// Returns the notifier. It is notified when an operation starts and, if peers_notify(), whenever progress() has work
  /// to do.
  virtual Notifier& notifier() = 0;
  virtual bool peers_notify() const = 0;
};

}  // namespace trainer::comm
