#pragma once
// Transport: messages between ranks, point to point. All collectives are built on it (collective.h), so threads and
// processes run the same schedules. Used by one thread only, the progress thread of its rank (engine.h).
#include <cstddef>
#include <cstdint>

#include "comm/bell.h"

namespace trainer::comm {

/// A control message reaches any rank at any time, outside of all operations.
struct ControlMessage {
  enum class Kind : int32_t { probe, answer, failed, meet };
  Kind kind = Kind::probe;
  int32_t from = 0;
  int32_t tag = 0;     // probe, answer: the channel in question
  int64_t number = 0;  // probe: number of the operation that waits; answer: operations started there; failed: the Code
  double waits =
      -1;  // answer: seconds that the rank itself waits for others, none of which is busy; below 0: it does not
  char text[1000] = {};  // failed: the message
};

class Transport {
 public:
  virtual ~Transport() = default;

  /// open() is the first call, close() the last. `clean`: all ranks have reached the end, so no message follows.
  virtual void open() {}
  virtual void close(bool /*clean*/) noexcept {}
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int max_tag() const { return INT32_MAX; }

  /// Start a message; *open is decremented inside progress() when the memory may be reused (send) or is filled
  /// (receive). Messages of one sender, receiver and tag are matched in order; their sizes must agree (internal error).
  virtual void send(int peer, int tag, const std::byte* data, int64_t bytes, int* open) = 0;
  virtual void receive(int peer, int tag, std::byte* data, int64_t bytes, int* open) = 0;
  /// Makes progress on messages; returns whether any was finished.
  virtual bool progress() = 0;
  /// Cancels everything that was started. After it returns, this rank's memory is not written any more.
  virtual void cancel() noexcept = 0;

  virtual void send_control(int peer, const ControlMessage& message) noexcept = 0;
  virtual bool receive_control(ControlMessage& message) = 0;
  /// True if all control messages have been sent.
  virtual bool control_sent() { return true; }

  /// The bell rings when an operation starts and, where peers_ring(), whenever progress() has something to do.
  virtual Bell& bell() = 0;
  virtual bool peers_ring() const = 0;
};

}  // namespace trainer::comm
