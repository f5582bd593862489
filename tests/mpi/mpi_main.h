#pragma once
// For tests that run as processes under mpirun: the world of this process, and failures collected from all ranks.
#include "comm/world.h"

namespace trainer::comm {

/// Returns the world, which main (mpi_main.cpp) creates before any test runs.
World& test_world();

}  // namespace trainer::comm
