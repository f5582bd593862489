#include <unistd.h>

#include <algorithm>
#include <climits>

#include "comm/engine_world.h"
#include "comm/mpi/mpi_table.h"
#include "comm/mpi/mpi_transport.h"
#include "comm/world.h"

namespace trainer::comm {

std::unique_ptr<World> mpi_world(const WorldOptions& options) {
  TRAINER_CHECK(mpi_table().started() == 0, "MPI is started once per process");
  auto engine = std::make_unique<Engine>(mpi_transport(), options);
  // An MPI library that does not match the launcher's cannot find the other ranks: each rank would train on its own.
  if (const int launched = launched_ranks().value_or(engine->size()); launched != engine->size())
    throw Error(Code::usage,
                format("{} ranks were started, but {} finds {}: it is not the MPI library of this launcher; {}",
                       launched, mpi_version().value_or("MPI"), engine->size(),
                       mpi_modules().empty()
                           ? "this program is linked to it: use its mpirun, or build with this launcher's library"
                           : "set TRAINER_MPI to openmpi, mpich or the path of the launcher's libmpi.so"));
  auto control = EngineWorld::make_control(*engine);

  char host[HOST_NAME_MAX + 1] = {};
  gethostname(host, HOST_NAME_MAX);
  const std::vector<std::string> hosts = control->gather(host);
  const std::vector<std::string> processes = control->gather(std::to_string(getpid()));
  std::vector<std::string> places;
  for (size_t rank = 0; rank < hosts.size(); ++rank)
    places.push_back(format("host {}, process {}", hosts[rank], processes[rank]));
  engine->set_places(std::move(places));

  const auto here = hosts.begin() + engine->rank();
  const auto local_rank = std::count(hosts.begin(), here, *here);
  const auto local_size = std::count(hosts.begin(), hosts.end(), *here);
  return std::make_unique<EngineWorld>(std::move(engine), std::move(control), "mpi", static_cast<int>(local_rank),
                                       static_cast<int>(local_size), options.timeout_s);
}

}  // namespace trainer::comm
