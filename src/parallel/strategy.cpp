#include "parallel/strategy.h"

#include "parallel/serial.h"

namespace trainer::parallel {

mesh::MeshShape make_mesh_shape(const config::Parallel& parallel, int world) {
  if (parallel.strategy != "megatron-1d")
    throw Error(Code::config,
                format("parallel.strategy = \"{}\" is not built yet; there is: \"megatron-1d\" with tensor = 1",
                       parallel.strategy));
  if (parallel.tensor != 1)
    throw Error(Code::config,
                format("parallel.tensor = {}: tensor parallelism is not built yet, set it to 1", parallel.tensor));
  return mesh::MeshShape({{"data", world}});
}

std::unique_ptr<Strategy> make_strategy(const config::Parallel&, mesh::Mesh&, ParamStore& store) {
  // On one tensor rank every strategy is the same program; megatron-1d is the one whose configuration describes it.
  return std::make_unique<Serial>(store);
}

}  // namespace trainer::parallel
