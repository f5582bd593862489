#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

// void emulator_switch(void** save, void* restore): pushes the callee-saved registers onto the old stack and pops them
// from the new one.
asm(R"(
.text
.globl emulator_switch
.type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch, .-emulator_switch
.globl emulator_begin
.type emulator_begin, @function
emulator_begin:
  movq %r12, %rdi
  callq *%r13
  ud2
.size emulator_begin, .-emulator_begin
)");
extern "C" void emulator_switch(void** save, void* restore);
extern "C" void emulator_begin();

namespace emulator {
namespace {

constexpr size_t kStack = 256 << 10, kGuard = 4096;

void forget_uses([[maybe_unused]] std::byte* pages, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(pages, bytes);
#endif
}

}  // namespace

std::byte* map_pages(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  forget_uses(static_cast<std::byte*>(memory), bytes);
  return static_cast<std::byte*>(memory);
}
void unmap_pages(std::byte* pages, size_t bytes) {
  forget_uses(pages, bytes);  // a fiber's frames never return
  munmap(pages, bytes);
}

Fiber::Fiber(void (*entry)(void*), void* argument) : entry_(entry), argument_(argument) {
  stack_ = map_pages(kStack);
  mprotect(stack_, kGuard, PROT_NONE);
  // The values that emulator_switch pops first: r15, r14, r13 (function), r12 (argument), rbx, rbp, and the return
  // address.
  auto* top = reinterpret_cast<uintptr_t*>(stack_ + kStack - 64);
  uintptr_t* frame = top - 7;
  for (int i = 0; i < 7; ++i) frame[i] = 0;
  frame[2] = reinterpret_cast<uintptr_t>(&Fiber::begin);
  frame[3] = reinterpret_cast<uintptr_t>(this);
  frame[6] = reinterpret_cast<uintptr_t>(&emulator_begin);
  inside_ = frame;
#if defined(__SANITIZE_THREAD__)
  sanitizer_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(sanitizer_);
#endif
  unmap_pages(stack_, kStack);
}

void Fiber::begin(Fiber* fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &fiber->outside_bottom_, &fiber->outside_size_);
#endif
  fiber->entry_(fiber->argument_);
  std::abort();
}

void Fiber::enter() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&sanitizer_outside_, stack_, kStack);
#elif defined(__SANITIZE_THREAD__)
  sanitizer_outside_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(sanitizer_, 0);
#endif
  emulator_switch(&outside_, inside_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(sanitizer_outside_, nullptr, nullptr);
#endif
}

void Fiber::leave() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&sanitizer_, outside_bottom_, outside_size_);
#elif defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(sanitizer_outside_, 0);
#endif
  emulator_switch(&inside_, outside_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(sanitizer_, &outside_bottom_, &outside_size_);
#endif
}

}  // namespace emulator
