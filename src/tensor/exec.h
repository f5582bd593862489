#pragma once
// Exec: the context of an operator: its device and its scratch memory. Passed first, everywhere; there are no globals.
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
