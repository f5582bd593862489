#pragma once
// Machine: the device and the data type that a run computes with, decided once and logged.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/world.h"
#include "config/config.h"
#include "device/device.h"

namespace trainer::setup {

struct Machine {
  int threads = 1;
  device::Isa isa = device::Isa::plain;
  DType compute = DType::f32;
  std::string compute_reason;  // "chosen by default: no matrix unit for bf16"
  int64_t memory_limit = 0;  // bytes: hardware.memory_limit, else this rank's share of the memory that is available now
  /// Bytes of the host's memory: this rank's share of the memory that is available now; 0: not known.
  int64_t host_limit = 0;
  int ranks = 1, rank = 0;                      // the number of ranks of the run, and this one
  std::optional<device::cuda::Facts> gpu = {};  // empty: the CPU
  /// The GPU's libraries, shared by all devices made from this machine.
  std::shared_ptr<device::Libraries> libraries = std::make_shared<device::Libraries>();
  bool nccl = false;  // NCCL transfers tensors between the ranks' GPUs
};
/// Returns precision.compute; empty if the machine decides.
std::optional<DType> given_compute(const config::Config& config);
/// Chooses this rank's device: the GPU with its local index if one is requested and found, else the CPU. Throws
/// Code::config for a device that is not found, and for fp64 on a GPU.
Machine choose_machine(const config::Config& config, const comm::World& world);
/// Throws Code::plan if ranks would compute in different types, which can happen when each rank uses its machine's
/// default. Collective.
void require_one_compute(comm::World& world, const Machine& machine);
/// Makes the device, or a dry one that represents it.
std::unique_ptr<device::Device> make_device(const Machine& machine);
std::unique_ptr<device::Device> make_dry_device(const Machine& machine);
/// Returns "avx2" or "H200, sm_90", for messages and profiles.
std::string device_text(const Machine& machine);

}  // namespace trainer::setup
