#include <charconv>
#include <cstdlib>
#include <cstring>

#include "comm/world.h"

namespace trainer::comm {

std::optional<int> launched_ranks() {
  // Open MPI's mpirun sets the first variable, PMI (MPICH's mpiexec, srun --mpi=pmi2) the second. PMIx sets no size,
  // but Slurm does.
  const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (size == nullptr) size = std::getenv("PMI_SIZE");
  if (size == nullptr && std::getenv("PMIX_RANK") != nullptr) size = std::getenv("SLURM_NTASKS");
  int ranks = 0;
  if (size == nullptr || std::from_chars(size, size + std::strlen(size), ranks).ec != std::errc() || ranks < 1)
    return std::nullopt;
  return ranks;
}

}  // namespace trainer::comm
