#pragma once
// The pause in a loop that polls a variable until another thread changes it.
namespace trainer {

/// Lets this core's other hardware thread run, and saves power.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace trainer
