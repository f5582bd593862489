// Device memory, streams and events of the emulated CUDA runtime.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <set>

#include "cuda_runtime.h"

namespace emulator {

/// Work in order; `done` of what was ever queued has run.
struct Stream {
  struct Work {
    std::function<void()> act;
  };
  std::deque<Work> queue;
  uint64_t queued = 0, done = 0;
};
/// A place in a stream.
struct Event {
  Stream* stream = nullptr;
  uint64_t place = 0;
};

namespace {

constexpr size_t kPage = 4096, kAlign = 256, kSpace = size_t{64} << 30;
constexpr unsigned char kCanary = 0xc3;

size_t round_to(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// One range of addresses that nobody may touch but while device work runs. An allocation ends at the end of a page,
/// up to its alignment, where a canary lies; behind it a page that always stays closed.
class Memory {
 public:
  Memory() {
    base_ =
        static_cast<std::byte*>(mmap(nullptr, kSpace, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (base_ == MAP_FAILED) fail("no address space for device memory");
    struct sigaction action {};
    action.sa_sigaction = [](int, siginfo_t* info, void*) { touched(info->si_addr); };
    action.sa_flags = SA_SIGINFO | SA_RESETHAND | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
  }

  std::byte* allocate(size_t bytes) {
    const size_t pages = round_to(std::max<size_t>(bytes, 1), kPage);
    if (held_ + pages > kDeviceMemory) return nullptr;
    const auto gap =
        std::find_if(free_.begin(), free_.end(), [&](const auto& item) { return item.second >= pages + kPage; });
    std::byte* start = nullptr;
    if (gap != free_.end()) {
      start = gap->first;
      if (const size_t rest = gap->second - pages - kPage; rest > 0) free_.emplace(start + pages + kPage, rest);
      free_.erase(gap);
    } else {
      if (used_ + pages + kPage > kSpace) return nullptr;
      start = base_ + used_;
      used_ += pages + kPage;
    }
    held_ += pages;
    protect(start, pages, true);
    std::memset(start, 0xff, pages);
    std::byte* memory = start + pages - round_to(std::max<size_t>(bytes, 1), kAlign);
    std::memset(memory + bytes, kCanary, static_cast<size_t>(start + pages - (memory + bytes)));
    if (!open_) protect(start, pages, false);
    blocks_[memory] = {start, pages, bytes};
    return memory;
  }

  bool release(std::byte* memory) {
    const auto it = blocks_.find(memory);
    if (it == blocks_.end()) return false;
    const Piece piece = it->second;
    protect(piece.start, piece.pages, true);
    for (const std::byte* at = memory + piece.bytes; at < piece.start + piece.pages; ++at)
      if (*at != std::byte{kCanary}) fail("a write past the end of an allocation of %zu bytes", piece.bytes);
    madvise(piece.start, piece.pages, MADV_DONTNEED);
    protect(piece.start, piece.pages, false);
    held_ -= piece.pages;
    blocks_.erase(it);
    free_.emplace(piece.start, piece.pages + kPage);
    return true;
  }

  /// While device work runs.
  void open(bool now) {
    open_ = now;
    for (const auto& [memory, piece] : blocks_) protect(piece.start, piece.pages, now);
  }
  bool holds(const void* address, size_t bytes) const {
    const auto* at = static_cast<const std::byte*>(address);
    auto it = blocks_.upper_bound(const_cast<std::byte*>(at));
    if (it == blocks_.begin()) return false;
    --it;
    return at + bytes <= it->first + it->second.bytes;
  }
  bool inside(const void* address) const {
    return address >= static_cast<const void*>(base_) && address < static_cast<const void*>(base_ + kSpace);
  }
  size_t held() const { return held_; }

 private:
  struct Piece {
    std::byte* start;
    size_t pages, bytes;  // pages: in bytes
  };
  static void protect(std::byte* start, size_t bytes, bool open) {
    if (mprotect(start, bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) fail("mprotect failed");
  }
  [[noreturn]] static void touched(const void* address);

  std::byte* base_ = nullptr;
  size_t used_ = 0, held_ = 0;
  bool open_ = false;
  std::map<std::byte*, Piece> blocks_;
  std::map<std::byte*, size_t> free_;
};

struct Machine {
  std::recursive_mutex mutex;
  Memory memory;
  std::set<Stream*> streams;
  std::map<const void*, size_t> shared_limits;  // kernels that asked for more than the default
  int depth = 0;                                // of work that runs: a wait in a stream runs another stream
};
Machine& machine() {
  static Machine& all = *new Machine;  // never destroyed: devices may outlive static objects
  return all;
}
using Lock = std::lock_guard<std::recursive_mutex>;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t note(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

void Memory::touched(const void* address) {
  if (machine().memory.inside(address))
    fail("%p is device memory: touched by host code, by a kernel outside every allocation, or after it was freed",
         address);
  fail("segmentation fault at %p", address);
}

void run_until(Stream& stream, uint64_t place) {
  Machine& m = machine();
  if (stream.done >= place) return;
  if (m.depth++ == 0) m.memory.open(true);
  while (stream.done < place) {
    Stream::Work work = std::move(stream.queue.front());
    stream.queue.pop_front();
    work.act();
    ++stream.done;
  }
  if (--m.depth == 0) m.memory.open(false);
}

cudaError_t enqueue(Stream* stream, std::function<void()> act) {
  Machine& m = machine();
  if (!m.streams.contains(stream)) return note(cudaErrorInvalidResourceHandle);
  stream->queue.push_back({std::move(act)});
  ++stream->queued;
  if (m.depth == 0 && stream->queue.size() > 4096) run_until(*stream, stream->queued);
  return cudaSuccess;
}

/// A range that a copy touches lies in one allocation, or in host memory.
bool valid(const void* address, size_t bytes, bool device) {
  const Memory& memory = machine().memory;
  return device ? memory.holds(address, bytes) : !memory.inside(address);
}

}  // namespace

cudaError_t allow_shared(const void* kernel, size_t bytes) {
  const Lock lock(machine().mutex);
  if (bytes > kSharedLimit) return note(cudaErrorInvalidValue);
  size_t& limit = machine().shared_limits[kernel];
  limit = std::max(limit, bytes);
  return cudaSuccess;
}

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> thread) {
  const Lock lock(machine().mutex);
  const dim3 grid = config.gridDim, block = config.blockDim;
  const auto it = machine().shared_limits.find(kernel);
  const size_t limit = it == machine().shared_limits.end() ? kSharedDefault : it->second;
  if (grid.count() == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535 || block.count() == 0 ||
      block.count() > 1024 || block.z > 64)
    return note(cudaErrorInvalidConfiguration);
  if (config.dynamicSmemBytes > limit) return note(cudaErrorInvalidValue);
  return enqueue(config.stream, [grid, block, bytes = config.dynamicSmemBytes, thread = std::move(thread)] {
    run_grid(grid, block, bytes, thread);
  });
}

}  // namespace emulator

using namespace emulator;

const char* cudaGetErrorName(cudaError_t status) {
  switch (status) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
  }
  return "unknown";
}
const char* cudaGetErrorString(cudaError_t) { return "emulated"; }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int ordinal) { return note(ordinal == 0 ? cudaSuccess : cudaErrorInvalidValue); }
cudaError_t cudaGetDevice(int* ordinal) {
  *ordinal = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  switch (which) {
    case cudaDevAttrMultiProcessorCount:
      *value = 4;
      break;
    case cudaDevAttrL2CacheSize:
      *value = 1 << 20;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(kSharedLimit);
      break;
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::strcpy(properties->name, "emulated");
  properties->totalGlobalMem = kDeviceMemory;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int) {
  std::strncpy(id, "0000:00:00.0", static_cast<size_t>(length));
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  const Lock lock(machine().mutex);
  for (Stream* stream : machine().streams) run_until(*stream, stream->queued);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const Lock lock(machine().mutex);
  *total_bytes = kDeviceMemory;
  *free_bytes = kDeviceMemory - machine().memory.held();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  const Lock lock(machine().mutex);
  *memory = machine().memory.allocate(bytes);
  return note(*memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaFree(void* memory) {
  const Lock lock(machine().mutex);
  if (memory == nullptr) return cudaSuccess;
  cudaDeviceSynchronize();
  return note(machine().memory.release(static_cast<std::byte*>(memory)) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  *memory = std::malloc(bytes);
  return note(*memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  const Lock lock(machine().mutex);
  if (width == 0 || rows == 0) return cudaSuccess;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (to_pitch < width || from_pitch < width || !valid(to, to_pitch * (rows - 1) + width, to_device) ||
      !valid(from, from_pitch * (rows - 1) + width, from_device))
    return note(cudaErrorInvalidValue);
  return enqueue(stream, [=] {
    for (size_t row = 0; row < rows; ++row)
      std::memcpy(static_cast<std::byte*>(to) + row * to_pitch, static_cast<const std::byte*>(from) + row * from_pitch,
                  width);
  });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  const Lock lock(machine().mutex);
  if (bytes == 0) return cudaSuccess;
  if (!valid(to, bytes, true)) return note(cudaErrorInvalidValue);
  return enqueue(stream, [=] { std::memset(to, value, bytes); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const Lock lock(machine().mutex);
  *stream = new Stream;
  machine().streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(machine().mutex);
  run_until(*stream, stream->queued);
  machine().streams.erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(machine().mutex);
  if (!machine().streams.contains(stream)) return note(cudaErrorInvalidResourceHandle);
  run_until(*stream, stream->queued);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock(machine().mutex);
  if (event->stream == nullptr || event->stream == stream) return cudaSuccess;
  return enqueue(stream, [first = event->stream, place = event->place] {
    if (machine().streams.contains(first)) run_until(*first, place);
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new Event;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(machine().mutex);
  if (!machine().streams.contains(stream)) return note(cudaErrorInvalidResourceHandle);
  *event = {stream, stream->queued};
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock(machine().mutex);
  if (event->stream != nullptr && machine().streams.contains(event->stream)) run_until(*event->stream, event->place);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(machine().mutex);
  Stream* stream = event->stream;
  if (stream == nullptr || !machine().streams.contains(stream) || stream->done >= event->place) return cudaSuccess;
  run_until(*stream, stream->done + 1);  // a program that polls gets there
  return cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;
  return cudaSuccess;
}
