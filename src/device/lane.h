#pragma once
// Work beside what a device is given by the thread that computes: second orders of work on its memory, moments in its
// own order, and the host as a device.
#include <memory>

#include "device/device.h"

namespace trainer::device {

/// A moment in the order of what a device is given to do. On a CPU every moment is reached at once.
class Mark {
 public:
  virtual ~Mark() = default;
  /// Now: after what was run before.
  virtual void set() {}
  /// Returns when the device has got to where set() was called last. Any thread.
  virtual void wait() {}
};

/// The device outlives it.
std::unique_ptr<Mark> make_mark(Device& device);

/// A second order of work on the memory of the device, for another thread; a CPU computes there with one thread. An
/// internal error on a dry device.
std::unique_ptr<Device> make_lane(Device& device);

/// The host of the device as a CPU device of as many threads. The device copies from and to its memory.
std::unique_ptr<Device> make_host(const Device& device);

}  // namespace trainer::device
