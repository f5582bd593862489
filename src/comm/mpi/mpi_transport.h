#pragma once
// Ranks as processes connected by MPI. Only the progress thread initialises, calls and finalises MPI. All
// messages are non-blocking, so that they can be cancelled and waiting for them need not occupy a core.
#include <memory>

#include "comm/transport.h"

namespace trainer::comm {

/// Creates the MPI transport; call it once per process. Throws like mpi_table(). Its open() throws Code::comm if MPI
/// cannot be initialised.
std::unique_ptr<Transport> mpi_transport();

/// Calls MPI_Allreduce (sum) over all ranks, in place, for comparison with the trainer's own all-reduce. Must be called
/// on the progress thread of an mpi_transport().
void mpi_library_all_reduce(float* values, int64_t n);

}  // namespace trainer::comm
