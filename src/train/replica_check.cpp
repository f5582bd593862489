#include "train/replica_check.h"

#include <algorithm>

#include "checkpoint/checksum.h"

namespace trainer::train {

void check_replicas(Trainer& trainer, int64_t step) {
  const params::ParamStore& store = trainer.store();
  std::string lines;
  for (const params::Group& group : store.groups()) {
    const Tensor weights = group.compute ? group.compute.tensor() : group.master.tensor();
    lines += checkpoint::to_string(checkpoint::checksum_of(
                 std::span<const std::byte>(weights.data, static_cast<size_t>(weights.bytes())))) +
             '\n';
  }
  const std::vector<std::string> all = trainer.mesh().host().gather(lines);
  const mesh::MeshShape& shape = trainer.mesh().shape();
  const size_t width = lines.size() / store.groups().size();
  for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
    const int reference = shape.members(rank, shape.set("data")).front();
    const std::string &own = all[static_cast<size_t>(rank)], &expected = all[static_cast<size_t>(reference)];
    if (own == expected) continue;
    const size_t group = static_cast<size_t>(std::ranges::mismatch(own, expected).in1 - own.begin()) / width;
    throw Error(Code::internal,
                format("step {}: the weights of rank {} differ from those of rank {} in {}, first of all: a "
                       "replica computes wrongly. Suspect the hardware of its host; the last checkpoint is "
                       "from before this comparison",
                       step, rank, reference, store.groups()[group].name))
        .on(Scope::all_ranks);
  }
}

}  // namespace trainer::train
