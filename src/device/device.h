#pragma once
// A device runs kernels and owns memory. `cpu` computes synchronously on a thread pool. `dry` computes nothing and
// allocates nothing: it stands for a CPU of given threads and instruction set, so that one pass over the program yields
// the memory plan and the cost of a step.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "device/isa.h"
#include "device/thread_pool.h"

namespace trainer::device {

enum class Kind { cpu, dry };

/// Bytes held, by category ("weights", "gradients", …); `peak` is the largest value each category has had.
struct MemoryUse {
  int64_t current = 0, peak = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  Kind kind() const { return kind_; }
  bool dry() const { return kind_ == Kind::dry; }
  int threads() const { return threads_; }
  Isa isa() const { return isa_; }

  /// Zeroed memory, 64-byte aligned (2 MiB and huge pages when large), touched by the device's threads; nullptr on dry.
  /// Throws Code::plan naming the category when the system has no more.
  std::byte* allocate(const std::string& category, int64_t bytes);
  void release(const std::string& category, std::byte* memory, int64_t bytes) noexcept;
  const std::map<std::string, MemoryUse>& memory() const { return memory_; }
  int64_t memory_total() const;

 protected:
  Device(Kind kind, int threads, Isa isa) : kind_(kind), threads_(threads), isa_(isa) {}
  virtual std::byte* allocate_impl(int64_t bytes) = 0;  // nullptr: none left
  virtual void release_impl(std::byte* memory, int64_t bytes) noexcept = 0;

 private:
  Kind kind_;
  int threads_;
  Isa isa_;
  std::map<std::string, MemoryUse> memory_;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads, Isa isa = detect_isa());
  ~CpuDevice() override;
  ThreadPool& pool() { return pool_; }

 private:
  std::byte* allocate_impl(int64_t bytes) override;
  void release_impl(std::byte* memory, int64_t bytes) noexcept override;
  ThreadPool pool_;
};

class DryDevice final : public Device {
 public:
  explicit DryDevice(int threads, Isa isa = detect_isa()) : Device(Kind::dry, threads, isa) {}

 private:
  std::byte* allocate_impl(int64_t) override { return nullptr; }
  void release_impl(std::byte*, int64_t) noexcept override {}
};

/// The pool of a CPU device; an internal error on any other kind.
ThreadPool& pool_of(Device& device);

}  // namespace trainer::device
