#ifndef TRAINER_HAS_MPI
#include "comm/mpi/mpi_transport.h"
#include "comm/world.h"

namespace trainer::comm {

std::optional<std::string> mpi_version() { return std::nullopt; }

std::unique_ptr<World> mpi_world(const WorldOptions&) {
  throw Error(Code::usage,
              "this trainer was built without MPI: install libopenmpi-dev and build again, or start it without mpirun");
}

void mpi_library_all_reduce(float*, int64_t) { TRAINER_CHECK(false, "built without MPI"); }

}  // namespace trainer::comm
#endif
