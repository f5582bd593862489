#pragma once
// Work that is concurrent with a device's compute thread: further queues on its memory, events in stream order, and the
// host as a device.
#include <memory>

#include "device/device.h"

namespace trainer::device {

/// An event in the stream of work enqueued on a device. On a CPU every event is complete immediately.
class Mark {
 public:
  virtual ~Mark() = default;
  /// Records the event after the work enqueued so far.
  virtual void set() {}
  /// Blocks until the device has reached the last call of set(). May be called by any thread.
  virtual void wait() {}
};

/// Makes an event; the device must outlive it.
std::unique_ptr<Mark> make_mark(Device& device);

/// The kind of host memory, from its device's point of view.
enum class HostMemory : uint8_t {
  plain,    // the device is a CPU, so there is no link
  pinned,   // copies run at link speed
  staged,   // at least partly pageable: copies are staged through pinned buffers
  pageable  // no more memory can be pinned, not even such buffers
};

/// Returns a second work queue on the device's memory, for a different thread; on a CPU it computes with one thread.
/// `memory`: the kind of host memory that the queue copies from and to. An internal error on a dry device.
std::unique_ptr<Device> make_lane(Device& device, HostMemory memory = HostMemory::pinned);

/// Returns the host of the device as a CPU device with the same number of threads. The device copies from and to its
/// memory, which is `pinned` for a GPU. Memory that the system refuses to pin is pageable, with a warning.
std::unique_ptr<Device> make_host(const Device& device, bool pinned = true);

/// Returns the kind of memory allocated so far by a host that make_host() made for `device`.
HostMemory memory_of(const Device& device, Device& host);

}  // namespace trainer::device
