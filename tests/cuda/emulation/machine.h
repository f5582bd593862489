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

/// A piece of a stream's work. False: it has to wait for work that is not queued yet, and is tried again.
using Work = std::function<bool()>;

/// Recorded work of one stream.
struct Graph {
  std::vector<Work> work;
};

/// Work in order; `done` of what was ever queued has run.
struct Stream {
  int device = 0;
  std::deque<Work> queue;
  uint64_t queued = 0, done = 0;
  bool advancing = false;
  Graph* capture = nullptr;  // takes what is queued
};
/// A place in a stream.
struct Event {
  Stream* stream = nullptr;
  uint64_t place = 0;
};

/// A range of addresses that may be accessed only while device work runs. An allocation ends at the end of a page,
/// up to its alignment, where a canary lies; behind it a page that always stays closed.
class Memory {
 public:
  Memory();
  std::byte* allocate(size_t bytes);
  bool release(std::byte* memory);
  /// While device work runs.
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
    size_t pages, bytes;  // pages: in bytes
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
  std::condition_variable changed;  // something was queued, or given up: what waits may go on
  Memory memory;
  int devices = 1;
  std::set<Stream*> streams;
  std::map<int, std::set<int>> touched;         // devices, by thread
  std::map<const void*, size_t> shared_limits;  // kernels that requested more than the default
  int depth = 0;                                // nesting of streams that advance: a wait in one advances another
};
Machine& machine();
using Lock = std::unique_lock<std::mutex>;

/// The device of the calling thread.
int current_device();
/// The devices that it sees: the first one, and how many.
int first_visible_device();
int visible_devices();
/// The lock of a call that needs the thread's device.
struct Call : Lock {
  Call();
};
cudaError_t note(cudaError_t status);

// With the machine locked:

/// Runs the stream's work up to `place` as far as that does not wait for others; whether it got there.
bool advance(Stream& stream, uint64_t place);
/// Returns when the stream has got to `place`.
void wait_for(Lock& lock, Stream& stream, uint64_t place);
/// Waits for all work of the calling thread's device.
void wait_for_device(Lock& lock);
cudaError_t enqueue(Stream* stream, Work work);

}  // namespace emulator
