#pragma once
// Stackful coroutines for the emulator's CUDA threads; a switch in assembly takes a few nanoseconds (x86-64, System V).
#include <cstddef>

namespace emulator {

/// Maps and unmaps zeroed pages. A sanitizer's records of earlier uses of these addresses are cleared.
std::byte* map_pages(size_t bytes);
void unmap_pages(std::byte* pages, size_t bytes);

/// A stack on which entry(argument) starts at the first switch; entry must never return.
class Fiber {
 public:
  Fiber(void (*entry)(void*), void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Called on the scheduler's stack: runs the fiber until it calls leave().
  void enter();
  /// Called on the fiber: returns to the caller of enter().
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
