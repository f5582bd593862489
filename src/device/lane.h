#pragma once
// Work concurrent with a device's compute thread: further queues on its memory, events in its own order, and the host
// as a device.
#include <memory>

#include "device/device.h"

namespace trainer::device {

/// An event in the order of the work queued on a device. On a CPU every event is reached immediately.
class Mark {
 public:
  virtual ~Mark() = default;
  /// Records the event after the work queued so far.
  virtual void set() {}
  /// Returns when the device has got to where set() was called last. Any thread.
  virtual void wait() {}
};

/// The device outlives it.
std::unique_ptr<Mark> make_mark(Device& device);

/// The kind of host memory as its device sees it.
enum class HostMemory : uint8_t {
  plain,    // the device is a CPU: there is no link
  pinned,   // copies go at the speed of the link
  staged,   // pageable, at least a part: copies go through pinned buffers
  pageable  // no more memory can be pinned, not even such buffers
};

/// Returns a second order of work on the memory of the device, for another thread; a CPU computes there with one
/// thread. `memory`: the memory that the queue copies from and to. An internal error on a dry device.
std::unique_ptr<Device> make_lane(Device& device, HostMemory memory = HostMemory::pinned);

/// Returns the host of the device as a CPU device with as many threads. The device copies from and to its memory, which
/// is `pinned` for a GPU. Memory that the system refuses to pin is pageable, with a warning.
std::unique_ptr<Device> make_host(const Device& device, bool pinned = true);

/// Returns the kind of memory allocated so far by a host that make_host() made for `device`.
HostMemory memory_of(const Device& device, Device& host);

}  // namespace trainer::device
