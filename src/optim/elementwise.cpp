#include "optim/elementwise.h"

#include <array>

namespace trainer::optim {

std::unique_ptr<Updater> ElementwiseRule::make(params::ParamStore& store, Selection selection) const {
  return std::make_unique<ElementwiseUpdater>(*this, store, std::move(selection));
}

void ElementwiseUpdater::finish(Exec& ex, const Update& update, int group) {
  this->update(ex, update, group, store_.groups()[static_cast<size_t>(group)].held);
}

void ElementwiseUpdater::update(Exec& ex, const Update& update, int index, comm::Chunk within) const {
  const params::Group& group = store_.groups()[static_cast<size_t>(index)];
  selection_.each(index, within, [&](comm::Chunk part, bool decay) {
    std::array<Tensor, kMostStates> states;
    for (size_t i = 0; i < states_.size(); ++i) states.at(i) = group.state(states_[i].suffix, part);
    rule_.update(ex, update, decay,
                 {.p = group.master_of(part),
                  .states = {states.data(), states_.size()},
                  .g = group.grad.range(part.begin, part.count),
                  .compute = group.compute.tensor().range(part.begin, part.count),
                  .whole = within.count < group.held.count ? group.held.count : 0});
  });
}

}  // namespace trainer::optim
