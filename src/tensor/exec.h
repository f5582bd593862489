#pragma once
// Exec: an operator's context: its device, scratch memory and meter. It is passed first, everywhere; there are no
// globals.
#include "device/device.h"
#include "tensor/arena.h"
#include "tensor/meter.h"

namespace trainer {

struct Exec {
  device::Device& device;
  Arena& arena;
  Meter& meter;

  Scratch take(std::string_view tag, Shape shape, DType dtype) const { return arena.take(tag, shape, dtype); }
};

/// Calls body(ex) `times` times; while the arena records a program, once, whatever `times` is, with a meter of its own.
/// So a program that is recorded with no repetitions can be replayed with any number of them, in the same memory.
/// `body` must use the Exec that it is given, and release all that it takes, and nothing else. Allocates nothing.
template <typename F>
void repeat(Exec& ex, int64_t times, F&& body) {
  ex.arena.begin_loop();
  if (ex.arena.is_recording()) {
    Meter unused;
    Exec muted{ex.device, ex.arena, unused};
    body(muted);
  } else {
    for (int64_t i = 0; i < times; ++i) {
      ex.arena.next_iteration();
      body(ex);
    }
  }
  ex.arena.end_loop();
}

}  // namespace trainer
