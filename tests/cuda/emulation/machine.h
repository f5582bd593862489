#pragma once
// State shared by the parts of the emulated runtime: device memory, streams, and the lock over all of it.
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "cuda_runtime.h"

namespace emulator {

/// An item of a stream's work. Returns false if it has to wait for work that is not queued yet; it is then tried again.
using Work = std::function<bool()>;

/// Recorded work of one stream.
struct Graph {
  std::vector<Work> work;
};

/// Work in order; `queued` counts all items ever queued, `done` those that have run.
struct Stream {
  int device = 0;
  std::deque<Work> queue;
  uint64_t queued = 0, done = 0;
  bool advancing = false;
  Graph* capture = nullptr;  // records the work instead, while capturing
  int priority = 0;          // without effect: the emulator runs streams as late as it can
};
/// A position in a stream: the number of items queued before it.
struct Event {
  Stream* stream = nullptr;
  uint64_t place = 0;
};

/// A range of addresses that may be accessed only while device work runs. An allocation ends at the end of a page,
/// up to its alignment, whose padding is a canary; the next page is never accessible.
class Memory {
 public:
  Memory();
  std::byte* allocate(size_t bytes);
  bool release(std::byte* memory);
  /// Makes the memory accessible while device work runs.
  void open(bool now);
  bool holds(const void* address, size_t bytes) const;
  bool inside(const void* address) const {
    return address >= static_cast<const void*>(base_) && address < static_cast<const void*>(base_ + kSpace);
  }
  size_t held() const { return held_; }

 private:
  static constexpr size_t kSpace = size_t{64} << 30;
  struct Piece {
    std::byte* start;
    size_t pages, bytes;  // pages: their size in bytes
  };
  static void protect(std::byte* start, size_t bytes, bool open);
  [[noreturn]] static void touched(const void* address);

  std::byte* base_ = nullptr;
  size_t used_ = 0, held_ = 0;
  bool open_ = false;
  std::map<std::byte*, Piece> blocks_;
  std::map<std::byte*, size_t> free_;
};

struct Machine {
  std::mutex mutex;
  std::condition_variable changed;  // work was queued or withdrawn: waiting threads try again
  Memory memory;
  int devices = 1, instances = 1;
  std::set<Stream*> streams;
  std::map<int, std::set<int>> touched;         // devices used, by thread
  std::map<const void*, size_t> shared_limits;  // kernels that requested more than the default
  int depth = 0;                                // nesting of advance(): a wait in one stream advances a different one
};
Machine& machine();
using Lock = std::unique_lock<std::mutex>;

/// Returns the device of the calling thread.
int current_device();
/// The devices that the calling thread sees: the first one, and their number.
int first_visible_device();
int visible_devices();
/// The lock of a call that needs the thread's device.
struct Call : Lock {
  Call();
};
cudaError_t note(cudaError_t status);

// With the machine locked:

/// Runs the stream's work up to `place` until an item has to wait for other streams; returns true if `place` was
/// reached.
bool advance(Stream& stream, uint64_t place);
/// Waits until the stream has reached `place`.
void wait_for(Lock& lock, Stream& stream, uint64_t place);
/// Waits for all work of the calling thread's device.
void wait_for_device(Lock& lock);
cudaError_t enqueue(Stream* stream, Work work);

}  // namespace emulator
