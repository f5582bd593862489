#pragma once
// What a loop does between two looks at a variable that another thread will change.
namespace trainer {

/// Lets the other thread of this core run, and saves power.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace trainer
