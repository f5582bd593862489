#pragma once
// NCCL executes operations on tensors in GPU memory. They run on the device, on streams of their own, and no host
// thread waits for them. Host data, failure detection and the timeout are handled by the underlying world.
//
// Order and deadlocks. Every rank starts its operations in program order, which is the same on all ranks of each group.
// With one lane all communicators share one stream, so each GPU runs them in that order, one after another. The
// earliest incomplete operation is then the next one on all its ranks, so some operation can always run. With several
// lanes, kernels of different communicators are on a GPU at once, in orders that may differ between GPUs. That works
// while all of them fit on the GPU at once, which NCCL does not guarantee. One lane is the default.
//
// Sums. NCCL chooses its algorithm, and with it the order of additions, by size, type and machine. It guarantees no
// more. Ring and tree reproduce their bits on the same layout and machine (NCCL_ALGO=Ring and NCCL_PROTO=Simple in the
// environment select them). The sums are rounded differently than with the other transports. bf16 is rounded after each
// addition, or accumulated in higher precision if NVLink switches do the reduction.
#include <memory>
#include <optional>
#include <string>

#include "comm/world.h"

namespace trainer::comm::nccl {

/// Returns "NCCL 2.28.9", the library in use; empty if it is not compiled in.
std::optional<std::string> version();
/// The error text if it is not compiled in.
inline constexpr const char* kMissing =
    "this trainer was built without NCCL (configure it with -DTRAINER_NCCL=ON where nccl.h is found)";

/// Makes a world over `below`, with NCCL for operations among the GPUs of its ranks. No other rank may use `device`.
/// Both must outlive the world. World::connect() must be called before the first operation. Collective; throws
/// Code::comm when the ranks cannot reach each other, Code::usage when NCCL is not compiled in.
std::unique_ptr<World> make_world(World& below, device::Device& device);

}  // namespace trainer::comm::nccl
