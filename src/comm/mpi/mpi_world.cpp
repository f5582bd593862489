#ifdef TRAINER_HAS_MPI
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "comm/engine_world.h"
#include "comm/mpi/mpi_transport.h"

namespace trainer::comm {

std::optional<std::string> mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);  // MPI allows this call before MPI_Init
  const std::string_view all(text, static_cast<size_t>(length));
  return std::string(all.substr(0, all.find_first_of(",\n")));
}

std::unique_ptr<World> mpi_world(const WorldOptions& options) {
  int started = 0;
  MPI_Initialized(&started);
  TRAINER_CHECK(started == 0, "MPI starts once in a process");
  auto engine = std::make_unique<Engine>(mpi_transport(), options);
  auto control = EngineWorld::make_control(*engine);

  char host[HOST_NAME_MAX + 1] = {};
  gethostname(host, HOST_NAME_MAX);
  const std::vector<std::string> hosts = control->gather(host);
  const std::vector<std::string> processes = control->gather(std::to_string(getpid()));
  std::vector<std::string> names;
  for (size_t rank = 0; rank < hosts.size(); ++rank)
    names.push_back(format("rank {} (host {}, process {})", rank, hosts[rank], processes[rank]));
  engine->set_names(std::move(names));

  const auto here = hosts.begin() + engine->rank();
  const auto local_rank = std::count(hosts.begin(), here, *here);
  const auto local_size = std::count(hosts.begin(), hosts.end(), *here);
  return std::make_unique<EngineWorld>(std::move(engine), std::move(control), "mpi", static_cast<int>(local_rank),
                                       static_cast<int>(local_size), options.timeout_s);
}

}  // namespace trainer::comm
#endif
