#pragma once
// Ranks as processes connected by MPI. MPI is initialised, used and finalised only by the progress thread. Only
// non-blocking messages are used: they can be cancelled, and waiting for them need not occupy a core.
#include <memory>

#include "comm/transport.h"

namespace trainer::comm {

/// Makes the MPI transport, once per process. Throws as mpi_table(); open() throws Code::comm if MPI does not start.
std::unique_ptr<Transport> mpi_transport();

/// MPI's own all-reduce over all ranks, in place, for comparison. Must be called on the progress thread of an
/// mpi_transport().
void mpi_library_all_reduce(float* values, int64_t n);

}  // namespace trainer::comm
