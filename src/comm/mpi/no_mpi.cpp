// Stands in for MPI where it is not compiled in.
#include "comm/world.h"

namespace trainer::comm {

std::optional<std::string> mpi_version() { return std::nullopt; }

std::unique_ptr<World> mpi_world(const WorldOptions&) {
  throw Error(Code::usage,
              "this trainer was built without MPI: install libopenmpi-dev and build again, or start it without mpirun");
}

}  // namespace trainer::comm
