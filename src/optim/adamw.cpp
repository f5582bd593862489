#include "optim/adamw.h"

#include <algorithm>
#include <cmath>

namespace trainer::optim {
ops::AdamWScalars adamw_scalars(const config::Optim& optim, double lr, int64_t t, double gradient_scale, bool decay) {
  const double steps = static_cast<double>(t);
  return {.beta1 = optim.beta1,
          .beta2 = optim.beta2,
          .inv_sqrt_correction = 1.0 / std::sqrt(1.0 - std::pow(optim.beta2, steps)),
          .eps = optim.eps,
          .negative_step = -lr / (1.0 - std::pow(optim.beta1, steps)),
          .negative_decay = decay ? -lr * optim.weight_decay : 0.0,
          .gradient_scale = gradient_scale};
}

AdamW::AdamW(const params::ParamStore& store) : gathers_(store.slot_groups().size()) {
  for (params::SlotId slot = 0; slot < store.slots(); ++slot) {
    const int group = store.group_of(slot);
    const auto [offset, count] = store.range_of(slot);
    if (!ranges_.empty() && ranges_.back().group == group && ranges_.back().decay == store.decays(slot)) {
      ranges_.back().count = offset + count - ranges_.back().offset;  // the padding between slots stays zero
    } else {
      ranges_.push_back({group, offset, count, store.decays(slot)});
    }
  }
  std::ranges::stable_sort(ranges_, {}, &Range::group);
}

void AdamW::step(Exec& ex, params::ParamStore& store, const config::Optim& optim, double lr, int64_t t,
                 double gradient_scale) {
  auto range = ranges_.begin();
  for (size_t g = 0; g < gathers_.size(); ++g) {
    const params::Group& group = store.groups()[g];
    const int64_t held_end = group.held.begin + group.held.count;
    for (; range != ranges_.end() && range->group == static_cast<int>(g); ++range) {
      const int64_t begin = std::max(range->offset, group.held.begin),
                    end = std::min(range->offset + range->count, held_end);
      if (begin >= end) continue;
      const comm::Chunk part{begin, end - begin};
      ops::run(ex, ops::AdamW{.p = group.master_of(part),
                              .m = group.m_of(part),
                              .v = group.v_of(part),
                              .g = group.grad.tensor().range(part.begin, part.count),
                              .compute = group.compute.tensor().range(part.begin, part.count),
                              .scalars = adamw_scalars(optim, lr, t, gradient_scale, range->decay)});
    }
    if (store.replicas().split_state) gathers_[g] = store.gather_weights(ex, static_cast<int>(g));
  }
  for (comm::Ticket& gather : gathers_)
    if (gather.is_open()) gather.join(ex);
  store.weights_changed();
}

}  // namespace trainer::optim
