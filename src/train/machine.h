#pragma once
// What a run computes on and in which type, decided once and said aloud.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "config/config.h"
#include "train/trainer.h"

namespace trainer::train {

struct Machine {
  int threads = 1;
  device::Isa isa = device::Isa::plain;
  DType compute = DType::f32;
  std::string compute_reason;  // "chosen by default: no matrix unit for bf16"
  int64_t memory_limit = 0;    // bytes: hardware.memory_limit, else this rank's share of what the system can give now
  int ranks = 1, rank = 0;     // of the run, and which of them this is
  std::optional<device::cuda::Facts> gpu = {};  // none: the CPU
};
/// What this rank computes on: the GPU of its place on the host, where one is wanted and there, else the CPU. Throws
/// Code::config for a device that is not there, and for fp64 on a GPU.
Machine choose_machine(const config::Config& config, const comm::World& world);
/// Throws Code::plan where ranks would compute in different types, by default each on its own CPU. Collective.
void require_one_compute(comm::World& world, const Machine& machine);
/// The device, or a dry one that stands for it.
std::unique_ptr<device::Device> make_device(const Machine& machine);
std::unique_ptr<device::Device> make_dry_device(const Machine& machine);
/// "avx2" or "H200, sm_90", for people.
std::string device_text(const Machine& machine);

/// Dense FLOP/s of a GPU by its data sheet; none for a part that is not known.
std::optional<double> data_sheet_peak(const std::string& name, DType compute);

/// Products on a GPU take the algorithms and forms of hardware.gemm_tuning, which the first rank reads for all: what
/// the others find under that name does not matter. A table of another device or library than that of some rank is
/// ignored by all, with a warning. Before memory is planned; `device` may be a dry one. Returns the hash of the table
/// in use, empty for none. Collective.
std::string use_gemm_tuning(const config::Config& config, comm::World& world, const device::Device& device);

/// The run lets the model write: it then holds a key-value cache beside what training needs.
bool writes_samples(const config::Config& config);

/// The plan of a run without computing, allocating or communicating: memory and FLOPs of a micro-step and the bytes of
/// a step, from the run's own code.
struct RunPlan {
  BytesByCategory memory;  // bytes, by category, "host" for what is not in tensors; activations by tag below
  BytesByCategory activations;
  int64_t total = 0;  // of the device: on a GPU without "host"
  int64_t parameters = 0;
  FlopsPerToken flops;
  double executed_flops = 0;    // products and attention of one micro-step, as executed
  double recomputed_flops = 0;  // of them, repeated by recomputation
  int64_t arena_bound = 0;      // largest sum of live bytes: the floor of the arena
  CommBytes comm_bytes;         // of a step, by axis and operation
};
RunPlan plan_run(const config::Config& config, int64_t vocab, const Machine& machine, bool training);
/// Table for `train --dry-run`.
std::string to_text(const RunPlan& plan, const config::Config& config, const Machine& machine);
/// Throws Code::plan when the plan exceeds the limit: names the largest category and the smallest change that fits.
void require_memory(const RunPlan& plan, const config::Config& config, int64_t vocab, const Machine& machine);

}  // namespace trainer::train
