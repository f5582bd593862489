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

}  // namespace trainer
