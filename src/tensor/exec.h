#pragma once
// Exec: where an operator runs and where its scratch memory comes from. Passed first, everywhere; there are no globals.
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

}  // namespace trainer
