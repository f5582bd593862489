#pragma once
// Machine: the device and the data type that a run computes with, decided once and logged.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "comm/world.h"
#include "config/forward.h"
#include "device/device.h"

namespace trainer::setup {

struct Machine {
  int threads = 1;
  device::Isa isa = device::Isa::plain;
  DType compute = DType::f32;
  std::string compute_reason;  // "default: this CPU has no fast bf16 unit"
  int64_t memory_limit = 0;    // bytes: hardware.memory_limit, or else this rank's share of the memory available now
  int64_t host_limit = 0;      // bytes: this rank's share of the host memory available now; 0: not known
  bool group_limited = false;  // the available host memory is what a cgroup's limit leaves
  int ranks = 1, rank = 0;     // the number of ranks in the run, and this rank's index
  std::optional<device::cuda::Facts> gpu = {};  // empty: the CPU
  /// The GPU's libraries, shared by all devices made from this machine.
  std::shared_ptr<device::Libraries> libraries = std::make_shared<device::Libraries>();
  bool nccl = false;  // NCCL transfers tensors between the ranks' GPUs
};
/// Chooses this rank's device, a GPU or the CPU, by run.device and the GPUs found. Throws Code::config if a requested
/// GPU is not found, and for fp64 on a GPU. Collective.
Machine choose_machine(const config::Config& config, comm::World& world);
/// Returns the lowest of the ranks' instruction sets, which all ranks use: kernels for different sets round
/// differently, so copies of the same weights would drift apart. Logs one line if they differ. Collective.
device::Isa agree_on_isa(comm::World& world, device::Isa own);
/// Throws Code::config for several lanes of NCCL and several stages: older drivers start the lanes' kernels one after
/// another, none while one waits for another stage. To be called on all ranks.
void require_lanes_for_stages(const config::Config& config, const Machine& machine);
/// Throws Code::plan if ranks would compute in different types, which can happen when each rank uses its machine's
/// default. Collective.
void require_one_compute(comm::World& world, const Machine& machine);
/// Warns if ranks multiply matrices with different kernels: then a matrix that a single rank updates gets the bits of
/// that rank. `optimizer`: the value of optim.name. Collective.
void warn_of_different_kernels(comm::World& world, const Machine& machine, std::string_view optimizer);
/// Creates the machine's device, or a dry device that represents it.
std::unique_ptr<device::Device> make_device(const Machine& machine);
std::unique_ptr<device::Device> make_dry_device(const Machine& machine);
/// Returns "avx2" or "H200, sm_90", for messages and profiles.
std::string device_text(const Machine& machine);

}  // namespace trainer::setup
