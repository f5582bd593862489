#include "parallel/strategy.h"

#include "parallel/serial.h"

namespace trainer::parallel {

std::unique_ptr<Strategy> make_strategy(const config::Parallel& parallel, int world, ParamStore& store) {
  // On one rank every strategy is the same program; megatron-1d is the one whose configuration describes it.
  if (parallel.strategy != "megatron-1d")
    throw Error(Code::config,
                format("parallel.strategy = \"{}\" is not built yet; there is: \"megatron-1d\" with tensor = 1",
                       parallel.strategy));
  if (parallel.tensor != 1 || world != 1)
    throw Error(Code::config,
                format("parallel.tensor = {} on {} ranks: tensor parallelism is not built yet, set it to 1",
                       parallel.tensor, world));
  return std::make_unique<Serial>(store);
}

}  // namespace trainer::parallel
