#include "optim/elementwise.h"

#include <algorithm>
#include <array>

namespace trainer::optim {

std::vector<params::StateSpec> ElementwiseRule::states() const {
  std::vector<params::StateSpec> all;
  const DType type = settings_.optim.moments == config::Moments::bf16 ? DType::bf16 : master_;
  for (const ops::rules::StateRule& state : ops::facts_of(row_.id).states) all.push_back({state.suffix, type});
  return all;
}

void ElementwiseRule::update(Exec& ex, const Update& update, ParamClass of, const UpdateRange& range) const {
  const double lr = update.lr * settings_.lr_ratios[static_cast<size_t>(of)];
  const Step step{.lr = lr,
                  .negative_decay = of == ParamClass::vector ? 0.0 : -lr * settings_.optim.weight_decay,
                  .floor = floor_of(settings_.optim.decay)};
  std::array<double, ops::kMostScalars> scalars{};
  row_.scalars(settings_, update, step, scalars.data());
  ops::run(ex, ops::Update{.rule = row_.id,
                           .p = range.p,
                           .states = range.states,
                           .g = range.g,
                           .compute = range.compute,
                           .scalars = {scalars.data(), ops::facts_of(row_.id).scalars},
                           .gradient_scale = update.gradient_scale,
                           .round_gradient = settings_.round_gradients && range.g.dtype != DType::bf16,
                           .salt = ops::salt_of(update.t),
                           .whole = range.whole});
}

std::unique_ptr<Updater> ElementwiseRule::make(params::ParamStore& store, Selection selection) const {
  return std::make_unique<ElementwiseUpdater>(*this, store, std::move(selection));
}

std::unique_ptr<ElementwiseRule> elementwise_rule(const Settings& settings, DType master) {
  return std::make_unique<ElementwiseRule>(
      *std::ranges::find_if(rows(), [&](const Row& row) { return row.is_selected(settings); }), settings, master);
}

void ElementwiseUpdater::finish(Exec& ex, const Update& update, int group) {
  this->update(ex, update, group, store_.groups()[static_cast<size_t>(group)].held);
}

void ElementwiseUpdater::update(Exec& ex, const Update& update, int index, comm::Chunk within) const {
  const params::Group& group = store_.groups()[static_cast<size_t>(index)];
  selection_.each(index, within, [&](comm::Chunk part, ParamClass of) {
    std::array<Tensor, kMostStates> states;
    for (size_t i = 0; i < states_.size(); ++i) states.at(i) = group.state(states_[i].suffix, part);
    rule_.update(ex, update, of,
                 {.p = group.master_of(part),
                  .states = {states.data(), states_.size()},
                  .g = group.grad.range(part.begin, part.count),
                  .compute = group.compute.tensor().range(part.begin, part.count),
                  .whole = within.count < group.held.count ? group.held.count : 0});
  });
}

}  // namespace trainer::optim
