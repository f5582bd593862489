#include "parallel/strategy.h"

#include "parallel/megatron1d.h"
#include "parallel/serial.h"

namespace trainer::parallel {

mesh::MeshShape make_mesh_shape(const config::Config& config, int world) {
  const config::Parallel& parallel = config.parallel;
  if (parallel.strategy != "megatron-1d")
    throw Error(Code::config,
                format("parallel.strategy = \"{}\" is not built yet; there is: \"megatron-1d\"", parallel.strategy));
  return Megatron1D::mesh_shape(world, static_cast<int>(parallel.tensor), config.model.n_kv_head);
}

void lay_out_replicas(config::Config& config, int world) {
  config.parallel.strategy = "megatron-1d";
  config.parallel.tensor = 1;
  config.parallel.data = world;
}

void lay_out_for_generation(config::Config& config, int world) {
  lay_out_replicas(config, world);
  int64_t& tensor = config.parallel.tensor;
  for (tensor = world; world % tensor != 0 || !Megatron1D::divides(config.model, tensor);) --tensor;
  config.parallel.data = world / tensor;
  config.parallel.sequence_parallel = false;  // one row at a time cannot be split
}

std::unique_ptr<Strategy> make_strategy(const config::Config& config, mesh::Mesh& mesh, ParamStore& store) {
  // With one rank for each replica every strategy is the same program.
  const mesh::MeshShape& shape = mesh.shape();
  if (shape.group_size(shape.all() & ~shape.set("data")) == 1) return std::make_unique<Serial>(store);
  return std::make_unique<Megatron1D>(mesh, store, config.parallel.sequence_parallel, config.debug.overlap);
}

}  // namespace trainer::parallel
