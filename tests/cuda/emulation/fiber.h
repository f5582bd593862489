#pragma once
// Stackful coroutines for the emulator's CUDA threads: a hand-made switch of a few nanoseconds (x86-64, System V ABI).
#include <cstddef>

namespace emulator {

/// Zeroed pages, and back. What a sanitizer remembers of earlier uses of the place is forgotten.
std::byte* map_pages(size_t bytes);
void unmap_pages(std::byte* pages, size_t bytes);

/// A stack of its own, on which entry(argument) starts at the first switch; it may never return.
class Fiber {
 public:
  Fiber(void (*entry)(void*), void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// From the scheduler's own stack: runs the fiber until it calls leave().
  void enter();
  /// From the fiber: back to where enter() was called.
  void leave();

 private:
  static void begin(Fiber* fiber);

  void (*entry_)(void*);
  void* argument_;
  std::byte* stack_ = nullptr;
  void* inside_ = nullptr;   // stack pointer of the fiber while it does not run
  void* outside_ = nullptr;  // stack pointer of the scheduler while the fiber runs
  void* sanitizer_ = nullptr;
  void* sanitizer_outside_ = nullptr;
  const void* outside_bottom_ = nullptr;  // the scheduler's stack, for AddressSanitizer
  size_t outside_size_ = 0;
};

}  // namespace emulator
