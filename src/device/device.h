#pragma once
// A device runs kernels and owns memory. A CPU computes synchronously on a thread pool. A CUDA device computes in the
// order of its compute stream; only kernels and the copies below may touch its memory. A dry device computes nothing
// and allocates nothing. It represents a GPU, or a CPU with a given number of threads and instruction set; one pass on
// it yields the memory plan and the cost of a step.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "device/cuda/facts.h"
#include "device/isa.h"
#include "device/thread_pool.h"

namespace trainer::device {

enum class DeviceKind { cpu, cuda };

/// The category of memory for messages between ranks. Every communicator has a block, of which short messages use
/// little: a CPU touches its pages only when they are used, and makes none of them huge.
inline constexpr const char* kMessageMemory = "communication";

/// Allocated bytes of one category ("weights", "gradients", …), now and at their peak.
struct MemoryUse {
  int64_t current = 0, peak = 0;
};

/// Pinned host memory for a GPU. Copies between it and the device overlap with the host and the compute stream.
class Mirror {
 public:
  virtual ~Mirror() = default;
  /// Returns at least `bytes` of memory; the previous content is lost. Waits for copies in flight.
  virtual std::byte* memory(int64_t bytes) = 0;
  /// Starts a copy to memory() + at, after the work already queued on the device and concurrent with later work.
  virtual void fetch(int64_t at, const std::byte* from, int64_t bytes) = 0;
  /// True if the copy that fetch() started has completed. Thread-safe.
  virtual bool is_fetched() const = 0;
  /// Copies from memory() + at, in stream order with the device's operators.
  virtual void put(std::byte* to, int64_t at, int64_t bytes) = 0;
};

/// Recorded device work, which can be replayed on the same memory with the same arguments.
class Graph {
 public:
  virtual ~Graph() = default;
  /// Runs the graph, in stream order with the operators.
  virtual void run() = 0;
};

/// A library that GPU operators call: its handle, and the algorithms chosen for the run.
class Library {
 public:
  virtual ~Library() = default;
};
/// The libraries of a rank's GPU, which ops/cuda fills in. A device shares them with the dry devices that represent it,
/// since a library's workspace is planned before the library runs. Like the device, they are used by one thread at a
/// time.
struct Libraries {
  std::unique_ptr<Library> gemm;
  std::unique_ptr<Library> attention;  // null: the built-in kernels
};

class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  DeviceKind kind() const { return kind_; }
  bool dry() const { return dry_; }
  /// Host threads of this rank. CPU kernels run on them; with a GPU they compute initial values and write checkpoints.
  int threads() const { return threads_; }
  Isa isa() const { return isa_; }  // instruction set of the CPU kernels
  /// Returns the properties of the GPU that this device is or represents; an internal error on a CPU.
  const cuda::Facts& gpu() const;
  const std::shared_ptr<Libraries>& libraries() const { return libraries_; }  // null on a CPU
  /// Returns the host threads; an internal error on a dry device.
  virtual ThreadPool& host_pool();

  /// Returns zeroed memory; nullptr on a dry device. CPU: 64-byte aligned (2 MiB and huge pages if large), touched by
  /// the device's threads except for kMessageMemory. CUDA: 256-byte aligned. Throws Code::plan naming the category if
  /// the device is out of memory.
  std::byte* allocate(const std::string& category, int64_t bytes);
  void release(const std::string& category, std::byte* memory, int64_t bytes) noexcept;
  const std::map<std::string, MemoryUse>& memory() const { return memory_; }
  int64_t memory_total() const;
  /// Every address and length that is returned, or planned inside a block, is a multiple of this many bytes.
  int64_t alignment() const { return kind_ == DeviceKind::cuda ? 256 : 64; }

  /// Copies in stream order with the operators; does nothing on a dry device. When copy_to_host returns, the copy is
  /// complete; when copy_to_device returns, `from` may be reused.
  void copy_to_host(void* to, const std::byte* from, int64_t bytes);
  void copy_to_device(std::byte* to, const void* from, int64_t bytes);
  /// Copies within the device: `rows` rows of `width` bytes, `*_pitch` bytes apart; the pitch of a single row is
  /// ignored.
  void copy_rows(std::byte* to, int64_t to_pitch, const std::byte* from, int64_t from_pitch, int64_t rows,
                 int64_t width);
  void clear(std::byte* to, int64_t bytes);
  /// Returns when all work enqueued so far is done.
  virtual void synchronize() {}
  /// GPU only; an internal error on other devices.
  virtual std::unique_ptr<Mirror> make_mirror();
  /// Calls `work`, whose host code runs; its device work (operators and copies within the device) is recorded instead
  /// of executed. Throws Code::device for operations that cannot be captured, such as waiting. GPU only; an internal
  /// error on other devices.
  virtual std::unique_ptr<Graph> record(const std::function<void()>& work);

 protected:
  Device(DeviceKind kind, bool dry, int threads, Isa isa) : kind_(kind), dry_(dry), threads_(threads), isa_(isa) {}
  Device(cuda::Facts gpu, bool dry, int threads, std::shared_ptr<Libraries> libraries)
      : kind_(DeviceKind::cuda),
        dry_(dry),
        threads_(threads),
        isa_(Isa::plain),
        gpu_(std::move(gpu)),
        libraries_(std::move(libraries)) {}
  virtual std::byte* allocate_impl(const std::string& category, int64_t bytes) = 0;  // nullptr: out of memory
  virtual void release_impl(std::byte* memory, int64_t bytes) noexcept = 0;
  virtual void to_host_impl(void*, const std::byte*, int64_t) {}
  virtual void to_device_impl(std::byte*, const void*, int64_t) {}
  virtual void copy_rows_impl(std::byte*, int64_t, const std::byte*, int64_t, int64_t, int64_t) {}
  virtual void clear_impl(std::byte*, int64_t) {}

 private:
  DeviceKind kind_;
  bool dry_;
  int threads_;
  Isa isa_;
  cuda::Facts gpu_;
  std::shared_ptr<Libraries> libraries_;
  std::map<std::string, MemoryUse> memory_;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads, Isa isa = detect_isa());
  ThreadPool& host_pool() override { return pool_; }

 private:
  std::byte* allocate_impl(const std::string& category, int64_t bytes) override;
  void release_impl(std::byte* memory, int64_t bytes) noexcept override;
  void to_host_impl(void* to, const std::byte* from, int64_t bytes) override;
  void to_device_impl(std::byte* to, const void* from, int64_t bytes) override;
  void copy_rows_impl(std::byte* to, int64_t to_pitch, const std::byte* from, int64_t from_pitch, int64_t rows,
                      int64_t width) override;
  void clear_impl(std::byte* to, int64_t bytes) override;
  ThreadPool pool_;
};

class DryDevice final : public Device {
 public:
  explicit DryDevice(int threads, Isa isa = detect_isa()) : Device(DeviceKind::cpu, true, threads, isa) {}
  DryDevice(cuda::Facts gpu, int threads, std::shared_ptr<Libraries> libraries = std::make_shared<Libraries>())
      : Device(std::move(gpu), true, threads, std::move(libraries)) {}

 private:
  std::byte* allocate_impl(const std::string&, int64_t) override { return nullptr; }
  void release_impl(std::byte*, int64_t) noexcept override {}
};

/// Creates a dry device that represents the same CPU or GPU as `device`.
std::unique_ptr<Device> make_dry(const Device& device);

/// Returns the pool on which a CPU device's kernels run; an internal error on any other device.
ThreadPool& pool_of(Device& device);

}  // namespace trainer::device
