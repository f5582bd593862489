#pragma once
// Tests that run as processes under mpirun: the world of this process, and the collection of failures from all ranks.
#include "comm/world.h"

namespace trainer::comm {

/// Made by main (mpi_main.cpp) before any test runs.
World& test_world();

}  // namespace trainer::comm
