#pragma once
// Work that is concurrent with a device's compute thread: further queues on its memory, events in stream order, and the
// host as a device.
#include <memory>

#include "device/device.h"

namespace trainer::device {

/// An event in a device's work queue. On a CPU every event is reached immediately.
class Mark {
 public:
  virtual ~Mark() = default;
  /// Records the event after the work enqueued so far.
  virtual void set() {}
  /// Returns when the device has reached the point of the last set(). Thread-safe.
  virtual void wait() {}
};

/// The device must outlive the mark.
std::unique_ptr<Mark> make_mark(Device& device);

/// The kind of host memory, from its device's point of view.
enum class HostMemory : uint8_t {
  plain,    // the device is a CPU: there is no link
  pinned,   // copies go at the speed of the link
  staged,   // pageable, at least in part: copies go through pinned buffers
  pageable  // no more memory can be pinned, not even such buffers
};

/// Returns a further work queue on the memory of the device, for another thread; on a CPU it computes with one thread.
/// `memory`: the memory that the queue copies from and to. An internal error on a dry device.
std::unique_ptr<Device> make_lane(Device& device, HostMemory memory = HostMemory::pinned);

/// Returns the host of the device as a CPU device with the same number of threads. The device copies from and to its
/// memory, which is `pinned` for a GPU. Memory that the system refuses to pin is pageable, with a warning.
std::unique_ptr<Device> make_host(const Device& device, bool pinned = true);

/// Returns the kind of memory allocated so far by a host that make_host() made for `device`.
HostMemory memory_of(const Device& device, Device& host);

}  // namespace trainer::device
