// Compiled instead of the other files in this folder if NCCL is not found.
#include "comm/nccl/nccl_world.h"

namespace trainer::comm::nccl {

std::optional<std::string> version() { return std::nullopt; }

std::unique_ptr<World> make_world(World&, device::Device&) { throw Error(Code::usage, kMissing); }

}  // namespace trainer::comm::nccl
