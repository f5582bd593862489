#pragma once
// Work concurrent with a device's compute thread: additional queues on the device's memory, events in stream order, and
// the host as a device.
#include <memory>

#include "device/device.h"

namespace trainer::device {

/// An event in a device's work queue. On a CPU every event completes immediately.
class Event {
 public:
  virtual ~Event() = default;
  /// Records the event after the work enqueued so far.
  virtual void set() {}
  /// Returns when the device has reached the event of the last set(). Thread-safe.
  virtual void wait() {}
};

/// The device must outlive the event.
std::unique_ptr<Event> make_event(Device& device);

/// The kind of host memory, from the device's point of view.
enum class HostMemory : uint8_t {
  plain,    // the device is a CPU: copies cross no link
  pinned,   // copies run at link speed
  staged,   // pageable, at least in part: copies go through pinned buffers
  pageable  // no memory can be pinned, not even for such buffers
};

/// Creates an additional work queue on the device's memory, for use by another thread; on a CPU it computes with one
/// thread. `memory` is the kind of host memory that the queue copies from and to. An internal error on a dry device.
std::unique_ptr<Device> make_stream(Device& device, HostMemory memory = HostMemory::pinned);

/// Creates a CPU device that represents the host of `device`, with the same number of threads. For a GPU its memory is
/// pinned if `pinned`; memory that the system refuses to pin is pageable, with a warning.
std::unique_ptr<Device> make_host(const Device& device, bool pinned = true);

/// Returns the kind of the memory allocated so far by a host that make_host() created for `device`.
HostMemory memory_of(const Device& device, Device& host);

}  // namespace trainer::device
