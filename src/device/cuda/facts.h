#pragma once
// The GPU properties on which launch geometry, scratch sizes and messages depend. They require no CUDA header, so that
// dry devices and plans can represent a GPU that this machine does not have.
#include <cstdint>
#include <string>

namespace trainer::device::cuda {

struct Facts {
  int ordinal = 0;
  std::string name, pci_bus_id;
  std::string uuid;  // in hexadecimal; instances of a GPU that MIG partitions have one each, but share the bus ID
  int multiprocessors = 0;
  int capability = 0;            // 80, 90: major·10 + minor
  int64_t shared_per_block = 0;  // bytes: the maximum that a kernel may use
  int64_t memory_bytes = 0;
};

}  // namespace trainer::device::cuda
