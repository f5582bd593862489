// Compiled instead of the other files in this folder if NCCL is not found.
#include "comm/nccl/nccl_world.h"

namespace trainer::comm::nccl {

Version version() {
  return {.missing =
              "this trainer was built without NCCL (configure it with -DTRAINER_NCCL=ON, which requires nccl.h)"};
}

std::unique_ptr<World> make_world(World&, device::Device&) { throw Error(Code::usage, version().missing); }

}  // namespace trainer::comm::nccl
