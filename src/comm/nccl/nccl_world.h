#pragma once
// NCCL executes operations on tensors in GPU memory. They run on the GPU, on separate streams, and no host thread waits
// for them. Host data, failure detection and the timeout are handled by the underlying world.
//
// Order and deadlocks. Every rank starts its operations in program order, which is the same on all ranks of each group.
// With one lane all communicators share one stream, so each GPU runs the operations in that order, one after another.
// The earliest incomplete operation is then the next to run on all its ranks, so there is no deadlock. With several
// lanes, critical operations, weights and gradients have a stream each. Kernels of different communicators are then on
// a GPU at once, in orders that may differ between GPUs. That works as long as all of them fit on the GPU at once,
// which NCCL does not guarantee. NCCL 2.26 and newer can start them in program order (one after another with a driver
// or CUDA runtime before 12.3), which the trainer requests with NCCL_LAUNCH_ORDER_IMPLICIT if there are several lanes.
// One lane is the default, because several have not been measured, and need more communicators (kBytesOfCommunicator
// each).
//
// Streams have the highest priority: blocks of a collective start before waiting blocks of GEMMs, so that other ranks
// do not wait for this rank's GEMM to end.
//
// Reductions. NCCL chooses its algorithm, and with it the order of additions, from size, type and machine, and
// guarantees no particular order. Its ring and tree algorithms are reproducible on the same layout and machine (the
// environment variables NCCL_ALGO=Ring and NCCL_PROTO=Simple select the ring). Sums are rounded differently than with
// the other transports. bf16 is rounded after each addition, or accumulated in higher precision if NVLink switches do
// the reduction.
#include <memory>
#include <string>

#include "comm/world.h"

namespace trainer::comm::nccl {

/// The version of NCCL, such as "NCCL 2.28.9", or else why this process has no NCCL.
struct Version {
  std::string name, missing;
};
/// Loads the library.
Version version();

/// Creates a world over `below` that uses NCCL for operations among its ranks' GPUs. No other rank may use `device`.
/// `below` and `device` must outlive the world. World::connect() must be called before the first operation. Collective;
/// throws Code::comm if the ranks cannot reach each other, Code::usage if NCCL is not compiled in.
std::unique_ptr<World> make_world(World& below, device::Device& device);

}  // namespace trainer::comm::nccl
