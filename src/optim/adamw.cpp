#include "optim/adamw.h"

#include <cmath>

namespace trainer::optim {

ops::AdamWScalars adamw_scalars(const config::Optim& optim, const Update& update, bool decay) {
  const double steps = static_cast<double>(update.t);
  return {.beta1 = optim.beta1,
          .beta2 = optim.beta2,
          .inv_sqrt_correction = 1.0 / std::sqrt(1.0 - std::pow(optim.beta2, steps)),
          .eps = optim.eps,
          .negative_step = -update.lr / (1.0 - std::pow(optim.beta1, steps)),
          .negative_decay = decay ? -update.lr * optim.weight_decay : 0.0,
          .gradient_scale = update.gradient_scale};
}

AdamW::AdamW(params::ParamStore& store, const config::Optim& optim, bool round_gradients)
    : store_(store),
      optim_(optim),
      round_gradients_(round_gradients),
      ranges_(store),
      gathers_(store.groups().size()) {}

void AdamW::step(Exec& ex, const Update& update) {
  for (size_t g = 0; g < gathers_.size(); ++g) {
    const params::Group& group = store_.groups()[g];
    ranges_.each(static_cast<int>(g), group.held, [&](comm::Chunk part, bool decay) {
      ops::run(ex, ops::AdamW{.p = group.master_of(part),
                              .m = group.m_of(part),
                              .v = group.v_of(part),
                              .g = group.grad.tensor().range(part.begin, part.count),
                              .compute = group.compute.tensor().range(part.begin, part.count),
                              .scalars = adamw_scalars(optim_, update, decay),
                              .round_gradient = round_gradients_});
    });
    if (store_.replicas().split_state) gathers_[g] = store_.gather_weights(ex, static_cast<int>(g));
  }
  for (comm::Ticket& gather : gathers_)
    if (gather.is_open()) gather.join(ex);
  store_.weights_changed();
}

}  // namespace trainer::optim
